"""MSBench's schedulers on an ONNX model, in each engine that is there."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxsparse as osp
from onnxsparse.dialects.msbench import build_sparse_scheduler, preset
from onnxsparse.engines.ort import library as ort
from onnxsparse.engines.torch import library as torch
from onnxsparse.errors import OptionError, PlanError
from onnxsparse.patterns.transposable import mn_2d_best, mn_2d_greedy
from tests.dialects.nets import SHAPES, batch, numbers, onnx_model, smallest_dropped, two_of_four
from tests.messages import refusing

ENGINES = [name for name, found in (("ort", ort), ("torch", torch)) if found.available()]
trains = pytest.mark.skipif(not ENGINES, reason="needs an engine that trains")
engines = pytest.mark.parametrize("engine", ENGINES or ["none"])

LEVELS = [30, 60]


def amba(total=4, **kwargs):
    config = preset("amba")
    config["scheduler"]["kwargs"].update(total_iters=total, sparsity_table=LEVELS, **kwargs)
    return config


def stored(proto):
    return {one.name: numpy_helper.to_array(one) for one in proto.graph.initializer}


def shares(scheduler, model):
    return {name: float((model.masks()[key] == 0).mean()) for key, name in model.names().items()}


# -- without training: masks are chosen without an engine


def test_masks_of_a_level_are_those_of_the_rule():
    scheduler = build_sparse_scheduler(amba())
    model = scheduler.prepare_sparse_model(onnx_model())
    scheduler.prune_model(model, 0)
    plan = osp.plan(onnx_model(), target="amba", level=30).report
    masks = {model.names()[key]: mask for key, mask in model.masks().items()}
    for name, array in numbers().items():
        np.testing.assert_array_equal(masks[name], smallest_dropped(array, plan.row(name).dropped), err_msg=name)
    assert abs(scheduler.compute_sparse_rate(model) - 0.3) <= 0.015


def test_levels_come_at_their_iterations_and_stay_sparse():
    scheduler = build_sparse_scheduler(amba(total=7))
    model = scheduler.prepare_sparse_model(onnx_model())
    seen = []
    for iteration in range(7):
        scheduler.prune_model(model, iteration)
        seen.append(round(scheduler.compute_sparse_rate(model), 1))
    assert seen == [0.3, 0.3, 0.3, 0.6, 0.6, 0.6, 0.6]


def test_a_loop_that_begins_in_the_middle_has_the_masks_of_its_stage():
    scheduler = build_sparse_scheduler(amba(total=10))
    model = scheduler.prepare_sparse_model(onnx_model())
    scheduler.prune_model(model, 7)
    assert abs(scheduler.compute_sparse_rate(model) - 0.6) <= 0.015


def test_masks_that_are_given_are_the_masks():
    masks = {name[: -len(".weight")]: np.arange(np.prod(shape)).reshape(shape) % 2 for name, shape in SHAPES.items()}
    scheduler = build_sparse_scheduler(amba(total=10, mask_dict={f"module.{k}": v for k, v in masks.items()}))
    model = scheduler.prepare_sparse_model(onnx_model())
    scheduler.prune_model(model, 7)
    found = {model.names()[key]: mask for key, mask in model.masks().items()}
    for name, mask in masks.items():
        np.testing.assert_array_equal(found[f"{name}.weight"], mask != 0)
    with refusing(PlanError):
        build_sparse_scheduler(amba(mask_dict={"sten": masks["stem"]})).prepare_sparse_model(onnx_model())


@pytest.mark.parametrize(
    ("kwargs", "dense"),
    [
        ({"no_prune_keyword": "", "no_prune_layer": ""}, set()),
        ({"no_prune_keyword": "ee"}, {"deep.weight"}),
        ({"no_prune_keyword": "hea,/stem"}, {"head.weight", "stem.weight"}),
        ({"no_prune_layer": "module.point, wid"}, {"point.weight"}),
        ({"no_prune_layer": "/wide/Conv"}, {"wide.weight"}),
        ({"dw_no_prune": True}, {"deep.weight"}),
    ],
)
def test_layers_that_stay_dense(kwargs, dense):
    scheduler = build_sparse_scheduler(amba(**kwargs))
    model = scheduler.prepare_sparse_model(onnx_model())
    scheduler.prune_model(model, 0)
    found = stored(scheduler.export_sparse_model(model))
    assert {name for name, array in found.items() if (array != 0).all()} == dense


def test_leaf_modules_stay_dense():
    for leaf, dense in (("Gemm", {"head.weight"}), ("/wide", {"wide.weight"}), ("deep", {"deep.weight"})):
        scheduler = build_sparse_scheduler({**amba(), "leaf_module": [leaf]})
        model = scheduler.prepare_sparse_model(onnx_model())
        scheduler.prune_model(model, 0)
        found = stored(scheduler.export_sparse_model(model))
        assert {name for name, array in found.items() if (array != 0).all()} == dense


def test_uniform_levels():
    scheduler = build_sparse_scheduler(amba(prun_algo=0))
    model = scheduler.prepare_sparse_model(onnx_model())
    scheduler.prune_model(model, 0)
    assert all(abs(share - 0.3) < 0.01 for share in shares(scheduler, model).values())


def test_a_chip_caps_its_layers_and_the_result_verifies(tmp_path):
    scheduler = build_sparse_scheduler(amba(prun_hw_aware="cv22"))
    model = scheduler.prepare_sparse_model(onnx_model())
    scheduler.prune_model(model, 3)
    path = scheduler.export_sparse_onnx(model, None, tmp_path / "sparse")
    report = osp.verify(path, target="amba:cv22", level=60).report
    assert report.ok, report.notes
    assert report.row("stem.weight").wasted == 0


def test_files_of_a_run(tmp_path):
    config = amba(output_dir=str(tmp_path / "out"), save_dir=str(tmp_path / "saved"), do_sparse_analysis=True)
    scheduler = build_sparse_scheduler(config)
    model = scheduler.prepare_sparse_model(onnx_model())
    for iteration in range(4):
        scheduler.prune_model(model, iteration)
    assert sorted(one.name for one in (tmp_path / "saved").iterdir()) == [
        f"global_sparse_rate_{level}.{ending}" for level in LEVELS for ending in ("json", "onnx")
    ]
    for level in LEVELS:
        assert osp.verify(tmp_path / "saved" / f"global_sparse_rate_{level}.onnx", target="amba", level=level).report.ok
    facts = json.loads((tmp_path / "saved" / "global_sparse_rate_60.json").read_text())
    assert facts["prune_step"] == 1
    total = facts["layers"][-1]
    assert total["parameters"] == sum(int(np.prod(shape)) for shape in SHAPES.values())
    assert total["macs"] == 16 * 36 * 27 + 16 * 36 * 9 + 32 * 36 * 16 + 32 * 9 * 288 + 256
    left = sum(round(row["macs"] * row["nonzero"] / row["parameters"]) for row in facts["layers"][:-1])
    assert total["macs_left"] == left
    lines = (tmp_path / "out" / "sparse_report.csv").read_text().splitlines()
    assert len(lines) == 1 + len(LEVELS) * (len(SHAPES) + 1)
    assert lines[0].startswith("level,layer,kind,shape,parameters,nonzero,sparsity,macs,macs_left")


def test_an_analysis_that_is_there_is_read(tmp_path):
    config = amba(output_dir=str(tmp_path))
    first = build_sparse_scheduler(config)
    first.prepare_sparse_model(onnx_model())
    path = tmp_path / "sparse_analysis.json"
    found = json.loads(path.read_text())
    found["levels"]["30"] = dict.fromkeys(found["levels"]["30"], 10)
    path.write_text(json.dumps(found))
    second = build_sparse_scheduler(config)
    model = second.prepare_sparse_model(onnx_model())
    second.prune_model(model, 0)
    assert abs(second.compute_sparse_rate(model) - 0.1) < 0.01
    found["levels"]["30"]["tail"] = 10
    path.write_text(json.dumps(found))
    with refusing(PlanError):
        build_sparse_scheduler(config).prepare_sparse_model(onnx_model())


def test_masks_of_ampere_are_those_of_the_rule(tmp_path):
    scheduler = build_sparse_scheduler("ampere")
    model = scheduler.prepare_sparse_model(onnx_model())
    assert not scheduler.is_sparsity_enabled()
    scheduler.init_optimizer()
    masks = {model.names()[key]: mask for key, mask in model.masks().items()}
    assert set(masks) == {"point.weight", "wide.weight", "head.weight"}  # out % 8 and in % 16
    for name, mask in masks.items():
        np.testing.assert_array_equal(mask, two_of_four(numbers()[name]), err_msg=name)
    path = scheduler.export_sparse_onnx(model, None, tmp_path / "sparse.onnx")
    assert osp.verify(path).report.ok
    assert osp.verify(path, target="ampere:asp", allow="small").report.ok


def test_ampere_with_other_masks():
    def every_other(weight):
        return np.arange(weight.size).reshape(weight.shape) % 2

    for calculator, kept in (("m4n1_1d", 0.25), ("m8n6_1d", 0.75), ("m8n4_2d_best", 0.5), (every_other, 0.5)):
        config = {"scheduler": {"type": "AmpereScheduler", "kwargs": {"mask_calculator": calculator}}}
        scheduler = build_sparse_scheduler(config)
        model = scheduler.prepare_sparse_model(onnx_model())
        scheduler.init_optimizer("sgd")
        mask = next(mask for key, mask in model.masks().items() if model.names()[key] == "wide.weight")
        assert mask.mean() == kept


@pytest.mark.parametrize(("calculator", "way"), [("m4n2_2d_best", mn_2d_best), ("m4n2_2d_greedy", mn_2d_greedy)])
def test_ampere_with_masks_along_both_axes(calculator, way, tmp_path):
    scheduler = build_sparse_scheduler(
        {"scheduler": {"type": "AmpereScheduler", "kwargs": {"mask_calculator": calculator}}}
    )
    model = scheduler.prepare_sparse_model(onnx_model())
    scheduler.init_optimizer()
    masks = {model.names()[key]: mask for key, mask in model.masks().items()}
    assert set(masks) == {"point.weight", "wide.weight", "head.weight"}
    for tap in np.ndindex(3, 3):
        found = masks["wide.weight"][(slice(None), slice(None), *tap)]
        np.testing.assert_array_equal(found, way(numbers()["wide.weight"][(slice(None), slice(None), *tap)], 4, 2))
    np.testing.assert_array_equal(masks["head.weight"], way(numbers()["head.weight"], 4, 2))
    path = scheduler.export_sparse_onnx(model, None, tmp_path / "sparse.onnx")
    assert osp.verify(path).report.ok
    assert osp.verify(path, target="ampere:asp", allow="small").report.ok
    assert osp.verify(path, pattern="2:4:transposable", allow="small", include=list(masks)).report.ok


def test_ampere_masks_may_be_chosen_again_where_that_is_allowed():
    plain = build_sparse_scheduler("ampere")
    plain.prepare_sparse_model(onnx_model())
    plain.init_optimizer()
    with refusing(OptionError):
        plain.compute_sparse_masks()
    with refusing(OptionError):
        plain.restore_pruned_weights()
    config = preset("ampere")
    config["scheduler"]["kwargs"]["allow_recompute_mask"] = True
    scheduler = build_sparse_scheduler(config)
    model = scheduler.prepare_sparse_model(onnx_model())
    scheduler.init_optimizer()
    assert scheduler.compute_sparse_rate(model) > 0.4
    scheduler.restore_pruned_weights()
    assert scheduler.compute_sparse_rate(model) == 0
    for name, array in stored(scheduler.export_sparse_model(model)).items():
        np.testing.assert_array_equal(array, numbers()[name])
    scheduler.compute_sparse_masks()
    assert scheduler.compute_sparse_rate(model) > 0.4


@pytest.mark.parametrize("kind", ["Gemm", "Linear"])
def test_a_whitelist(kind):
    config = {"scheduler": {"type": "AmpereScheduler", "kwargs": {"whitelist": [kind]}}}
    scheduler = build_sparse_scheduler(config)
    model = scheduler.prepare_sparse_model(onnx_model())
    scheduler.init_optimizer()
    assert [model.names()[key] for key in model.masks()] == ["head.weight"]


@pytest.mark.parametrize(("norm", "order"), [("p1", 1), ("p2", 2)])
def test_whole_outputs_by_their_norm(norm, order):
    config = {
        "mask_generator": {"type": "NormalMaskGenerator", "kwargs": {"structured": norm}},
        "fake_sparse": {"type": "FakeSparse"},
        "scheduler": {"type": "BaseScheduler"},
        "sparsity": {"target_sparsity": 0.25, "uniform": True},
    }
    scheduler = build_sparse_scheduler(config)
    model = scheduler.prepare_sparse_model(onnx_model())
    scheduler.prune_model(model, 0)
    for key, mask in model.masks().items():
        weight = numbers()[model.names()[key]]
        rows = weight.reshape(weight.shape[0], -1).astype(np.float64)
        gone = np.argsort(np.linalg.norm(rows, order, axis=1), kind="stable")[: int(0.25 * len(rows) + 0.5)]
        wanted = np.ones(len(rows), bool)
        wanted[gone] = False
        np.testing.assert_array_equal(mask.reshape(len(rows), -1).all(axis=1), wanted)
        np.testing.assert_array_equal(mask.reshape(len(rows), -1).any(axis=1), wanted)


def test_corrected_weights_keep_mean_and_deviation():
    config = {
        "mask_generator": {
            "type": "NormalMaskGenerator",
            "kwargs": {"weight_correction": True, "mask_is_static": True},
        },
        "scheduler": {},
        "sparsity": {"target_sparsity": 0.4},
    }
    scheduler = build_sparse_scheduler(config)
    model = scheduler.prepare_sparse_model(onnx_model())
    scheduler.prune_model(model, 0)
    made = stored(scheduler.export_sparse_model(model))["wide.weight"].reshape(32, -1)
    before = numbers()["wide.weight"].reshape(32, -1)
    np.testing.assert_allclose(made.mean(axis=1), before.mean(axis=1), atol=1e-6)
    np.testing.assert_allclose(made.std(axis=1), before.std(axis=1), rtol=1e-4)


def test_thresholds_are_baked_into_what_is_exported():
    scheduler = build_sparse_scheduler("str")
    model = scheduler.prepare_sparse_model(onnx_model())
    threshold = 1 / (1 + np.exp(5.0))
    for name, array in stored(scheduler.export_sparse_model(model)).items():
        wanted = np.sign(numbers()[name]) * np.maximum(np.abs(numbers()[name]) - threshold, 0)
        np.testing.assert_allclose(array, wanted, atol=1e-7)


def prob_mask(total=20, **kwargs):
    config = preset("probmask")
    config["scheduler"]["kwargs"].update(
        total_iterations=total, warmup_iteration_stamps=4, finetune_iteration_stamps=16, **kwargs
    )
    return config


def test_probabilities_are_projected_and_the_subnet_is_drawn_once():
    scheduler = build_sparse_scheduler(prob_mask())
    model = scheduler.prepare_sparse_model(onnx_model())
    size = sum(site.size for site in model.sites)
    for iteration in range(20):
        scheduler.prune_model(model, iteration)
        left = 0 if iteration < 4 else 1 if iteration >= 16 else 1 - (1 - (iteration - 4) / 12) ** 3
        if iteration < 16:
            scores = [model.trained(site.key)["score"] for site in model.sites]
            assert sum(float(score.sum(dtype=np.float64)) for score in scores) / size == pytest.approx(1 - 0.8 * left)
            tau = 1 / (0.97 * (1 - iteration / 20) + 0.03)
            assert model.frozen(model.sites[0].key)["temperature"] == pytest.approx(tau)
        assert scheduler.compute_sparse_rate(model) == pytest.approx(0.8 * left, abs=0.02 if iteration >= 16 else 1e-6)
    masks = model.masks()
    scheduler.prune_model(model, 21)
    assert all((mask == model.masks()[key]).all() for key, mask in masks.items())


def test_scores_that_differ_are_lowered_together():
    """Held against a search by halving, in double precision."""
    scheduler = build_sparse_scheduler(prob_mask())
    model = scheduler.prepare_sparse_model(onnx_model())
    for place, site in enumerate(model.sites):
        score = model.trained(site.key)["score"]
        score[...] = np.random.Generator(np.random.Philox(key=place)).uniform(-0.2, 1.3, score.shape)
    before = np.concatenate([model.trained(site.key)["score"].reshape(-1).astype(np.float64) for site in model.sites])
    scheduler.prune_model(model, 10)
    goal = before.size * (1 - 0.8 * (1 - 0.5**3))
    low, high = 0.0, 2.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if np.clip(before - middle, 0, 1).sum() > goal else (low, middle)
    after = np.concatenate([model.trained(site.key)["score"].reshape(-1) for site in model.sites])
    np.testing.assert_allclose(after, np.clip(before - high, 0, 1), atol=2e-6)


# -- training


@trains
@engines
def test_the_amba_configuration_trains_and_verifies(engine, tmp_path):
    scheduler = build_sparse_scheduler(amba(total=8))
    onnx.save(onnx_model(), tmp_path / "dense.onnx")
    model = scheduler.prepare_sparse_model(str(tmp_path / "dense.onnx"), engine=engine, optimizer="sgd", lr=0.02)
    scheduler.set_lr_scheduler("cosine")
    losses, rates = [], []
    drops = {site.key: scheduler._drops[1][site.key] for site in model.sites}
    for iteration in range(8):
        live = {key: array.copy() for key, array in model.live.items()}
        scheduler.prune_model(model, iteration)
        if iteration == 4:  # whichever engine holds the numbers, the masks are those of the numbers
            for key, mask in model.masks().items():
                np.testing.assert_array_equal(mask, smallest_dropped(live[key], drops[key]))
        rates.append(model.pace.rate)
        losses.append(model.step(batch(iteration)))
    assert rates[:4] == rates[4:]  # the rate begins again with the second stage
    assert rates[0] > rates[1] > rates[3]
    assert np.isfinite(losses).all()
    path = scheduler.export_sparse_onnx(model, None, str(tmp_path / "sparse"))
    report = osp.verify(path, target="amba", level=60).report
    assert report.ok, report.notes
    moved = stored(onnx.load(path))
    assert all((moved[name] != array).any() for name, array in numbers().items())


@trains
@engines
def test_the_ampere_configuration_trains_and_verifies(engine, tmp_path):
    scheduler = build_sparse_scheduler("ampere")
    model = scheduler.prepare_sparse_model(onnx_model(), engine=engine, loss="cross-entropy", lr=0.02)
    scheduler.init_optimizer("nesterov:momentum=0.9")
    masks = {key: mask.copy() for key, mask in model.masks().items()}
    for iteration in range(4):
        scheduler.prune_model(model, iteration)
        model.step(dict(zip(("x", "labels"), batch(iteration))))
    assert all((model.masks()[key] == mask).all() for key, mask in masks.items())
    assert osp.verify(scheduler.export_sparse_onnx(model, None, tmp_path / "sparse")).report.ok


@trains
@engines
def test_the_threshold_configuration_trains_and_verifies(engine, tmp_path):
    config = preset("str")
    config["fake_sparse"]["kwargs"]["sInit_value"] = -2.5
    scheduler = build_sparse_scheduler(config)
    model = scheduler.prepare_sparse_model(onnx_model(), engine=engine, optimizer="sgd", lr=0.05, hardness=0.0)
    before = {site.key: float(model.trained(site.key)["threshold"][0]) for site in model.sites}
    for iteration in range(4):
        scheduler.prune_model(model, iteration)
        model.step(batch(iteration))
    after = {site.key: float(model.trained(site.key)["threshold"][0]) for site in model.sites}
    assert all(after[key] != before[key] for key in before)
    exported = stored(scheduler.export_sparse_model(model))
    for site in model.sites:
        weight, limit = model.weight(site.key), 1 / (1 + np.exp(-after[site.key]))
        wanted = np.sign(weight) * np.maximum(np.abs(weight) - limit, 0)
        np.testing.assert_allclose(exported[model.names()[site.key]], wanted, atol=1e-6)
    assert osp.verify(scheduler.export_sparse_onnx(model, None, tmp_path / "sparse")).report.ok


@trains
@engines
def test_the_probmask_configuration_trains_and_reaches_its_target(engine, tmp_path):
    scheduler = build_sparse_scheduler(prob_mask())
    model = scheduler.prepare_sparse_model(onnx_model(), engine=engine, optimizer="sgd", lr=0.02)
    for iteration in range(18):
        scheduler.prune_model(model, iteration)
        model.step(batch(iteration))
    assert abs(scheduler.compute_sparse_rate(model) - 0.8) <= 0.015
    assert osp.verify(scheduler.export_sparse_onnx(model, None, tmp_path / "sparse")).report.ok


@trains
@engines
def test_batches_in_all_forms(engine):
    scheduler = build_sparse_scheduler(amba())
    model = scheduler.prepare_sparse_model(onnx_model(), engine=engine)
    x, y = batch(0)
    assert np.isfinite(model.step((x, y)))
    assert np.isfinite(model.step({"x": x, "label": y}))
    loss, outputs = model.evaluate((x.astype(np.float64), y.astype(np.int32)))
    assert np.isfinite(loss)
    assert outputs["y"].shape == (8, 8)
    with refusing(OptionError):
        model.step({"z": x, "labels": y})
    with refusing(OptionError):
        model.step((x, y, y))


def test_options_that_mean_nothing():
    for options, said in (
        ({"optimiser": "sgd"}, "did you mean optimizer"),
        ({"engine": "tf"}, "engine is one of"),
        ({"optimizer": "ort-adamw"}, "whole runs"),
        ({"loss": "crossentropy"}, "does not know"),
    ):
        with pytest.raises(OptionError, match=said):
            build_sparse_scheduler(amba()).prepare_sparse_model(onnx_model(), **options)
    with refusing(OptionError):
        build_sparse_scheduler(amba()).prepare_sparse_model(7)
    with refusing(OptionError):
        build_sparse_scheduler(amba()).prepare_sparse_model(onnx_model(), preset("ampere"))
