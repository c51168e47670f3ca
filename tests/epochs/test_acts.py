"""What each modifier does by its clock, against tables of levels, rates and masks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from onnxsparse import plugins
from onnxsparse.errors import OptionError
from onnxsparse.recipes.modifiers.modifier import Scheduled
from tests.cases import for_each
from tests.epochs.arrays import Arrays, run
from tests.messages import refusing


def made(tag: str, **options: Any) -> Any:
    modifier = plugins.every("modifiers")[tag](**options)
    assert isinstance(modifier, Scheduled)
    return modifier.act()


def weights(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {f"{name}.weight": random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def gm(**options: Any) -> Any:
    given = {
        "start_epoch": 0, "end_epoch": 5, "update_frequency": 1, "init_sparsity": 0.05, "final_sparsity": 0.8,
        "params": "__ALL_PRUNABLE__",
    }  # fmt: skip
    return made("GMPruningModifier", **{**given, **options})


def levels(host: Arrays, act: Any, epochs: float, name: str = "a.weight", **more: Any) -> dict[float, float]:
    found: dict[float, float] = {}
    run(host, [act], epochs, seen=lambda epoch: found.update({epoch: host.sparsity(name)}), **more)
    return found


ANCHOR = [0.05, 0.416, 0.638, 0.752, 0.794, 0.8]


def test_gradual_levels_by_epoch() -> None:
    host = Arrays(weights(a=(50, 40)))
    found = levels(host, gm(), 5.25)
    assert [found[epoch] for epoch in range(6)] == pytest.approx(ANCHOR)
    assert found[0.75] == found[0]


def test_the_last_level_comes_even_without_a_step() -> None:
    host = Arrays(weights(a=(50, 40)))
    run(host, [gm()], 5, finish=False)
    assert host.sparsity("a.weight") == pytest.approx(0.794, abs=5e-4)
    run(host, [act := gm()], 5)
    assert host.sparsity("a.weight") == 0.8
    act.finish(host)
    assert host.sparsity("a.weight") == 0.8


def test_a_late_start_goes_on_from_there() -> None:
    host = Arrays(weights(a=(100, 100)))
    found = levels(host, gm(), 5.25, begin=2.5)
    assert [round(found[epoch], 4) for epoch in (2.5, 3.25, 3.5, 4.5, 5.0)] == [0.7063, 0.7063, 0.7798, 0.7993, 0.8]
    late = Arrays(weights(a=(100, 100)))
    assert set(levels(late, gm(inter_func="inverse_cubic"), 7, begin=6).values()) == {0.8}


def test_what_is_pruned_stays_pruned() -> None:
    host, before = Arrays(weights(a=(20, 20))), [np.zeros(400, bool)]

    def grows(_: float) -> None:
        gone = ~host.masks["a.weight"]
        assert gone[before[0]].all()
        before[0] = gone

    run(host, [gm()], 6, seen=grows)


@pytest.mark.parametrize("stays", [True, False])
def test_leave_enabled(stays: bool) -> None:
    host = Arrays(weights(a=(20, 20)))
    found = levels(host, gm(end_epoch=2, leave_enabled=stays), 3)
    assert found[2.0] == pytest.approx(0.8)
    assert host.sparsity("a.weight") == (0.8 if stays else 0.0)
    assert ("a.weight" in host.masks) == stays


def test_levels_of_their_own() -> None:
    host = Arrays(weights(a=(10, 10), b=(10, 10), c=(10, 10)))
    final = {0.5: ["a.weight"], 0.9: ["re:.*"]}
    run(host, [gm(final_sparsity=final, params=[])], 5.25)
    assert [host.sparsity(f"{name}.weight") for name in "abc"] == pytest.approx([0.5, 0.9, 0.9])


def test_a_first_level_from_the_weights() -> None:
    arrays = weights(a=(10, 10), b=(10, 10))
    arrays["a.weight"].reshape(-1)[:30] = 0
    host = Arrays(arrays)
    found = levels(host, gm(init_sparsity="__FROM_PARAM__", inter_func="linear", end_epoch=2), 2.25)
    assert (found[0], found[1], found[2]) == pytest.approx((0.3, 0.55, 0.8))
    assert levels(Arrays(arrays), gm(init_sparsity="__FROM_PARAM__"), 0.25, "b.weight")[0] == 0


def test_together_the_smallest_of_all_go() -> None:
    arrays = weights(a=(20, 10), b=(20, 10))
    arrays["b.weight"] *= 100
    host = Arrays(arrays)
    options = {
        "start_epoch": 0, "end_epoch": 5, "update_frequency": 1, "init_sparsity": 0.05, "final_sparsity": 0.45,
        "params": "__ALL_PRUNABLE__",
    }  # fmt: skip
    run(host, [made("GlobalMagnitudePruningModifier", **options)], 5.25)
    gone = [round(host.sparsity(name) * 200) for name in arrays]
    assert sum(gone) == 180
    assert gone[0] > 170
    two = {**options, "params": [], "final_sparsity": {0.4: ["a"], 0.5: ["b"]}}
    act = made("GlobalMagnitudePruningModifier", **two)
    with refusing(OptionError):
        act.bind(host.params)


@pytest.mark.parametrize(
    ("mask_type", "final", "unit"),
    [("block4", 0.8, (1, 4)), ([1, 4], 0.75, (1, 4)), ([4, 1], 0.5, (4, 1)), ([-1, 2], 0.5, (8, 2))],
)
def test_blocks(mask_type: Any, final: float, unit: tuple[int, int]) -> None:
    host = Arrays(weights(a=(8, 12, 3, 3)))
    run(host, [gm(mask_type=mask_type, final_sparsity=final)], 5.25)
    keep = host.masks["a.weight"].reshape(8, 12, 9)
    blocks = (
        keep.reshape(8 // unit[0], unit[0], 12 // unit[1], unit[1], 9)
        .transpose(0, 2, 4, 1, 3)
        .reshape(-1, unit[0] * unit[1])
    )
    assert (blocks.all(1) | ~blocks.any(1)).all()
    assert (~blocks.any(1)).sum() == math.floor(final * len(blocks) + 0.5)


def test_block4_has_shorter_blocks_at_the_ends() -> None:
    host = Arrays(weights(a=(8, 6)))
    run(host, [gm(mask_type="block4", final_sparsity=0.5)], 5.25)
    keep = host.masks["a.weight"].reshape(8, 6)
    parts = [*keep[:, :4], *keep[:, 4:]]
    assert all(part.all() or not part.any() for part in parts)
    assert sum(not part.any() for part in parts) == 8


@pytest.mark.parametrize("mask_type", ["2:4", "tensorrt"])
@pytest.mark.parametrize("shape", [(8, 16), (8, 16, 3, 3)])
def test_n_of_m_ramps(mask_type: str, shape: tuple[int, ...]) -> None:
    host = Arrays(weights(a=shape))
    found = levels(host, gm(mask_type=mask_type, final_sparsity=0.5, end_epoch=2, inter_func="linear"), 2.25)
    assert found[0] == pytest.approx(0.05, abs=2 / 128)
    assert found[1] == pytest.approx(0.275, abs=2 / 128)
    assert found[2] == 0.5
    groups = host.masks["a.weight"].reshape(8, 4, 4, -1).sum(2)
    assert (groups == 2).all()


def test_n_of_m_ends_whole_whatever_its_level_is_called() -> None:
    host = Arrays(weights(a=(8, 12)))
    run(host, [gm(mask_type="2:3", final_sparsity=0.33, init_sparsity=0.3)], 5.25)
    assert (host.masks["a.weight"].reshape(8, 4, 3).sum(2) == 2).all()


def structured(**options: Any) -> Any:
    given = {"start_epoch": 0, "end_epoch": 2, "update_frequency": 1, "init_sparsity": 0.0, "final_sparsity": 0.5}
    return made("StructuredPruningModifier", **{**given, **options})


@pytest.mark.parametrize(("mask_type", "axis"), [("filter", 0), ("channel", 1)])
def test_whole_filters_and_channels(mask_type: str, axis: int) -> None:
    arrays = weights(a=(6, 8, 3, 3))
    host = Arrays(arrays)
    run(host, [structured(mask_type=mask_type, final_sparsity=0.49)], 0.25, finish=False)
    run(host, [structured(mask_type=mask_type, init_sparsity=0.5, end_epoch=0, params=["a"])], 0.25)
    rest = tuple(one for one in range(4) if one != axis)
    norms = np.sqrt((arrays["a.weight"].astype(float) ** 2).sum(rest))
    keep = host.masks["a.weight"].reshape(6, 8, 3, 3)
    gone = ~keep.any(rest)
    assert (keep.all(rest) | gone).all()
    assert gone.sum() == norms.size // 2
    assert norms[gone].max() < norms[~gone].min()


def test_param_groups_go_together() -> None:
    host = Arrays(weights(a=(6, 8), b=(6, 4), c=(12, 2), d=(5, 5)))
    run(host, [structured(param_groups=[["a.weight", "b.weight", "c.weight"]])], 2.25)
    gone = {name: ~host.masks[f"{name}.weight"].reshape(host.arrays[f"{name}.weight"].shape).any(1) for name in "abcd"}
    assert (gone["a"] == gone["b"]).all()
    assert (np.repeat(gone["a"], 2) == gone["c"]).all()
    assert (gone["a"].sum(), gone["d"].sum()) == (3, 3)
    with refusing(OptionError):
        structured(param_groups=[["a.weight", "d.weight"]]).bind(host.params)


def test_constant_holds_zeros_and_new_ones() -> None:
    arrays = weights(a=(10, 10), b=(10, 10))
    arrays["a.weight"].reshape(-1)[:30] = 0
    host = Arrays(arrays)

    def more(epoch: float) -> None:
        if epoch == 1:
            host.arrays["a.weight"].reshape(-1)[50:60] = 0
            host.masks["a.weight"][50:60] = False

    run(host, [made("ConstantPruningModifier", params="__ALL__")], 3, seen=more)
    assert host.sparsity("a.weight") == pytest.approx(0.4)
    assert host.sparsity("b.weight") == 0


def test_constant_holds_what_another_lets_go() -> None:
    host = Arrays(weights(a=(20, 20)))
    acts = [gm(end_epoch=2, leave_enabled=False), made("ConstantPruningModifier", params="__ALL__", start_epoch=1)]
    run(host, acts, 4)
    assert host.sparsity("a.weight") == pytest.approx(0.8)


def test_phases_alternate_and_end_pruned() -> None:
    host = Arrays(weights(a=(20, 10)))
    options = {
        "start_epoch": 0, "end_epoch": 8, "update_frequency": 2, "compression_sparsity": 0.8,
        "params": "__ALL_PRUNABLE__",
    }  # fmt: skip
    found = levels(host, made("ACDCPruningModifier", **options), 8)
    assert [found[epoch] for epoch in (0, 1.75, 2, 3.75, 4.25, 5.75, 6, 7.75)] == pytest.approx(
        [0, 0, 0.8, 0.8, 0, 0, 0.8, 0.8]
    )
    assert host.forgotten == list(host.arrays)  # once, when a pruned phase is over
    assert host.sparsity("a.weight") == pytest.approx(0.8)
    early = Arrays(weights(a=(20, 10)))
    run(early, [made("ACDCPruningModifier", **options, momentum_reset_at="phase")], 8)
    assert early.forgotten == ["a.weight"] * 2
    quiet = Arrays(weights(a=(20, 10)))
    run(quiet, [made("ACDCPruningModifier", **options, momentum_buffer_reset=False)], 8)
    assert not quiet.forgotten


def rates(acts: list[Any], epochs: float, begin: float = 0.0) -> list[float]:
    host, found = Arrays(weights(a=(2, 2))), []
    run(host, acts, epochs, begin, seen=lambda _: found.append(host.rate[0]))
    return found


def lr(kind: str, options: dict[str, Any], **more: Any) -> Any:
    given = {"start_epoch": 0, "end_epoch": -1, "lr_class": kind, "lr_kwargs": options, "init_lr": 0.1}
    return made("LearningRateModifier", **{**given, **more})


def test_rates_by_class() -> None:
    assert rates([lr("ExponentialLR", {"gamma": 0.5})], 3) == pytest.approx([0.1] * 4 + [0.05] * 4 + [0.025] * 4)
    steps = rates([lr("MultiStepLR", {"gamma": 0.5, "milestones": [1.0, 2.5]})], 3)
    assert steps == pytest.approx([0.1] * 4 + [0.05] * 6 + [0.025] * 2)
    late = rates([lr("MultiStepLR", {"gamma": 0.5, "milestones": [2.0]}, start_epoch=1)], 3)
    assert late == pytest.approx([0.5] * 4 + [0.1] * 4 + [0.05] * 4)
    cosine = rates([lr("CosineAnnealingWarmRestarts", {"lr_min": 0.001, "cycle_epochs": 2})], 2.5)
    assert cosine[:3] == pytest.approx([0.1, 0.09623, 0.0855], abs=1e-5)
    assert cosine[8:] == pytest.approx(cosine[:2])


def test_nothing_changes_behind_the_end() -> None:
    found = rates([lr("StepLR", {"gamma": 0.5, "step_size": 1.0}, end_epoch=2)], 4)
    assert found == pytest.approx([0.1] * 4 + [0.05] * 12)
    other = made("SetLearningRateModifier", start_epoch=2.5, learning_rate=0.7)
    found = rates([lr("StepLR", {"gamma": 0.5, "step_size": 1.0}, end_epoch=2), other], 3)
    assert found == pytest.approx([0.1] * 4 + [0.05] * 6 + [0.7] * 2)


def test_a_start_between_two_steps() -> None:
    found = rates([lr("StepLR", {"gamma": 0.5, "step_size": 0.5}, start_epoch=0.3)], 1.5)
    assert found == pytest.approx([0.5] * 2 + [0.1] * 2 + [0.05] * 2)


def test_without_a_first_rate_that_of_the_optimizer_counts() -> None:
    assert rates([lr("ExponentialLR", {"gamma": 0.5}, init_lr=None)], 2) == pytest.approx([0.5] * 4 + [0.25] * 4)


def test_rates_by_function() -> None:
    options = {"start_epoch": 0, "end_epoch": 2, "init_lr": 0.1, "final_lr": 0.0}
    found = rates([made("LearningRateFunctionModifier", lr_func="linear", **options)], 3)
    assert found == pytest.approx([0.1, 0.0875, 0.075, 0.0625, 0.05, 0.0375, 0.025, 0.0125, *[0.0] * 4])
    saw = made("LearningRateFunctionModifier", **{**options, "end_epoch": 3}, lr_func="cyclic_linear", cycle_epochs=1.5)
    assert rates([saw], 2)[:7] == pytest.approx([0.1, 0.08, 0.06, 0.04, 0.02, 0.0, 0.1])


def test_groups_have_rates_of_their_own() -> None:
    host = Arrays(weights(a=(2, 2)))
    run(host, [made("SetLearningRateModifier", learning_rate=0.25, param_groups=[1])], 1)
    assert host.rate == [0.5, 0.25]


def test_decay_is_set_once() -> None:
    host, found = Arrays(weights(a=(2, 2))), []
    run(
        host,
        [made("SetWeightDecayModifier", start_epoch=1, weight_decay=0.5)],
        2,
        seen=lambda _: found.append(host.decay),
    )
    assert found == [0.0] * 4 + [0.5] * 4


def test_params_are_held_for_a_time() -> None:
    host, found = Arrays(weights(a=(2, 2), b=(2, 2))), []
    host.still = {"b.weight"}
    act = made("TrainableParamsModifier", params=["a"], trainable=False, start_epoch=0.5, end_epoch=1.5)
    free = made("TrainableParamsModifier", params=["b"], end_epoch=1)
    run(host, [act, free], 2, seen=lambda _: found.append(tuple(sorted(host.still))))
    both, one, none = ("a.weight", "b.weight"), ("a.weight",), ()
    assert found == [none, none, one, one, both, both, ("b.weight",), ("b.weight",)]


def test_params_are_set_and_led() -> None:
    host = Arrays({"alpha": np.zeros(3), **weights(a=(2, 2))})
    act = made("SetParamModifier", params=["alpha"], val=0.5)
    run(host, [act], 0.25, finish=False)
    assert host.arrays["alpha"] == pytest.approx(0.5, abs=0.1)
    found = []
    options = {"start_epoch": 0, "end_epoch": 1, "update_frequency": 0.5, "init_val": 0.0, "final_val": 1.0}
    act = made("GradualParamModifier", params=["alpha"], **options)
    run(host, [act], 1.25, seen=lambda _: found.append(round(float(host.arrays["alpha"][0]), 1)))
    assert found[::2] == [0.0, 0.5, 1.0]
    with refusing(OptionError):
        made("SetParamModifier", params=["alpha"], val=[1.0, 2.0]).bind(host.params)


def test_sparsity_is_told_when_it_is_due() -> None:
    host = Arrays(weights(a=(2, 2)))
    run(host, [made("SparsificationLoggingModifier", start_epoch=0.5, update_frequency=0.5)], 2)
    assert host.told == [0.5, 1.0, 1.5]


@pytest.mark.parametrize(
    ("params", "found"),
    [
        (["a.weight"], {"a.weight"}),
        (["a"], {"a.weight"}),
        (["net/b"], {"net.b.weight"}),
        (["re:.*/b"], {"net.b.weight"}),
        (["re:a"], {"a.weight", "a.bias"}),
        ("__ALL__", {"a.weight", "a.bias", "net.b.weight"}),
        ("__all_prunable__", {"a.weight", "net.b.weight"}),
        (["a.bias", "__ALL_PRUNABLE__"], {"a.weight", "a.bias", "net.b.weight"}),
        ([], {"a.weight", "net.b.weight"}),
    ],
)
def test_what_names_mean(params: Any, found: set[str]) -> None:
    random = np.random.default_rng(0).standard_normal
    host = Arrays({"a.weight": random((4, 4)), "a.bias": random(4), "net.b.weight": random((4, 4))})
    act = gm(params=params)
    act.bind(host.params)
    assert {one.name for one in act.masked()} == found


def test_names_that_mean_nothing() -> None:
    host = Arrays(weights(conv1=(2, 2)))
    with refusing(OptionError):
        gm(params=["conv.weight"]).bind(host.params)
    with refusing(OptionError):
        gm(mask_type=[3, 1]).bind(host.params)
    vector = Arrays({"bias": np.ones(4)})
    with refusing(OptionError):
        gm(params=["bias"], mask_type="block4").bind(vector.params)


def test_states_go_on() -> None:
    """Stopped anywhere and begun again with its state, an act does the same."""
    acts = [
        lambda: gm(init_sparsity="__FROM_PARAM__", update_frequency=0.3),
        lambda: lr("StepLR", {"gamma": 0.5, "step_size": 1.0}, init_lr=None),
        lambda: made("TrainableParamsModifier", params=["a"], trainable=False, end_epoch=2),
    ]
    for make in acts:
        whole, first = Arrays(weights(a=(10, 10))), Arrays(weights(a=(10, 10)))
        run(whole, [make()], 5)
        one, two = make(), make()
        run(first, [one], 1.75, finish=False)
        two.bind(first.params)
        two.restore(one.state(), first)
        run(first, [two], 5, begin=1.75)
        assert (first.arrays["a.weight"] == whole.arrays["a.weight"]).all()
        assert (first.rate, first.still) == (whole.rate, whole.still)


STEM = {"a": (8, 3, 3, 3), "b": (8, 8, 3, 3)}


@for_each("mask_type", ["2:4", "tensorrt", (4, 4)])
@for_each("params", ["__ALL_PRUNABLE__", "__ALL__", ["re:[ab]"], ["re:a", "b"]])
def test_what_holds_no_unit_stays_dense(mask_type: Any, params: Any) -> None:
    host, act = Arrays(weights(**STEM)), gm(mask_type=mask_type, final_sparsity=0.5, params=params)
    run(host, [act], 5.25)
    assert list(act.left_dense()) == ["a.weight"]
    assert "3 inputs, fewer than" in act.left_dense()["a.weight"]
    assert host.sparsity("b.weight") == 0.5
    assert "a.weight" not in host.masks


@pytest.mark.parametrize("params", [["a"], ["re:b", "a.weight"], ["re:a"]])
def test_what_is_named_and_holds_no_unit_is_refused(params: Any) -> None:
    with refusing(OptionError):
        gm(mask_type="2:4", final_sparsity=0.5, params=params).bind(Arrays(weights(**STEM)).params)
