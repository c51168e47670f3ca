"""Which pruned layers have int8 on both sides, as sparse INT8 kernels want it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxsparse as osp
from onnxsparse.planning.quantization import AMPERE, ONNXRUNTIME, Scheme
from onnxsparse.report.rows import Report
from tests.quantization.odd_graphs import drawn
from tools.bench.bench_quantize_layers import quantized

pytest.importorskip("onnxruntime")
DIGITS = Path(__file__).resolve().parent.parent.parent / "models" / "digits_cnn.onnx"
FEED = {"x": np.abs(drawn([16, 1, 8, 8]))}


def checked(scheme: Scheme, **rule: str) -> Report:
    pruned = osp.prune(str(DIGITS), pattern="2:4").proto
    return osp.verify(quantized(pruned, [FEED], scheme), **rule).report


def test_symmetric_values_have_it_but_for_the_last_layer() -> None:
    report = checked(AMPERE, target="ampere")
    assert report.ok
    assert any("int8 goes into 3 of 4 pruned layers and comes out" in note for note in report.notes)
    head = next(row for row in report.rows if row.name == "head.weight").uses[0]
    assert head.pays is False
    assert "an output of the model, in floats" in head.remark


def test_without_a_target_the_record_is_enough() -> None:
    report = checked(AMPERE)
    assert report.ok
    assert any("int8 goes into 3 of 4" in note for note in report.notes)


def test_asymmetric_values_do_not() -> None:
    report = checked(ONNXRUNTIME, target="ampere")
    assert report.ok
    assert any("0 of 4 pruned layers" in note and "no int8 around zero" in note for note in report.notes)


def test_other_libraries_and_float_files_are_not_asked() -> None:
    assert not any("int8 goes" in note for note in checked(AMPERE, target="ampere:cusparselt-int8").notes)
    pruned = osp.prune(str(DIGITS), pattern="2:4").proto
    assert not any("int8 goes" in note for note in osp.verify(pruned, target="ampere").report.notes)


def test_zeros_are_counted_as_zero_points() -> None:
    """Of unsigned weights around 128 the bytes of 128 are zeros, and those of 0 are not."""
    proto = quantized(osp.prune(str(DIGITS), pattern="2:4").proto, [FEED])
    for tensor in proto.graph.initializer:
        if tensor.name == "deep.weight" or tensor.name == "deep.weight_zero_point":
            array = onnx.numpy_helper.to_array(tensor)
            moved = (array.astype(np.int16) + 128).astype(np.uint8)
            tensor.CopyFrom(onnx.numpy_helper.from_array(moved, tensor.name))
    row = next(row for row in osp.verify(proto).report.rows if row.name == "deep.weight")
    assert row.status == "holds"
    assert row.zeros is not None
    assert row.zeros >= row.size / 2


def test_blocks_hold_in_the_integers() -> None:
    pruned = osp.prune(str(DIGITS), target="vnni", sparsity=0.6).proto
    report = osp.verify(quantized(pruned, [FEED]), target="vnni").report
    assert report.ok
    assert all(row.dtype == "int8" for row in report.rows)


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, -1.0])
@pytest.mark.parametrize("name", ["deep.weight_scale", "_scale"])
def test_scales_that_mean_nothing_are_the_reason_why_a_file_does_not_hold(value: float, name: str) -> None:
    proto = quantized(osp.prune(str(DIGITS), pattern="2:4").proto, [FEED])
    tensor = next(
        one for one in proto.graph.initializer if one.name.endswith(name) and bool(one.dims) == (name[0] == "d")
    )
    array = onnx.numpy_helper.to_array(tensor).copy()
    array.reshape(-1)[0] = value
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    for rule in ({}, {"pattern": "2:4"}):
        report = osp.verify(proto, **rule).report
        assert not report.ok
        assert any(f"'{tensor.name}'" in fault and f"{value:g}" in fault for fault in report.faults)
