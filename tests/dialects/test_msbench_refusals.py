"""What a call or a configuration cannot mean is said, and what it may mean is read."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

from onnxsparse.dialects.msbench import build_sparse_scheduler, preset
from onnxsparse.dialects.msbench.configuration import read
from onnxsparse.errors import ModelError, OptionError
from onnxsparse.loops.options import LoopOptions
from tests.dialects.nets import SIZE, onnx_model


def amba(**kwargs):
    config = preset("amba")
    config["scheduler"]["kwargs"].update(total_iters=7, default_input_shape=[1, 3, SIZE, SIZE], **kwargs)
    return config


def test_ampere_says_that_the_optimizer_is_missing():
    scheduler = build_sparse_scheduler("ampere")
    model = scheduler.prepare_sparse_model(onnx_model())
    with pytest.raises(OptionError, match="init_optimizer is missing"):
        scheduler.prune_model(model, 0)
    scheduler.init_optimizer()
    scheduler.prune_model(model, 0)


def test_a_mask_calculator_that_fails_names_the_layer():
    config = {
        "scheduler": {"type": "AmpereScheduler", "kwargs": {"mask_calculator": lambda weight: weight[99, 99, 99]}}
    }
    scheduler = build_sparse_scheduler(config)
    scheduler.prepare_sparse_model(onnx_model())
    with pytest.raises(OptionError, match="mask_calculator failed for point"):
        scheduler.init_optimizer()


def test_another_model_is_refused():
    scheduler = build_sparse_scheduler(amba())
    model = scheduler.prepare_sparse_model(onnx_model())
    other = build_sparse_scheduler(amba()).prepare_sparse_model(onnx_model())
    for call in (lambda: scheduler.compute_sparse_rate(other), lambda: scheduler.prune_model(other, 0)):
        with pytest.raises(OptionError, match="another model"):
            call()
    scheduler.export_sparse_model(model)
    with pytest.raises(OptionError, match="another model"):
        scheduler.export_sparse_model(other)


def test_weights_that_are_no_numbers_are_refused():
    model = onnx_model()
    tensor = model.graph.initializer[0]
    array = numpy_helper.to_array(tensor).copy()
    array.flat[0] = np.nan
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    with pytest.raises(ModelError, match="stem holds numbers that are not finite"):
        build_sparse_scheduler(amba()).prepare_sparse_model(model)


def test_switches_are_read_as_what_they_say():
    found = read({**amba(dw_no_prune="False", do_sparse_analysis="true"), "fuse_bn": "off"})
    assert found.scheduler.kwargs["dw_no_prune"] is False
    assert found.scheduler.kwargs["do_sparse_analysis"] is True
    assert not found.fuse_bn
    with pytest.raises(OptionError, match="dw_no_prune is True or False"):
        read(amba(dw_no_prune="maybe"))
    with pytest.raises(OptionError, match="prun_algo_tuning is a number"):
        read(amba(prun_algo_tuning="a"))


def test_names_that_match_nothing_are_said(capsys):
    scheduler = build_sparse_scheduler({**amba(no_prune_keyword="nope", no_prune_layer="wde"), "leaf_module": ["Lin"]})
    scheduler.prepare_sparse_model(onnx_model())
    written = capsys.readouterr().err
    for option in ("no_prune_keyword 'nope'", "no_prune_layer 'wde'", "leaf_module 'Lin'"):
        assert option in written
    assert "did you mean wide" in written


def test_a_keyword_of_all_layers_is_said(capsys):
    scheduler = build_sparse_scheduler(amba(no_prune_keyword="weight"))
    model = scheduler.prepare_sparse_model(onnx_model())
    assert "all 5 layers stay dense, so nothing becomes sparse: no_prune_keyword weight" in capsys.readouterr().err
    assert scheduler.compute_sparse_rate(model) == 0


def test_what_ampere_leaves_dense_is_in_the_notes_with_its_reason(tmp_path):
    scheduler = build_sparse_scheduler({"scheduler": {"type": "AmpereScheduler", "kwargs": {"no_prune_layer": "wide"}}})
    model = scheduler.prepare_sparse_model(onnx_model())
    scheduler.init_optimizer()
    scheduler.export_sparse_onnx(model, None, str(tmp_path / "sparse.onnx"))
    told = [note for note in scheduler.notes if note.startswith("left dense")]
    assert told == [
        "left dense: stem: 3 inputs and 16 outputs are no multiples of 16 and 8",
        "left dense: deep: 1 inputs and 1 outputs are no multiples of 16 and 8",
    ]


def test_a_whitelist_that_names_no_layer_is_in_the_notes(capsys):
    kwargs = {"whitelist": ["Convv", "Gemm"]}
    scheduler = build_sparse_scheduler({"scheduler": {"type": "AmpereScheduler", "kwargs": kwargs}})
    scheduler.prepare_sparse_model(onnx_model())
    assert any("whitelist 'Convv' names no layer (did you mean Conv" in note for note in scheduler.notes)
    scheduler = build_sparse_scheduler({"scheduler": {"type": "AmpereScheduler", "kwargs": {"whitelist": ["LSTM"]}}})
    scheduler.prepare_sparse_model(onnx_model())
    assert "all 5 layers stay dense, so nothing becomes sparse: not in the whitelist" in capsys.readouterr().err


def test_layers_that_2_of_4_does_not_fit_are_in_the_notes():
    parts = {"mask_generator": {"type": "NMMaskGenerator"}, "fake_sparse": {"type": "FakeSparse"}}
    scheduler = build_sparse_scheduler({**parts, "scheduler": {"type": "BaseScheduler"}})
    scheduler.prepare_sparse_model(onnx_model())
    assert "left dense: stem, deep: its inputs are no multiple of 4" in scheduler.notes


@pytest.mark.parametrize("iteration", [np.int64(3), np.int32(3), 3])
def test_iterations_are_whole_numbers(iteration):
    scheduler = build_sparse_scheduler(amba())
    model = scheduler.prepare_sparse_model(onnx_model())
    scheduler.prune_model(model, iteration)
    for wrong in (True, 1.5, "3", None, -1):
        with pytest.raises(OptionError, match="whole number"):
            scheduler.prune_model(model, wrong)


@pytest.mark.parametrize("kind", ["STR", "FCPTS"])
def test_thresholds_begin_at_the_target(kind):
    parts = {"mask_generator": {"type": f"{kind}MaskGenerator"}, "fake_sparse": {"type": f"{kind}FakeSparse"}}
    scheduler = build_sparse_scheduler(
        {**parts, "scheduler": {"type": "STRScheduler"}, "sparsity": {"target_sparsity": 0.6}}
    )
    model = scheduler.prepare_sparse_model(onnx_model())
    assert scheduler.compute_sparse_rate(model) == pytest.approx(0.6, abs=0.01)


def test_beside_labels_nothing_is_distilled_unless_that_is_said():
    labels = np.zeros(4, np.int64)
    assert LoopOptions(loss="cross-entropy").objective(labels).share == 0
    assert LoopOptions(hardness=0.7).objective(labels).share == 0.7
