"""Weights, biases and samples that are infinite, huge or subnormal: refused or rounded, without warnings of numpy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.helper import make_node, make_tensor_value_info

import onnxsparse as osp
from onnxsparse.errors import ModelError
from tests.messages import refusing
from tests.quantization.test_quantize import FLOAT, drawn, model, ran, stored

WAYS: dict[str, dict[str, Any]] = {
    "int8": {}, "refined": {"refine": "equalize,rounding,bias"}, "ampere": {"target": "ampere", "per_tensor": True},
    "dynamic": {"dynamic": True}, "w8": {"scheme": "w8"}, "w4": {"scheme": "w4"},
}  # fmt: skip


def two(w: float = 1.0, b: float = 1.0, v: float = 1.0, **changed: tuple[tuple[int, ...], float]) -> onnx.ModelProto:
    """Two layers whose numbers are so large, and perhaps one number of a tensor another."""
    arrays = {
        "w": drawn(40, 6) * np.float32(w), "b": drawn(6, seed=1) * np.float32(b),
        "v": drawn(6, 5, seed=2) * np.float32(v), "c": drawn(5, seed=4) * np.float32(b),
    }  # fmt: skip
    for name, (place, number) in changed.items():
        arrays[name[0]][place] = number
    nodes = [
        make_node("Gemm", ["x", "w", "b"], ["a"]),
        make_node("Relu", ["a"], ["h"]),
        make_node("Gemm", ["h", "v", "c"], ["y"]),
    ]
    ends = [make_tensor_value_info("x", FLOAT, ["N", 40])], [make_tensor_value_info("y", FLOAT, ["N", 5])]
    return model(nodes, *ends, arrays)


def made(proto: onnx.ModelProto, way: str, size: float = 1.0) -> tuple[onnx.ModelProto, np.ndarray, tuple[str, ...]]:
    samples = drawn(16, 40, seed=3) * np.float32(size)
    result = osp.quantize(proto, data=None if way == "dynamic" else samples, **WAYS[way])
    return result.model, samples, result.report.notes


@pytest.mark.parametrize("number", [np.nan, np.inf])
@pytest.mark.parametrize("way", WAYS)
def test_a_weight_that_is_no_number_is_refused(way: str, number: float) -> None:
    with pytest.raises(ModelError, match="'w' holds numbers that are infinite or NaN"):
        made(two(w_=((2, 3), number)), way)


@pytest.mark.parametrize("number", [np.nan, -np.inf])
def test_a_bias_that_is_no_number_is_refused(number: float) -> None:
    with refusing(ModelError):
        made(two(b_=((0,), number)), "int8")
    assert np.isnan(stored(made(two(b_=((0,), np.nan)), "w8")[0])["b"][0]), "it stays as it is where it stays float"


def test_given_scales_do_not_hide_what_is_no_number(tmp_path: Path) -> None:
    given = tmp_path / "scales.json"
    given.write_text(json.dumps({name: {"scale": 0.1} for name in ("x", "h", "w", "v")}))
    assert osp.quantize(two(), scales=given).report.totals.done == 2
    with pytest.raises(ModelError, match="'w' holds numbers"):
        osp.quantize(two(w_=((0, 0), np.nan)), scales=given)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("w", "b", "v", "size"),
    [
        (1e30, 1.0, 1e-30, 1.0),
        (1e-20, 1e37, 1e-30, 1e20),
        (1e20, 1.0, 1e10, 1e-20),
        (3e37, 1.0, 1.0, 1e-36),
        (1.0, 0.0, 1e37, 1e-35),
    ],
)
def test_huge_numbers_are_rounded_as_others(way: str, w: float, b: float, v: float, size: float) -> None:
    proto = two(w, b, v)
    result, samples, _ = made(proto, way, size)
    for name, array in stored(result).items():
        assert np.isfinite(array.astype(np.float64)).all(), name
    found, wanted = (ran(one, "x", samples).astype(np.float64) for one in (result, proto))
    assert np.linalg.norm(found - wanted) <= 0.2 * np.linalg.norm(wanted)


@pytest.mark.parametrize("way", ["int8", "ampere", "per tensor"])
@pytest.mark.parametrize("huge", [-1e9, 3e37])
def test_a_bias_that_does_not_fit_costs_the_others_nothing(way: str, huge: float) -> None:
    """With one scale for all of a weight the bias stays float: a class that is switched off has such a one."""
    proto = two(c_=((0,), huge))
    options = {"target": "ampere" if way == "ampere" else None, "per_tensor": way != "int8"}
    samples = drawn(16, 40, seed=3)
    result = osp.quantize(proto, data=samples, **options).model
    found, wanted = (ran(one, "x", samples) for one in (result, proto))
    assert np.linalg.norm((found - wanted)[:, 1:]) < 0.03 * np.linalg.norm(wanted[:, 1:])
    np.testing.assert_allclose(found[:, 0], wanted[:, 0], rtol=1e-4)


@pytest.mark.parametrize("target", [None, "ampere"])
def test_the_bias_of_one_layer_costs_another_with_its_weight_nothing(target: str | None) -> None:
    nodes = [make_node("Gemm", ["x", "w", "b"], ["a"]), make_node("Gemm", ["x", "w", "c"], ["y"])]
    ends = [make_tensor_value_info(name, FLOAT, ["N", size]) for name, size in (("x", 40), ("y", 6), ("a", 6))]
    arrays = {"w": drawn(40, 6), "b": drawn(6, seed=1) * np.float32(1e8), "c": drawn(6, seed=2)}
    proto, samples = model(nodes, ends[:1], ends[1:], arrays), drawn(16, 40, seed=3)
    result = osp.quantize(proto, data=samples, target=target).model
    found, wanted = (ran(one, "x", samples) for one in (result, proto))
    assert np.linalg.norm(found - wanted) < 0.03 * np.linalg.norm(wanted)


@pytest.mark.parametrize("way", WAYS)
def test_weights_without_a_scale_are_told(way: str) -> None:
    notes = made(two(v=1e-42), way)[2]
    assert any("near 1e-38, in 'v', have no scale" in note for note in notes)
    assert not any("near 1e-38" in note for note in made(two(v=1e-30), way)[2])
