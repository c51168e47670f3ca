"""Weights that several nodes read, in parts or as a whole, and nodes that read a weight which is not pruned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.external_data_helper import set_external_data
from onnx.helper import make_node

import onnxsparse as osp
from tests.calibration.test_reach import HALF, drawn, model, numbers, pruned, ran

pytest.importorskip("onnxruntime")
SOLVERS: list[dict[str, Any]] = [{}, {"solver": "obs"}, {"score": "magnitude"}]


def mixed(count: int, width: int, seed: int = 0) -> np.ndarray:
    """Samples whose numbers depend on each other, so that some make up for others."""
    return drawn(count, width // 2, seed=seed) @ drawn(width // 2, width, seed=seed + 1) + 0.1 * drawn(count, width)


def errors(dense: onnx.ModelProto, made: onnx.ModelProto | None, x: np.ndarray) -> float:
    assert made is not None
    (wanted,), (found,) = ran(dense, x), ran(made, x)
    return float(np.square(found - wanted).mean())


def plain(proto: onnx.ModelProto, x: np.ndarray) -> float:
    """The error of the same level by magnitude."""
    allow = ("stem", "depthwise", "small", "output")
    return errors(proto, osp.prune(proto, **HALF, allow=allow, allocation="uniform").model, x)


# -- parts of a weight


def split_net(*more: Any) -> onnx.ModelProto:
    """A product with the first and one with the last part of `w`."""
    nodes = [
        make_node("Split", ["w", "sizes"], ["p", "q", "r"], axis=1),
        make_node("MatMul", ["x", "p"], ["a"]), *more, make_node("MatMul", ["x", "r"], ["b"]),
        make_node("Relu", ["b"], ["c"]), make_node("Add", ["a", "c"], ["y"]),
    ]  # fmt: skip
    stored = {"w": drawn(8, 12), "sizes": np.array([4, 4, 4])}
    return model(nodes, ["n", 8], stored)


@pytest.mark.parametrize("options", SOLVERS)
def test_parts_that_different_nodes_read_are_fitted_to_what_each_of_them_reads(options: dict[str, Any]) -> None:
    proto, x = split_net(), mixed(128, 8)
    made = pruned(proto, x, allocation="uniform", **options)
    (row,) = made.report.rows
    assert row.reason.startswith("refitted") or options.get("score") != "magnitude"
    assert errors(proto, made.model, x) < 0.2 * plain(proto, x)


@pytest.mark.parametrize("options", SOLVERS)
def test_what_no_node_reads_has_no_more_zeros_than_were_asked_for(options: dict[str, Any]) -> None:
    made = pruned(split_net(), mixed(128, 8), pattern="2:4", sparsity=None, **options)
    assert (numbers(made.model)["w"] == 0).sum(axis=0).tolist() == [4] * 12


def test_a_weight_of_which_other_operators_alone_read_a_part_is_pruned_by_magnitude() -> None:
    proto = split_net(make_node("ReduceMean", ["q"], ["m"], axes=[0]))
    x = mixed(128, 8)
    (row,) = pruned(proto, x).report.rows
    assert row.reason.startswith("not calibrated, pruned by magnitude: some of its outputs go to other operators alone")


# -- recurrent layers


def recurrent_net(*weights: str) -> onnx.ModelProto:
    """An RNN with two weights, and another one behind it."""
    nodes = [
        make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        make_node("RNN", ["t", *weights[:2]], ["y1"], hidden_size=4),
        make_node("Squeeze", ["y1", "one"], ["h"]),
        make_node("RNN", ["h", *weights[2:]], ["y2"], hidden_size=4),
        make_node("Transpose", ["y2"], ["y"], perm=[2, 0, 1, 3]),
    ]
    stored = {name: drawn(1, 4, 4, seed=ord(name)) for name in dict.fromkeys(weights)}
    return model(nodes, ["n", 5, 4], {**stored, "one": np.array([1])})


@pytest.mark.parametrize("options", SOLVERS)
def test_a_weight_that_is_excluded_stays_as_it_is_beside_one_that_is_refitted(options: dict[str, Any]) -> None:
    proto, x = recurrent_net(*"wrvs"), drawn(256, 5, 4)
    made = pruned(proto, x, exclude=["w", "s"], **options)
    old, new = numbers(proto), numbers(made.model)
    for name in "ws":
        np.testing.assert_array_equal(new[name], old[name])
    assert not np.array_equal(new["r"][new["r"] != 0], old["r"][new["r"] != 0])
    assert osp.verify(made.model).report.ok


@pytest.mark.parametrize("weights", ["wrws", "wrvr"])
def test_a_recurrent_weight_that_several_layers_read_is_not_fitted_to_each_of_them_in_turn(weights: str) -> None:
    proto, x = recurrent_net(*weights), drawn(96, 5, 4)
    made = pruned(proto, x)
    assert all(row.reason.startswith("not calibrated") for row in made.report.rows)
    assert osp.verify(made.model).report.ok


# -- bytes with two names


def test_a_bias_whose_bytes_another_tensor_has_stays(tmp_path: Path) -> None:
    nodes = [
        make_node("Gemm", ["x", "w", "b"], ["h"]), make_node("Relu", ["h"], ["r"]),
        make_node("Gemm", ["r", "v", "c"], ["y"]),
    ]  # fmt: skip
    bias = drawn(8, seed=3)
    proto = model(nodes, ["n", 8], {"w": drawn(8, 8), "b": bias, "v": drawn(8, 8, seed=1), "c": bias})
    (tmp_path / "bias.bin").write_bytes(bias.tobytes())
    for tensor in proto.graph.initializer:
        if tensor.name in "bc":
            set_external_data(tensor, "bias.bin", 0, bias.nbytes)
            tensor.ClearField("raw_data")
    onnx.save(proto, tmp_path / "net.onnx")
    given = {"data": {"x": mixed(128, 8)}, "allow": ["stem", "small", "output"], "sensitivity": "measured", **HALF}
    for exclude in ([], ["v"]):
        out = tmp_path / "o.onnx"
        made = osp.prune(tmp_path / "net.onnx", output=out, overwrite=True, exclude=exclude, **given)
        assert made.report.rows[0].reason.startswith("refitted")
        stored = {one.name: numpy_helper.to_array(one) for one in onnx.load(out).graph.initializer}
        np.testing.assert_array_equal(stored["b"], bias)
        np.testing.assert_array_equal(stored["c"], bias)
