"""Masks of a schedule put into the graph: those of a training loop at the same moment on equal weights, to the bit."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxsparse as osp
from onnxsparse.cli import main
from onnxsparse.dialects.msbench import build_sparse_scheduler, preset
from onnxsparse.engines.ort import library as ort
from onnxsparse.engines.torch import library as torch_library
from onnxsparse.errors import OptionError
from tests.cases import for_each
from tests.dialects.nets import SHAPES, SIZE, batch, numbers, onnx_model, torch_module
from tests.messages import refusing

needs_torch = pytest.mark.skipif(not torch_library.available(), reason="needs torch")
trains = pytest.mark.skipif(not (ort.available() or torch_library.available()), reason="needs an engine that trains")
MODELS = ["onnx", pytest.param("torch", marks=needs_torch)]
SHAPE = [1, 3, SIZE, SIZE]
LAST = 9


def config(generator="NormalMaskGenerator", kwargs=None, scheduler="BaseScheduler", target=0.5, uniform=True, **more):
    fake = {"ProbMaskGenerator": "ProbMaskFakeSparse"}.get(generator, "FakeSparse")
    made = {
        "mask_generator": {"type": generator, "kwargs": kwargs or {}},
        "fake_sparse": {"type": fake},
        "scheduler": {"type": scheduler, "kwargs": more},
    }
    return made if target is None else {**made, "sparsity": {"target_sparsity": target, "uniform": uniform}}


def amba(**kwargs):
    made = preset("amba")
    given = {"total_iters": 10, "sparsity_table": [30, 60], "default_input_shape": SHAPE, **kwargs}
    made["scheduler"]["kwargs"].update(given)
    return made


def ampere(**kwargs):
    return {"scheduler": {"type": "AmpereScheduler", "kwargs": kwargs}}


def probmask(**kwargs):
    given = {"prune_rate": 0.7, "total_iterations": 10, "warmup_iteration_stamps": 2, "finetune_iteration_stamps": 6}
    return config("ProbMaskGenerator", None, "ProbMaskPruneScheduler", None, **{**given, **kwargs})


ADMM = {"iters_per_epoch": 2, "max_iters": 12}
CASES = {
    "numbers": (config(), 0),
    "numbers of the whole net": (config(uniform=False), 3),
    "relative to the norm": (config(kwargs={"func": "L2Normalized"}, uniform=False), 0),
    "filters": (config(kwargs={"structured": True, "func": "p2"}, target=0.25), 0),
    "2:4": (config("NMMaskGenerator", target=None), 0),
    "fpgm": (config("FPGMMaskGenerator", {"func": "cos"}, target=0.25), 0),
    "nuclear": (config("NuclearMaskGenerator", target=0.25), 0),
    "static": (config(kwargs={"mask_is_static": True}), 5),
    "amba, first level": (amba(), 0),
    "amba, second level": (amba(), 7),
    "amba for a chip": (amba(prun_hw_aware="cv22"), 2),
    "admm": (config(scheduler="ADMMScheduler", **ADMM), 6),
    "ampere": (ampere(), 0),
    "probmask": (probmask(), 6),
}


def stored(proto):
    return {one.name: numpy_helper.to_array(one) for one in proto.graph.initializer}


def masks_in(proto):
    arrays = stored(proto)
    return {name: arrays[f"{name}_mask"] != 0 for name in SHAPES if f"{name}_mask" in arrays}


def loop(configuration, iteration, kind="onnx"):
    """A loop that begins at an iteration: its scheduler and what it prunes."""
    scheduler = build_sparse_scheduler(configuration)
    model = scheduler.prepare_sparse_model(onnx_model() if kind == "onnx" else torch_module())
    if configuration["scheduler"]["type"] == "AmpereScheduler":
        if kind == "torch":
            import torch

            scheduler.init_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        else:
            scheduler.init_optimizer()
    scheduler.prune_model(model, iteration)
    return scheduler, model


def masks_of(scheduler):
    network = scheduler.network
    found = {f"{site.name}.weight": network.masks()[site.key] for site in network.sites if site.key in network.masks()}
    return {name: mask for name, mask in found.items() if not mask.all()}


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, mask in expected.items():
        np.testing.assert_array_equal(found[name], mask, err_msg=name)


@pytest.mark.parametrize("kind", MODELS)
@for_each("case", CASES)
def test_masks_are_those_of_a_loop_at_that_iteration(case, kind):
    configuration, iteration = CASES[case]
    result = osp.insert_masks(onnx_model(), config=configuration, iteration=iteration)
    scheduler, _ = loop(configuration, iteration, kind)
    assert masks_in(result.model)
    same(masks_in(result.model), masks_of(scheduler))


@for_each("case", CASES)
def test_masked_then_folded_is_what_the_loop_exports(case):
    configuration, iteration = CASES[case]
    masked = osp.insert_masks(onnx_model(), config=configuration, iteration=iteration).model
    for name, array in numbers().items():
        np.testing.assert_array_equal(stored(masked)[name], array)
    folded = osp.fold_masks(masked).model
    scheduler, _ = loop(configuration, iteration)
    exported = scheduler.export_sparse_model()
    assert folded.graph.SerializeToString() == exported.graph.SerializeToString()
    pruned = osp.prune(onnx_model(), masks=masks_in(masked)).model
    assert folded.graph.SerializeToString() == pruned.graph.SerializeToString()
    assert osp.verify(folded).report.ok


def test_the_end_of_a_schedule_is_what_nobody_says_otherwise():
    for configuration, at in ((amba(), 9), (config(scheduler="ADMMScheduler"), None), (probmask(), 6), (ampere(), 0)):
        found = osp.insert_masks(onnx_model(), config=configuration)
        if at is not None:
            same(
                masks_in(found.model),
                masks_in(osp.insert_masks(onnx_model(), config=configuration, iteration=at).model),
            )
    assert osp.insert_masks(onnx_model(), config=amba()).report.details["moment"]["level"] == 60


def test_a_level_is_a_stage_or_the_share_that_goes():
    same(
        masks_in(osp.insert_masks(onnx_model(), config=amba(), level=30).model),
        masks_in(osp.insert_masks(onnx_model(), config=amba(), iteration=4).model),
    )
    same(
        masks_in(osp.insert_masks(onnx_model(), config=config(target=None), level=75).model),
        masks_in(osp.insert_masks(onnx_model(), config=config(target=0.75)).model),
    )
    with refusing(OptionError):
        osp.insert_masks(onnx_model(), config=amba(), level=50)
    with refusing(OptionError):
        osp.insert_masks(onnx_model(), config=ampere(), level=50)
    with refusing(OptionError):
        osp.insert_masks(onnx_model(), config=config(target=None))


def test_a_target_gives_the_caps_of_its_chip():
    by_target = osp.insert_masks(onnx_model(), config=amba(), level=60, target="amba:cv22").model
    by_config = osp.insert_masks(onnx_model(), config=amba(prun_hw_aware="cv22"), level=60).model
    same(masks_in(by_target), masks_in(by_config))
    known = {one.key: one.value for one in by_target.metadata_props}
    assert known["onnxsparse.mask.target"] == "amba:cv22"
    assert known["onnxsparse.mask.sparsity"] == "0.6"
    assert json.loads(known["onnxsparse.mask.schedule"])["level"] == 60
    assert osp.verify(osp.fold_masks(by_target).model).report.ok
    with refusing(OptionError):
        osp.insert_masks(onnx_model(), config=amba(), target="ampere")
    with refusing(OptionError):
        osp.insert_masks(onnx_model(), config=amba(prun_hw_aware="cv25"), target="amba:cv22")


def trained(proto, hidden=0.0):
    """What a stranger makes of a masked file: other numbers, and anything under its masks."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    arrays = stored(made)
    for at, tensor in enumerate(made.graph.initializer):
        if tensor.name in SHAPES:
            noise = np.random.default_rng(at).standard_normal(tensor.dims).astype(np.float32)
            array = arrays[tensor.name] * np.float32(0.9) + np.float32(0.02) * noise
            keep = masks_in(made).get(tensor.name, np.True_)
            tensor.CopyFrom(numpy_helper.from_array(np.where(keep, array, array + np.float32(hidden)), tensor.name))
    return made


def continued(configuration, first, then, weights):
    """A loop whose weights become others between two iterations."""
    scheduler, model = loop(configuration, first)
    masks = model.masks()
    for site in model.sites:
        live = model.weight(site.key)
        live[...] = np.where(masks.get(site.key, np.True_), weights[f"{site.name}.weight"], 0)
    scheduler.prune_model(model, then)
    return masks_of(scheduler)


@for_each("hidden", [0.0, 5.0])
@for_each(
    ("configuration", "first", "then"),
    [
        (amba(), 0, 7),
        (amba(), 0, 3),
        (config(), 0, 1),
        (config(uniform=False), 0, 1),
        (config(kwargs={"mask_is_static": True}), 0, 1),
        (ampere(), 0, 1),
        (probmask(), 6, 8),
        (config(scheduler="ADMMScheduler", **ADMM), 4, 8),
    ],
)
def test_next_masks_are_those_of_a_loop_that_went_on(configuration, first, then, hidden):
    masked = osp.insert_masks(onnx_model(), config=configuration, iteration=first).model
    foreign = trained(masked, hidden)
    result = osp.insert_masks(foreign, config=configuration, iteration=then)
    weights = stored(foreign)
    same(masks_in(result.model), continued(configuration, first, then, weights))
    for name in SHAPES:
        np.testing.assert_array_equal(stored(result.model)[name], weights[name], err_msg="weights are kept")
    assert sum(node.op_type == "Mul" for node in result.model.graph.node) == len(masks_in(result.model))
    assert osp.verify(osp.fold_masks(result.model).model).report.ok


def test_what_is_pruned_stays_so_without_any_metadata():
    masked = osp.insert_masks(onnx_model(), config=amba(), level=30).model
    before = masks_in(masked)
    foreign = trained(masked, hidden=5.0)
    del foreign.metadata_props[:]
    after = masks_in(osp.insert_masks(foreign, config=amba(), level=60).model)
    for name, keep in before.items():
        assert not (after[name] & ~keep).any()


def test_another_configuration_is_said():
    masked = osp.insert_masks(onnx_model(), config=amba(), level=30).model
    notes = osp.insert_masks(masked, config=amba(prun_algo=0), level=60).report.notes
    assert any("of another configuration" in note for note in notes)
    assert not any("another" in note for note in osp.insert_masks(masked, config=amba(), level=60).report.notes)


def test_a_prepared_scheduler_puts_in_the_masks_that_it_has():
    scheduler, model = loop(amba(), 7)
    found = scheduler.insert_masks(model)
    same(masks_in(found.model), masks_of(scheduler))
    assert osp.fold_masks(found.model).model.graph == scheduler.export_sparse_model().graph
    with refusing(OptionError):
        scheduler.insert_masks(model, iteration=3)
    with refusing(OptionError):
        scheduler.insert_masks(onnx_model(), levl=3)
    fresh = build_sparse_scheduler(amba())
    same(masks_in(fresh.insert_masks(onnx_model(), level=60).model), masks_of(scheduler))
    with refusing(OptionError):
        fresh.insert_masks(object())


@trains
def test_masks_in_the_middle_of_a_training_are_those_of_its_export():
    scheduler, model = loop(config(), 0)
    for step in range(2):
        scheduler.prune_model(model, step)
        model.step(batch(step))
    folded = osp.fold_masks(scheduler.insert_masks(model).model).model
    assert folded.graph == scheduler.export_sparse_model().graph


def test_corrected_numbers_are_written_and_said():
    configuration = config(kwargs={"weight_correction": True})
    found = osp.insert_masks(onnx_model(), config=configuration)
    assert any("weight_correction" in note for note in found.report.notes)
    scheduler, _ = loop(configuration, 0)
    assert osp.fold_masks(found.model).model.graph == scheduler.export_sparse_model().graph


def test_nothing_is_written_but_the_model(tmp_path):
    folders = {"output_dir": str(tmp_path / "out"), "save_dir": str(tmp_path / "save")}
    osp.insert_masks(onnx_model(), config=amba(**folders), output=tmp_path / "masked.onnx")
    assert [one.name for one in tmp_path.iterdir()] == ["masked.onnx"]


def test_admm_masks_nothing_before_its_third(tmp_path):
    found = osp.insert_masks(onnx_model(), config=config(scheduler="ADMMScheduler", **ADMM), iteration=1)
    assert not masks_in(found.model)
    assert any("masks nothing before iteration 4" in note for note in found.report.notes)


def test_words_that_do_not_go_together():
    for options, said in (
        ({"config": amba(), "sparsity": 0.5}, "config= says what is masked; leave sparsity= out"),
        ({"config": amba(), "epoch": 3}, "leave epoch= out"),
        ({"config": amba(), "iteration": 3, "level": 30}, "leave one out"),
        ({"config": amba(), "iteration": -1}, "whole number from 0"),
        ({"config": amba(), "level": 100}, "from 0 to below 100"),
        ({"iteration": 3, "pattern": "2:4"}, "iteration= goes with config="),
        ({"epoch": 3, "pattern": "2:4"}, "epoch= goes with recipe="),
        ({"config": config(target=0.5), "target": "amba"}, "prunes for no target"),
    ):
        with pytest.raises(OptionError, match=said):
            osp.insert_masks(onnx_model(), **options)


def test_on_the_command_line(tmp_path, capsys):
    model, text, out = tmp_path / "m.onnx", tmp_path / "s.yaml", tmp_path / "o.onnx"
    onnx.save(onnx_model(), model)
    text.write_text(json.dumps(amba()))
    assert main(["mask", str(model), "-o", str(out), "--config", str(text), "--level", "30"]) == 0
    assert "masks of AmbaLevelPruneScheduler at iteration 0, level 30" in capsys.readouterr().out
    again = tmp_path / "p.onnx"
    assert main(["mask", str(out), "-o", str(again), "--config", str(text), "--iteration", "7", "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["details"]["moment"]["iteration"] == 7
    schema = json.loads((Path(osp.__file__).parent / "report" / "schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(report)
    recipe = tmp_path / "r.yaml"
    recipe.write_text("level: 0.8\n" + RECIPES["gradual"].replace("0.8", "eval(level)"))
    asked = ["mask", str(again), "-o", str(out), "--overwrite", "--recipe", str(recipe), "--variables", "level=0.9"]
    assert main([*asked, "--epoch", "6", "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(schema).validate(report)
    assert report["details"]["moment"]["epoch"] == 6
    assert round(report["totals"]["zeros"] / report["totals"]["elements"], 2) == 0.9
    assert main(["mask", str(model), "-o", str(out), "--overwrite", "--lenient", "--pattern", "2:4"]) == 2
    assert main(["mask", str(model), "-o", str(out), "--config", str(tmp_path / "none.yaml")]) == 2


# -- recipes

GRADUAL = """
modifiers:
- !EpochRangeModifier
  start_epoch: 0.0
  end_epoch: 7.0
- !GMPruningModifier
  start_epoch: 1.0
  end_epoch: 5.0
  update_frequency: {every}
  init_sparsity: 0.05
  final_sparsity: 0.8
  params: __ALL_PRUNABLE__
  leave_enabled: {leave}
"""
HELD = """
- !ConstantPruningModifier
  start_epoch: 3.0
  end_epoch: -1.0
  params: ['stem.weight']
"""
GROUPS = """
modifiers:
- !EpochRangeModifier
  start_epoch: 0.0
  end_epoch: 7.0
- !ACDCPruningModifier
  start_epoch: 0.0
  end_epoch: 6.0
  update_frequency: 1.0
  compression_sparsity: 0.7
  params: ['wide.weight', 'point.weight']
  global_sparsity: True
"""
RECIPES = {
    "gradual": GRADUAL.format(every=1.0, leave="True"),
    "drifting": GRADUAL.format(every=0.3, leave="True"),
    "every step": GRADUAL.format(every=-1, leave="True"),
    "let go": GRADUAL.format(every=1.0, leave="False"),
    "held": GRADUAL.format(every=1.0, leave="False") + HELD,
    "by turns": GROUPS,
}


def managed(recipe, per_epoch, steps):
    """What SparseML's manager has masked in torch before a step, where nothing moves."""
    import torch

    from onnxsparse.dialects.sparseml import ScheduledModifierManager

    net = torch_module()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    manager = ScheduledModifierManager.from_yaml(recipe)
    wrapped = manager.modify(net, optimizer, steps_per_epoch=per_epoch)
    for step in range(steps + 1):
        x, y = (torch.from_numpy(array) for array in batch(step))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        wrapped.step()
    return {name: net.get_submodule(name[: -len(".weight")]).weight.detach().numpy() != 0 for name in SHAPES}


@needs_torch
@for_each("steps", [0, 3, 4, 11, 14, 20, 25])
@for_each("recipe", RECIPES)
def test_masks_of_a_recipe_are_those_of_its_manager(recipe, steps):
    text, per_epoch = RECIPES[recipe], 4
    found = osp.insert_masks(
        onnx_model(), recipe=osp.Recipe.load(text), epoch=steps / per_epoch, steps_per_epoch=per_epoch
    )
    masks, expected = masks_in(found.model), managed(text, per_epoch, steps)
    open_again = recipe == "let go" and steps >= 20
    if open_again:
        assert not masks
    else:
        dense = {name: np.ones(shape, bool) for name, shape in SHAPES.items()}
        zeros = {**dense, **masks}
        if recipe == "by turns" and not masks:
            return  # a dense phase: what was pruned is zero in the manager, and free
        same(zeros, expected if recipe != "held" else {**expected, **{n: zeros[n] for n in zeros if n not in masks}})


@pytest.mark.parametrize("recipe", ["gradual", "every step", "by turns"])
def test_the_end_of_a_recipe_is_its_last_level(recipe):
    found = osp.insert_masks(onnx_model(), recipe=osp.Recipe.load(RECIPES[recipe]))
    masks = masks_in(found.model)
    if recipe == "by turns":
        size = sum(mask.size for mask in masks.values())
        assert sum(int((~mask).sum()) for mask in masks.values()) == round(0.7 * size)
    else:
        for name, mask in masks.items():
            assert int((~mask).sum()) == int(np.floor(0.8 * mask.size + 0.5)), name
    assert osp.verify(osp.fold_masks(found.model).model).report.ok


@trains
def test_masks_of_a_recipe_are_those_of_finetune():
    x, labels = batch(0, 32)
    tuned = osp.finetune(
        onnx_model(), data={"x": x, "labels": labels}, loss="cross-entropy", lr=1e-30, optimizer="sgd", batch_size=8,
        recipe=osp.Recipe.load(RECIPES["gradual"]),
    )  # fmt: skip
    zeros = {name: array != 0 for name, array in stored(tuned.model).items() if name in SHAPES}
    same(masks_in(osp.insert_masks(onnx_model(), recipe=osp.Recipe.load(RECIPES["gradual"])).model), zeros)


def test_next_masks_of_a_recipe_keep_what_is_pruned():
    recipe = osp.Recipe.load(RECIPES["gradual"])
    first = osp.insert_masks(onnx_model(), recipe=recipe, epoch=2).model
    foreign = trained(first, hidden=5.0)
    second = osp.insert_masks(foreign, recipe=recipe, epoch=4).model
    for name, keep in masks_in(first).items():
        assert not (masks_in(second)[name] & ~keep).any()
        assert masks_in(second)[name].sum() < keep.sum()
        np.testing.assert_array_equal(stored(second)[name], stored(foreign)[name])


def test_n_of_m_on_its_way_is_promised_as_single_numbers():
    text = RECIPES["gradual"].replace("final_sparsity: 0.8", 'final_sparsity: 0.5\n  mask_type: "2:4"')
    text = text.replace("__ALL_PRUNABLE__", "['wide.weight', 'point.weight']")
    middle = osp.insert_masks(onnx_model(), recipe=osp.Recipe.load(text), epoch=2)
    assert middle.report.row("wide.weight").pattern == "unstructured"
    end = osp.insert_masks(onnx_model(), recipe=osp.Recipe.load(text))
    assert end.report.row("wide.weight").pattern == "2:4"
    assert osp.verify(osp.fold_masks(end.model).model, pattern="2:4", include=["wide.weight"]).report.ok


def test_a_recipe_of_our_own_is_what_it_comes_to():
    text = "modifiers:\n- !pruning\n  pattern: unstructured\n  sparsity: 0.5\n  allocation: uniform\n"
    found = osp.insert_masks(onnx_model(), recipe=osp.Recipe.load(text, strict=True))
    same(masks_in(found.model), masks_in(osp.insert_masks(onnx_model(), pattern="unstructured", sparsity=0.5).model))
    with refusing(OptionError):
        osp.insert_masks(onnx_model(), recipe=osp.Recipe.load(text), epoch=1)
