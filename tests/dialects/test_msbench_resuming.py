"""What a level scheduler goes on from: a table that counts for what it was made for alone, and masks of its stage."""

from __future__ import annotations

import json

import numpy as np
import pytest
from onnx import numpy_helper

import onnxsparse as osp
from onnxsparse.dialects.msbench import build_sparse_scheduler, preset
from onnxsparse.engines.torch import library as torch
from onnxsparse.errors import OnnxSparseError, PlanError
from tests.dialects.nets import SHAPES, SIZE, onnx_model, torch_module
from tests.messages import refusing

LEVELS = [30, 60]


def scheduler_of(folder=None, **kwargs):
    config = preset("amba")
    settings = {"total_iters": 4, "sparsity_table": LEVELS, "default_input_shape": [1, 3, SIZE, SIZE]}
    config["scheduler"]["kwargs"].update({**settings, "output_dir": folder and str(folder), **kwargs})
    return build_sparse_scheduler(config)


def prepared(folder=None, model=None, **kwargs):
    scheduler = scheduler_of(folder, do_sparse_analysis=False, **kwargs)
    return scheduler, scheduler.prepare_sparse_model(model or onnx_model())


def said(scheduler):
    return [note for note in scheduler.notes if "made anew" in note]


@pytest.mark.parametrize(
    "kwargs",
    [
        {"prun_hw_aware": "cv22"},
        {"prun_algo": 0},
        {"prun_algo_tuning": 0.25},
        {"prune_tolerance_max": 1.1},
        {"dw_no_prune": True},
        {"no_prune_layer": "wide"},
        {"sparsity_table": [30, 50]},
    ],
)
def test_a_table_made_with_other_settings_is_made_anew(tmp_path, kwargs):
    prepared(tmp_path)
    scheduler, _ = prepared(tmp_path, **kwargs)
    assert len(said(scheduler)) == 1
    assert scheduler._drops == prepared(**kwargs)[0]._drops
    again, _ = prepared(tmp_path, **kwargs)
    assert not said(again)


def other_numbers(share=0.0):
    model = onnx_model()
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)[..., ::-1] * np.float32(1.5)
        array = np.where(np.abs(array) < np.quantile(np.abs(array), share), np.float32(0), array)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return model


def test_a_table_of_another_network_is_made_anew_and_one_of_a_network_that_goes_on_counts(tmp_path):
    first, _ = prepared(tmp_path)
    resumed, _ = prepared(tmp_path, other_numbers(0.3))
    assert not said(resumed)
    assert resumed._drops == first._drops
    other, _ = prepared(tmp_path, other_numbers())
    assert "weights" in said(other)[0]


def test_a_table_of_some_layers_is_made_anew(tmp_path):
    prepared(tmp_path)
    path = tmp_path / "sparse_analysis.json"
    found = json.loads(path.read_text())
    del found["levels"]["60"]["wide"]
    path.write_text(json.dumps(found))
    assert "'wide' is missing" in said(prepared(tmp_path)[0])[0]


def test_a_table_of_a_network_with_other_layers_is_made_anew(tmp_path):
    prepared(tmp_path)
    renamed = onnx_model()
    for node in renamed.graph.node:
        node.input[:] = [f"other.{name}" if name.endswith(".weight") else name for name in node.input]
        node.name = f"/other{node.name}"
    for one in renamed.graph.initializer:
        one.name = f"other.{one.name}"
    other, _ = prepared(tmp_path, renamed)
    assert "is made anew: layer 'other" in said(other)[0]
    assert not said(prepared(tmp_path, renamed)[0])


@pytest.mark.skipif(not torch.available(), reason="needs torch")
def test_a_table_of_the_same_network_in_torch_is_made_anew(tmp_path):
    prepared(tmp_path)
    module, _ = prepared(tmp_path, torch_module())
    assert not said(module) or "made anew" in said(module)[0]
    again, _ = prepared(tmp_path, torch_module())
    assert not said(again)


@pytest.mark.parametrize(
    "table", [5, {"stem": "x"}, {"stem": 100}, {"stem": -1}, {"stem": True}, {"stem": float("nan")}]
)
def test_a_damaged_table_is_an_error(tmp_path, table):
    (tmp_path / "sparse_analysis.json").write_text(json.dumps({"levels": {"30": table}}))
    with refusing(PlanError):
        prepared(tmp_path)


def masks_at(iteration):
    scheduler, model = prepared()
    scheduler.prune_model(model, iteration)
    return {model.names()[key]: mask for key, mask in model.masks().items()}


def test_layers_without_a_mask_get_one():
    whole = masks_at(3)
    scheduler, model = prepared(mask_dict={"wide.weight": whole["wide.weight"]})
    scheduler.prune_model(model, 3)
    for key, mask in model.masks().items():
        np.testing.assert_array_equal(mask, whole[model.names()[key]])
    assert any("names 1 of 5 layers" in note for note in scheduler.notes)


def test_masks_of_another_level_are_told():
    scheduler, model = prepared(mask_dict=masks_at(0))
    scheduler.prune_model(model, 3)
    assert any("another level than 60" in note for note in scheduler.notes)
    right, model = prepared(mask_dict=masks_at(3))
    right.prune_model(model, 3)
    assert not right.notes


@pytest.mark.parametrize("value", [0.5, float("nan"), 2])
def test_masks_are_zeros_and_ones(value):
    with refusing(OnnxSparseError):
        prepared(mask_dict={"wide": np.full(SHAPES["wide.weight"], value)})


def test_a_network_that_is_sparse_already_is_analysed_as_it_is_and_that_is_said():
    sparse = osp.prune(onnx_model(), target="amba", level=50).model
    scheduler = scheduler_of(do_sparse_analysis=True)
    model = scheduler.prepare_sparse_model(sparse)
    assert any("sparse already" in note and "do_sparse_analysis to False" in note for note in scheduler.notes)
    assert any(note.startswith("level 30 is passed already: the network has 50.") for note in scheduler.notes)
    rates = []
    for iteration in range(4):
        scheduler.prune_model(model, iteration)
        rates.append(scheduler.compute_sparse_rate(model))
    assert rates[0] == pytest.approx(0.5, abs=0.01)
    assert rates[-1] == pytest.approx(0.6, abs=0.015)
    dense = scheduler_of(do_sparse_analysis=True)
    dense.prepare_sparse_model(onnx_model())
    assert not any("already" in note for note in dense.notes)
