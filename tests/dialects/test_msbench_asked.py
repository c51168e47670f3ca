"""What a loop asks of a scheduler that cannot be what it means is said, once."""

from __future__ import annotations

import pytest

from onnxsparse.dialects.msbench import build_sparse_scheduler, preset
from onnxsparse.engines.ort import library as ort
from onnxsparse.engines.torch import library as torch_library
from onnxsparse.errors import OptionError
from tests.cases import for_each
from tests.dialects.nets import SIZE, batch, onnx_model, torch_module
from tests.messages import refusing

PLAIN = {"mask_generator": {"type": "NormalMaskGenerator"}, "scheduler": {"type": "BaseScheduler"}}
UNPRUNED = {
    "levels": "prune_model was not called",
    "a level": "prune_model was not called",
    "admm": "prune_model was not called",
    "probmask": "prune_model was not called",
    "groups": "prune_model was not called",
    "ampere": "init_optimizer was not called",
    "no level": "has no levels of its own",
    "nobody draws": "ProbMaskGenerator needs ProbMaskPruneScheduler",
    "str": "",
    "fcpts": "",
}


def prepared(options=None, **kwargs):
    config = preset("amba")
    config["scheduler"]["kwargs"].update({"total_iters": 4, "sparsity_table": [30, 60], **kwargs})
    scheduler = build_sparse_scheduler(config)
    return scheduler, scheduler.prepare_sparse_model(onnx_model(), **(options or {}))


def said(scheduler, words):
    return sum(words in note for note in scheduler.notes)


def test_an_export_before_anything_is_pruned_is_said(tmp_path):
    scheduler, model = prepared()
    scheduler.export_sparse_onnx(model, None, tmp_path / "dense")
    scheduler.export_sparse_model(model)
    assert said(scheduler, "has no zeros: call prune_model") == 1
    scheduler, model = prepared()
    scheduler.prune_model(model, 0)
    scheduler.export_sparse_model(model)
    assert not said(scheduler, "has no zeros")


def test_masks_of_an_optimizer_need_no_iteration():
    for begun in (True, False):
        scheduler = build_sparse_scheduler("ampere")
        model = scheduler.prepare_sparse_model(onnx_model())
        if begun:
            scheduler.init_optimizer("sgd")
        scheduler.export_sparse_model(model)
        assert said(scheduler, "has no zeros") == (not begun)


@pytest.mark.parametrize(
    ("iterations", "back", "beyond"),
    [((0, 1, 1, 2, 3), 0, 0), ((0, 2, 1, 0), 1, 0), ((3, 4, 5), 0, 1), ((2, 3), 0, 0)],
)
def test_iterations_that_go_back_or_beyond_are_said_once(iterations, back, beyond):
    scheduler, model = prepared()
    for iteration in iterations:
        scheduler.prune_model(model, iteration)
    assert said(scheduler, "earlier iteration") == back
    assert said(scheduler, "after total_iters 4") == beyond


def test_levels_begin_at_init_lr():
    rates = []
    for options, kwargs in (({}, {"init_lr": 0.02}), ({"lr": 0.02}, {})):
        scheduler, model = prepared(options, **kwargs)
        scheduler.prune_model(model, 0)
        rates.append(model.pace.rate)
        assert not scheduler.notes
    assert rates[0] == rates[1] > 0.015
    scheduler, model = prepared({"lr": 0.01}, init_lr=0.02)
    assert model.options.lr == 0.01
    assert said(scheduler, "init_lr 0.02 has no effect beside lr=0.01") == 1
    with refusing(OptionError):
        prepared(init_lr=-1)


def configured(kind):
    if kind in ("levels", "probmask", "ampere", "str"):
        config = preset("amba" if kind == "levels" else kind)
        stamps = {"total_iterations": 9, "warmup_iteration_stamps": 1, "finetune_iteration_stamps": 6}
        levels = {"total_iters": 9, "sparsity_table": [30, 60], "default_input_shape": [1, 3, SIZE, SIZE]}
        config["scheduler"].setdefault("kwargs", {}).update({"levels": levels, "probmask": stamps}.get(kind, {}))
        return config
    return {
        "a level": {**PLAIN, "sparsity": {"target_sparsity": 0.5}},
        "admm": {
            **PLAIN,
            "sparsity": {"target_sparsity": 0.5},
            "scheduler": {"type": "ADMMScheduler", "kwargs": {"iters_per_epoch": 1, "max_iters": 9}},
        },
        "groups": {"mask_generator": {"type": "NMMaskGenerator"}},
        "no level": PLAIN,
        "nobody draws": {"mask_generator": {"type": "ProbMaskGenerator"}, "scheduler": {"type": "STRScheduler"}},
        "fcpts": {"mask_generator": {"type": "FCPTSMaskGenerator"}},
    }[kind]


def trained_alone(scheduler, steps, net=None, calls=False, before=True):
    """A loop of torch, or over an ONNX model where no module is given."""
    model = scheduler.prepare_sparse_model(net or onnx_model(), **({} if net else {"optimizer": "sgd", "lr": 0.01}))
    optimizer = net and torch_library.torch().optim.SGD(model.parameters(), lr=0.01)
    for iteration in range(steps):
        if calls and before:
            scheduler.prune_model(model, iteration)
        if net is None:
            model.step(batch(iteration))
        else:
            images, labels = (torch_library.torch().from_numpy(one) for one in batch(iteration))
            optimizer.zero_grad()
            torch_library.torch().nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        if calls and not before:
            scheduler.prune_model(model, iteration)
    return model


@pytest.mark.skipif(not torch_library.available(), reason="needs torch")
@pytest.mark.parametrize("kind", UNPRUNED)
def test_a_module_that_trains_unpruned_is_told_in_the_first_steps(kind, capsys):
    scheduler = build_sparse_scheduler(configured(kind))
    trained_alone(scheduler, 1, torch_module())
    assert not said(scheduler, "becomes zero")
    scheduler = build_sparse_scheduler(configured(kind))
    trained_alone(scheduler, 3, torch_module())
    assert said(scheduler, "becomes zero") == bool(UNPRUNED[kind])
    assert said(scheduler, UNPRUNED[kind] or "becomes zero") == bool(UNPRUNED[kind])
    assert capsys.readouterr().err.count("becomes zero") == bool(UNPRUNED[kind])


@pytest.mark.skipif(not (ort.available() or torch_library.available()), reason="needs an engine that trains")
@pytest.mark.parametrize("kind", ["levels", "ampere", "no level", "nobody draws", "str"])
def test_an_onnx_model_that_trains_unpruned_is_told_in_the_first_steps(kind):
    scheduler = build_sparse_scheduler(configured(kind))
    trained_alone(scheduler, 3)
    assert said(scheduler, UNPRUNED[kind] or "becomes zero") == bool(UNPRUNED[kind])


@pytest.mark.skipif(not torch_library.available(), reason="needs torch")
@for_each("kind", ["levels", "a level", "probmask", "groups", "no level", "nobody draws", "str"])
@for_each("before", [True, False])
def test_a_loop_that_prunes_is_told_what_is_in_the_configuration_alone(kind, before):
    """Some loops call prune_model after their step."""
    scheduler = build_sparse_scheduler(configured(kind))
    trained_alone(scheduler, 4, torch_module(), calls=True, before=before)
    assert said(scheduler, "becomes zero") == (kind in ("no level", "nobody draws"))


@pytest.mark.skipif(not torch_library.available(), reason="needs torch")
def test_steps_of_other_networks_are_not_counted():
    scheduler = build_sparse_scheduler(configured("levels"))
    scheduler.prepare_sparse_model(torch_module())
    trained_alone(build_sparse_scheduler(configured("levels")), 3, torch_module())
    assert not scheduler.notes


# -- loops that end before the goal

SHORT = {
    "levels": (
        4,
        5,
        "level 60 is not reached: ",
        " after 4 of 9 iterations (total_iters), and it begins at iteration 4",
    ),
    "admm": (
        2,
        4,
        "target_sparsity 0.5 is not reached: 0.0 % of the weights are zero",
        " after 2 of 9 iterations (max_iters), and masks begin at iteration 3",
    ),
    "probmask": (
        4,
        7,
        "prune_rate 0.9",
        " after 4 of 9 iterations (total_iterations), and the subnet is drawn at iteration 6",
    ),
    "str": (
        2,
        2,
        "sparsity by thresholds that train is not reached: 0.0 % of the weights are zero",
        " after 2 iterations, and no number is below its threshold",
    ),
    "fcpts": (
        0,
        1,
        "sparsity by thresholds that train is not reached: 0.0 % of the weights are zero",
        " after 0 iterations, and no number is below its threshold",
    ),
}
"""Iterations that are too few and enough, and what is said of the few."""


def ended(kind, length, net, met=False):
    """A loop without steps that ends after so many iterations."""
    config = configured(kind)
    if kind == "probmask":
        config["scheduler"]["kwargs"]["prune_rate"] = 0.9
    if kind in ("str", "fcpts"):
        start = {"sInit_value": -5.0 if met else -200.0}  # thresholds of 0.0067 and 0
        config["fake_sparse"] = {"type": f"{kind.upper()}FakeSparse", "kwargs": start}
    scheduler = build_sparse_scheduler(config)
    model = scheduler.prepare_sparse_model(net)
    for iteration in range(length):
        scheduler.prune_model(model, iteration)
    return scheduler, model


def exported(scheduler, model, path, as_file):
    if not as_file:
        scheduler.export_sparse_model(model)
    elif scheduler.network.is_torch:
        scheduler.export_sparse_onnx(model, torch_library.torch().zeros(1, 3, SIZE, SIZE), path)
    else:
        scheduler.export_sparse_onnx(model, None, path)


NETS = [onnx_model, torch_module] if torch_library.available() else [onnx_model]


@pytest.mark.parametrize("kind", SHORT)
@for_each("net", NETS)
@for_each("as_file", [False, True])
def test_a_loop_that_ends_before_its_goal_is_told_at_the_export(kind, net, as_file, tmp_path, capsys):
    few, enough, asked, after = SHORT[kind]
    path = tmp_path / f"{net.__name__}{as_file}"
    capsys.readouterr()
    scheduler, model = ended(kind, few, net())
    assert not said(scheduler, "is not reached")
    exported(scheduler, model, path, as_file)
    exported(scheduler, model, path, as_file=False)
    [note] = [note for note in scheduler.notes if "is not reached" in note]
    assert note.startswith(asked)
    assert after in note
    assert f"{100 * scheduler.compute_sparse_rate():.1f} % of the weights are zero" in note
    assert capsys.readouterr().err.count(f"note: {note}\n") == 1
    scheduler, model = ended(kind, enough, net(), met=True)
    exported(scheduler, model, path, as_file)
    assert not said(scheduler, "is not reached")
    assert "is not reached" not in capsys.readouterr().err


def test_a_longer_training_than_the_loop_has_is_told_at_the_export():
    config = configured("admm")
    config["scheduler"]["kwargs"] = {}
    scheduler = build_sparse_scheduler(config)
    model = scheduler.prepare_sparse_model(onnx_model())
    scheduler.before_run(model, 3, 900)
    for iteration in range(9):
        scheduler.prune_model(model, iteration)
    scheduler.export_sparse_model(model)
    assert said(scheduler, "after 9 of 900 iterations (max_iters), and masks begin at iteration 300") == 1


@for_each("kind", ["levels", "admm", "probmask"])
def test_a_state_says_how_far_a_loop_had_come(kind):
    few, enough, _, after = SHORT[kind]
    for length in (few, enough):
        first, _ = ended(kind, length, onnx_model())
        scheduler, model = ended(kind, 0, onnx_model())
        scheduler.load_state_dict(first.state_dict())
        scheduler.export_sparse_model(model)
        assert said(scheduler, after) == (length == few)


def test_a_state_of_0_1_0_that_does_not_hold_max_iters_goes_on():
    state = ended("admm", 2, onnx_model())[0].state_dict()
    state["facts"]["epoch"] = state["facts"]["epoch"][:2]
    scheduler, model = ended("admm", 0, onnx_model())
    scheduler.load_state_dict(state)
    scheduler.export_sparse_model(model)
    assert said(scheduler, SHORT["admm"][3]) == 1


def test_masks_of_the_last_level_that_were_given_are_its_goal():
    first, model = ended("levels", 9, onnx_model())
    given = {site.name: first.network.masks()[site.key] for site in first.network.sites}
    first.export_sparse_model(model)
    config = configured("levels")
    config["scheduler"]["kwargs"]["mask_dict"] = given
    scheduler = build_sparse_scheduler(config)
    scheduler.export_sparse_model(scheduler.prepare_sparse_model(onnx_model()))
    assert not said(scheduler, "is not reached")
