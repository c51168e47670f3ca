"""The other mask generators and ADMM: masks held against formulas written out again, alike in ONNX, torch and numpy."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxsparse as osp
from onnxsparse.allocations.allocation import pooled
from onnxsparse.dialects.msbench import build_sparse_scheduler
from onnxsparse.dialects.msbench.runner import SparseRunner
from onnxsparse.engines.ort import library as ort
from onnxsparse.engines.torch import library as torch
from onnxsparse.errors import OptionError
from tests.dialects.nets import SHAPES, SIZE, batch, numbers, onnx_model, torch_module, two_of_four
from tests.dialects.test_msbench_runner import Killed, desk, killed_at

ENGINES = [name for name, found in (("ort", ort), ("torch", torch)) if found.available()]
trains = pytest.mark.skipif(not ENGINES, reason="needs an engine that trains")
engines = pytest.mark.parametrize("engine", ENGINES or ["none"])
needs_torch = pytest.mark.skipif(not torch.available(), reason="needs torch")
MODELS = ["onnx", pytest.param("torch", marks=needs_torch)]


def config(generator, kwargs=None, target=None, uniform=True, scheduler="BaseScheduler", fake="FakeSparse", **more):
    made = {
        "mask_generator": {"type": generator, "kwargs": kwargs or {}},
        "fake_sparse": {"type": fake},
        "scheduler": {"type": scheduler, "kwargs": more},
    }
    return made if target is None else {**made, "sparsity": {"target_sparsity": target, "uniform": uniform}}


def prepared(configuration, kind="onnx", **options):
    scheduler = build_sparse_scheduler(configuration)
    model = scheduler.prepare_sparse_model(onnx_model() if kind == "onnx" else torch_module(), **options)
    return scheduler, model


def masks_of(scheduler):
    network = scheduler._network
    return {f"{site.name}.weight": network.masks()[site.key] for site in network.sites if site.key in network.masks()}


def stored(proto):
    return {one.name: numpy_helper.to_array(one) for one in proto.graph.initializer}


def rows(array):
    return array.reshape(len(array), -1).astype(np.float64)


# -- formulas


def norms(order):
    return lambda array: np.linalg.norm(rows(array), order, axis=1)


def distances(kind):
    def mean(array):
        flat = rows(array)
        far = np.zeros((len(flat), len(flat)))
        for i, a in enumerate(flat):
            for j, b in enumerate(flat):
                cosine = a @ b / np.sqrt((a @ a) * (b @ b))
                far[i, j] = {"l1": np.abs(a - b).sum(), "l2": np.sqrt(np.square(a - b).sum()), "cos": 1 - cosine}[kind]
        return (far.sum(axis=1) - np.diagonal(far)) / (len(flat) - 1)

    return mean


def nuclear(array):
    whole = np.linalg.norm(rows(array), "nuc")
    return np.array([whole - np.linalg.norm(np.delete(rows(array), i, 0), "nuc") for i in range(len(array))])


WHOLE = {
    "p1": (("NormalMaskGenerator", {"structured": True, "func": "p1"}), norms(1)),
    "p2": (("NormalMaskGenerator", {"structured": True, "func": "p2"}), norms(2)),
    "fpgm-l1": (("FPGMMaskGenerator", {"structured": True, "func": "l1"}), distances("l1")),
    "fpgm-l2": (("FPGMMaskGenerator", {"func": "l2"}), distances("l2")),
    "fpgm": (("FPGMMaskGenerator", {}), distances("l2")),
    "fpgm-cos": (("FPGMMaskGenerator", {"structured": True, "func": "cos"}), distances("cos")),
    "fpgm-cosine": (("FPGMMaskGenerator", {"func": "cosine"}), distances("cos")),
    "nuclear": (("NuclearMaskGenerator", {"structured": True}), nuclear),
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("name", WHOLE)
def test_whole_outputs_go_by_the_formula(name, kind, tmp_path):
    given, formula = WHOLE[name]
    scheduler, model = prepared(config(*given, target=0.4), kind)
    scheduler.prune_model(model, 0)
    found = masks_of(scheduler)
    assert set(found) == set(SHAPES)
    for layer, array in numbers().items():
        wanted = np.ones(len(array), bool)
        wanted[np.argsort(formula(array), kind="stable")[: int(0.4 * len(array) + 0.5)]] = False
        np.testing.assert_array_equal(found[layer].reshape(len(array), -1).any(axis=1), wanted, err_msg=layer)
        np.testing.assert_array_equal(found[layer].reshape(len(array), -1).all(axis=1), wanted, err_msg=layer)
    path = scheduler.export_sparse_onnx(model, _dummy(kind), tmp_path / "sparse")
    assert osp.verify(path).report.ok
    assert osp.verify(path, pattern="filter", sparsity=0.4, allow=["small", "stem", "output"]).report.ok


def _dummy(kind):
    return torch.torch().zeros(1, 3, SIZE, SIZE) if kind == "torch" else None


@pytest.mark.parametrize("kind", MODELS)
def test_two_of_four_where_inputs_hold_whole_groups(kind, tmp_path):
    scheduler, model = prepared(config("NMMaskGenerator"), kind)
    scheduler.prune_model(model, 0)
    found = masks_of(scheduler)
    assert set(found) == {"point.weight", "wide.weight", "head.weight"}
    for name, mask in found.items():
        np.testing.assert_array_equal(mask, two_of_four(numbers()[name]), err_msg=name)
    path = scheduler.export_sparse_onnx(model, _dummy(kind), tmp_path / "sparse")
    assert osp.verify(path).report.ok


@pytest.mark.parametrize("name", ["NMMaskGenerator", "FPGMMaskGenerator", "NuclearMaskGenerator"])
def test_masks_that_are_static_are_chosen_once(name):
    for static in (False, True):
        target = None if name == "NMMaskGenerator" else 0.25
        scheduler, model = prepared(config(name, {"mask_is_static": static}, target))
        scheduler.prune_model(model, 0)
        before = masks_of(scheduler)
        for site in model.sites:
            model.weight(site.key)[...] = model.weight(site.key)[::-1].copy()
        scheduler.prune_model(model, 1)
        same = all((mask == before[layer]).all() for layer, mask in masks_of(scheduler).items())
        assert same == static


# -- all layers together


@pytest.mark.parametrize("func", ["Magnitude", "L1Normalized", "L2Normalized"])
def test_single_numbers_of_all_layers_together(func):
    scheduler, model = prepared(config("NormalMaskGenerator", {"func": func}, 0.6, uniform=False))
    scheduler.prune_model(model, 0)
    scale = {"Magnitude": lambda a: 1.0, "L1Normalized": lambda a: np.abs(a).sum(), "L2Normalized": np.linalg.norm}
    wide = {name: np.abs(array.astype(np.float64)) for name, array in numbers().items()}
    scores = {name: array / scale[func](array) for name, array in wide.items()}
    size = sum(array.size for array in wide.values())
    least = np.sort(np.concatenate([array.reshape(-1) for array in scores.values()]))[int(0.6 * size + 0.5)]
    for name, mask in masks_of(scheduler).items():
        np.testing.assert_array_equal(mask, scores[name] >= least, err_msg=name)
    assert scheduler.compute_sparse_rate(model) == pytest.approx(0.6, abs=1e-4)


def test_whole_outputs_of_all_layers_together():
    scheduler, model = prepared(config("NormalMaskGenerator", {"structured": True, "func": "p1"}, 0.5, uniform=False))
    scheduler.prune_model(model, 0)
    units = [(np.abs(row).mean(), row.size, name) for name, array in numbers().items() for row in rows(array)]
    gone, left = dict.fromkeys(SHAPES, 0), 0.5 * sum(size for _, size, _ in units)
    largest = {name: max(unit for unit in units if unit[2] == name) for name in SHAPES}
    for unit in sorted(one for one in units if one != largest[one[2]]):
        left -= unit[1]
        gone[unit[2]] += left + unit[1] / 2 >= 0
    for name, mask in masks_of(scheduler).items():
        assert int((~rows(mask).astype(bool).any(axis=1)).sum()) == gone[name], name
    assert abs(scheduler.compute_sparse_rate(model) - 0.5) < 288 / 10720


def test_a_pool_of_units_of_different_sizes():
    found = pooled({"a": np.array([1.0, 5.0, 3.0]), "b": np.array([2.0, 4.0]), "c": np.zeros(0)}, {"a": 2, "b": 6}, 0.4)
    assert found == {"a": 1, "b": 1, "c": 0}  # 7 of 18 wanted: 2 go, then 6, and 2 more would be further away
    assert pooled({"a": np.array([1.0, 1.0]), "b": np.array([9.0])}, {"a": 1, "b": 1}, 0.99) == {"a": 1, "b": 0}


# -- thresholds of steps


@pytest.mark.parametrize("kind", MODELS)
def test_hard_thresholds_leave_weights_as_they_are(kind):
    made = config("FCPTSMaskGenerator", fake="FCPTSFakeSparse")
    made["fake_sparse"]["kwargs"] = {"sInit_value": -3}
    scheduler, model = prepared(made, kind)
    limit = 1 / (1 + np.exp(3.0))
    exported = scheduler.export_sparse_model(model)
    found = stored(exported) if kind == "onnx" else {k: v.detach().numpy() for k, v in exported.named_parameters()}
    for name, array in numbers().items():
        np.testing.assert_array_equal(found[name], np.where(np.abs(array) > limit, array, 0), err_msg=name)


def test_hard_thresholds_begin_where_the_target_is():
    scheduler, model = prepared(config("FCPTSMaskGenerator", target=0.7, fake="FCPTSFakeSparse"))
    for name, array in stored(scheduler.export_sparse_model(model)).items():
        assert abs((array == 0).sum() - 0.7 * array.size) <= 1, name


@trains
@engines
def test_hard_thresholds_train(engine):
    scheduler, model = prepared(
        config("FCPTSMaskGenerator", target=0.5, fake="FCPTSFakeSparse"), engine=engine, optimizer="sgd", lr=0.05
    )
    before = {site.key: float(model.trained(site.key)["threshold"][0]) for site in model.sites}
    for iteration in range(3):
        scheduler.prune_model(model, iteration)
        model.step(batch(iteration))
    assert all(float(model.trained(key)["threshold"][0]) != start for key, start in before.items())
    assert 0.3 < scheduler.compute_sparse_rate(model) < 0.7


# -- the same numbers, the same masks

EVERY = {
    "normal": ("NormalMaskGenerator", {}, 0.6),
    "p1": ("NormalMaskGenerator", {"structured": True, "func": "p1"}, 0.4),
    "p2": ("NormalMaskGenerator", {"structured": True, "func": "p2"}, 0.4),
    "nm": ("NMMaskGenerator", {}, None),
    "fpgm-l1": ("FPGMMaskGenerator", {"func": "l1"}, 0.4),
    "fpgm-l2": ("FPGMMaskGenerator", {"func": "l2"}, 0.4),
    "fpgm-cos": ("FPGMMaskGenerator", {"func": "cos"}, 0.4),
    "nuclear": ("NuclearMaskGenerator", {}, 0.4),
}


@trains
@pytest.mark.parametrize("name", EVERY)
def test_masks_in_each_engine_and_in_torch_are_those_without_one(name):
    """Numbers with many ties, in an engine that has trained already; in a module of torch; and at rest."""
    generator, kwargs, target = EVERY[name]
    coarse = {one: np.round(array * 8).astype(np.float32) / 8 for one, array in numbers().items()}
    found = []
    for kind, engine in [("onnx", None), *(("onnx", one) for one in ENGINES), ("torch", None)]:
        if kind == "torch" and not torch.available():
            continue
        scheduler, model = prepared(config(generator, kwargs, target), kind, **({"engine": engine} if engine else {}))
        if engine:
            model.step(batch(0))
        for site in scheduler._network.sites:
            scheduler._network.weight(site.key)[...] = coarse[f"{site.name}.weight"]
        scheduler.prune_model(model, 0)
        found.append(masks_of(scheduler))
    assert len(found) > 1
    for other in found[1:]:
        assert other.keys() == found[0].keys()
        for layer, mask in other.items():
            np.testing.assert_array_equal(mask, found[0][layer], err_msg=layer)


@trains
@engines
def test_decay_raises_trained_thresholds(engine):
    """At a start of -5 few numbers are zero; how many more become so goes by the decay."""
    shares = []
    for decay in (0.0, 0.01, 0.02):
        made = config("STRMaskGenerator", fake="STRFakeSparse", scheduler="STRScheduler")
        made["fake_sparse"]["kwargs"] = {"sInit_value": -5}
        options = {"engine": engine, "optimizer": "sgd:momentum=0.9", "lr": 0.05, "hardness": 0.0}
        scheduler, model = prepared(made, weight_decay=decay, **options)
        before = scheduler.compute_sparse_rate(model)
        for iteration in range(40):
            scheduler.prune_model(model, iteration)
            model.step(batch(iteration % 4))
        shares.append(scheduler.compute_sparse_rate(model))
    assert before < shares[0] < shares[1] < shares[2]
    assert shares[2] > 1.5 * shares[0]


# -- ADMM

RHO = 0.05


def admm(structured=False, func="Magnitude", target=0.6, uniform=True, **more):
    kwargs = {"structured": structured, "func": func}
    settings = {"iters_per_epoch": 2, "max_iters": 12, "rho": RHO, **more}
    return config("NormalMaskGenerator", kwargs, target, uniform, "ADMMScheduler", **settings)


def sparse_part(array, structured, func, target):
    """`array` with what is masked zero, by its own numbers."""
    made = array.copy()
    if not structured:
        drop = int(target * array.size + 0.5)
        made.reshape(-1)[np.argsort(np.abs(array).reshape(-1), kind="stable")[:drop]] = 0
        return made
    order = np.argsort(norms(1 if func == "p1" else 2)(array), kind="stable")
    made[order[: min(int(target * len(array) + 0.5), len(array) - 1)]] = 0
    return made


KINDS = [(False, "Magnitude"), (True, "p1"), (True, "p2")]


@trains
@engines
@pytest.mark.parametrize(("structured", "func"), KINDS)
def test_admm_draws_weights_and_reaches_its_target(engine, structured, func, tmp_path):
    """Z, U and the term, written out again beside the training; then the term's share of every step, by a twin."""
    options = {"engine": engine, "optimizer": "sgd:momentum=0.0", "lr": 0.1, "hardness": 0.0}
    scheduler, model = prepared(admm(structured, func), **options)
    _, twin = prepared(admm(structured, func), **options)
    duals = {site.key: np.zeros(site.shape, np.float32) for site in model.sites}
    anchors = {}
    for iteration in range(4):
        weights = {site.key: model.weight(site.key).copy() for site in model.sites}
        said = scheduler.prune_model(model, iteration)
        if iteration % 2 == 0:
            for key, weight in weights.items():
                whole = weight + duals[key]
                near = sparse_part(whole, structured, func, 0.6)
                duals[key] = duals[key] + weight - near
                anchors[key] = near - duals[key]
        term = RHO / 2 * sum(np.square((weights[key] - anchors[key]).astype(np.float64)).sum() for key in weights)
        assert said["loss"] == pytest.approx(term, rel=1e-5)
        for key, weight in weights.items():
            twin.weight(key)[...] = weight
        samples = batch(iteration, 8 if iteration < 3 else 16)  # twice what the graph takes at once
        model.step(samples)
        twin.step(samples)
        for key, weight in weights.items():
            pulled = twin.weight(key) - 0.1 * RHO * (weight - anchors[key])
            np.testing.assert_allclose(model.weight(key), pulled, atol=2e-6)
    for iteration in range(4, 12):
        assert scheduler.prune_model(model, iteration) == {"loss": 0.0}
        model.step(batch(iteration))
    for site in model.sites:
        weight = model.effective(site.key)
        units = rows(weight).any(axis=1) if structured else weight.reshape(-1) != 0
        assert (~units).sum() == int(0.6 * units.size + 0.5)
    assert osp.verify(scheduler.export_sparse_onnx(model, None, tmp_path / "sparse")).report.ok


@pytest.mark.parametrize("func", ["Magnitude", "L1Normalized", "L2Normalized"])
def test_admm_over_all_layers(func):
    scheduler, model = prepared(admm(False, func, 0.7, uniform=False))
    for iteration in range(12):
        scheduler.prune_model(model, iteration)
    assert scheduler.compute_sparse_rate(model) == pytest.approx(0.7, abs=1e-3)
    shares = {name: 1 - mask.mean() for name, mask in masks_of(scheduler).items()}
    assert max(shares.values()) - min(shares.values()) > 0.05


@needs_torch
@pytest.mark.parametrize(("structured", "func"), KINDS)
def test_admm_in_a_loop_of_ones_own(structured, func):
    """The term is a tensor whose gradient is rho (W - Z + U), and everything is as on the ONNX model."""
    scheduler, net = prepared(admm(structured, func), "torch")
    other, model = prepared(admm(structured, func))
    library = torch.torch()
    for iteration in range(4):
        said, same = scheduler.prune_model(net, iteration), other.prune_model(model, iteration)
        assert float(said["loss"].detach()) == pytest.approx(same["loss"], rel=1e-5)
        net.zero_grad()
        said["loss"].backward()
        network = scheduler._network
        for site in network.sites:
            parameter = network._original(site.key)
            away = network.weight(site.key) - network.kept[f"anchor/{site.key}"]
            np.testing.assert_allclose(parameter.grad.numpy(), RHO * away, rtol=1e-5, atol=1e-8)
            with library.no_grad():
                parameter -= 0.3 * parameter.grad
            twin = next(one for one in model.sites if one.name == site.name)
            model.weight(twin.key)[...] = network.weight(site.key)
            np.testing.assert_array_equal(model.kept[f"anchor/{twin.key}"], network.kept[f"anchor/{site.key}"])
    for each, network in ((scheduler, net), (other, model)):
        assert float(each.prune_model(network, 4)["loss"]) == 0
    for name, mask in masks_of(scheduler).items():
        np.testing.assert_array_equal(mask, masks_of(other)[name], err_msg=name)


@trains
def test_admm_goes_on_from_a_state():
    def loop(scheduler, model, begin, end):
        for iteration in range(begin, end):
            scheduler.prune_model(model, iteration)
            model.step(batch(iteration))

    scheduler, whole = prepared(admm(), optimizer="sgd")
    loop(scheduler, whole, 0, 8)
    for stop in (1, 3, 6):
        first, half = prepared(admm(), optimizer="sgd")
        loop(first, half, 0, stop)
        arrays, facts = half.state()
        arrays = {key: np.array(array) for key, array in arrays.items()}
        second, again = prepared(admm(), optimizer="sgd")
        again.restore(arrays, facts)
        second.resume(first.facts())
        loop(second, again, stop, 8)
        for site in whole.sites:
            np.testing.assert_array_equal(whole.effective(site.key), again.effective(site.key))


@trains
def test_admm_in_a_whole_training_that_is_killed(tmp_path, monkeypatch):
    results = []
    for name, moments in (("whole", ()), ("again", (2, 5, 9))):
        (tmp_path / name).mkdir()
        made = admm()
        made["scheduler"]["kwargs"] = {"rho": RHO}
        path = desk(tmp_path / name, made, trainer={"max_epoch": 4}, saver={"save_freq": 1})
        for moment in moments:
            with monkeypatch.context() as patch:
                killed_at(patch, moment)
                with pytest.raises(Killed):
                    SparseRunner(path, quiet=True).run()
        results.append(SparseRunner(path, quiet=True).run())
    assert results[0] == results[1]
    assert results[0]["zeros"] == pytest.approx(0.6, abs=0.001)
    files = [stored(onnx.load(tmp_path / name / "saved" / "sparse.onnx")) for name in ("whole", "again")]
    assert all((array == files[1][name]).all() for name, array in files[0].items())


def test_epochs_may_be_said_before_the_run():
    scheduler, model = prepared(admm(iters_per_epoch=None, max_iters=None))
    with pytest.raises(OptionError, match="before_run"):
        scheduler.prune_model(model, 0)
    with pytest.raises(OptionError, match="train 3 epochs or more"):
        scheduler.before_run(model, 5, 14)
    scheduler.before_run(model, 2, 12)
    assert scheduler.prune_model(model, 3)["loss"] > 0
    assert scheduler.prune_model(model, 4)["loss"] == 0


# -- what is wrong


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (config("NMMaskGenerater"), "did you mean NMMaskGenerator"),
        (config("FPGMMaskGenerator", {"fun": "l1"}), "did you mean func"),
        (config("FPGMMaskGenerator", {"func": "cosin"}), "did you mean cos"),
        (config("FPGMMaskGenerator", {"structured": False}), "whole outputs"),
        (config("NuclearMaskGenerator", {"structure": True}), "did you mean structured"),
        (config("NormalMaskGenerator", {"func": "L2Normalised"}), "did you mean L2Normalized"),
        (config("NormalMaskGenerator", {"structured": True, "func": "p3"}), "a norm of whole outputs is one of p1"),
        (config("FCPTSMaskGenerator", fake="STRFakeSparse"), "belongs to FCPTSFakeSparse"),
        (admm(max_iter=9), "did you mean max_iters"),
        (admm(max_iters=5), "train 3 epochs or more"),
        (admm(iters_per_epoch=None), "iters_per_epoch is a whole number"),
        (admm(rho=0), "rho is a number above 0"),
        (admm(target=None), "needs sparsity"),
        (config("NMMaskGenerator", scheduler="ADMMScheduler", target=0.5), "any sparsity"),
        (config("STRMaskGenerator", scheduler="ADMMScheduler", target=0.5, fake="STRFakeSparse"), "any sparsity"),
        (config("NMMaskGenerator", scheduler="AmbaLevelPruneScheduler"), "of single numbers"),
    ],
)
def test_what_is_wrong_is_said(given, said):
    with pytest.raises(OptionError, match=said):
        build_sparse_scheduler(given)
