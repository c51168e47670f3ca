"""Weights that are copies of one another have one mask, and count once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, numpy_helper
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

import onnxsparse as osp
from onnxsparse.cli import main

LEVEL: dict[str, Any] = {"pattern": "unstructured", "sparsity": 0.7, "allocation": "global"}


def copies() -> ModelProto:
    """A convolution, its copy, its copy with every output scaled, and two that only look like it."""
    rng = np.random.default_rng(0)
    first = rng.standard_normal((16, 16, 3, 3)).astype(np.float32)
    factors = rng.uniform(0.3, 3, (16, 1, 1, 1)).astype(np.float32) * np.where(np.arange(16) % 2, -1, 1).reshape(
        -1, 1, 1, 1
    )
    nearly = first.copy()
    nearly[3, 2, 1, 1] += 1
    stored = {
        "first": first,
        "equal": first,
        "scaled": first * factors.astype(np.float32),
        "nearly": nearly,
        "other": 0.1 * rng.standard_normal((16, 16, 3, 3)).astype(np.float32),
    }
    values = [make_tensor_value_info(f"y.{name}", TensorProto.FLOAT, [1, 16, 8, 8]) for name in stored]
    nodes = [make_node("Conv", ["x", name], [f"y.{name}"], pads=[1, 1, 1, 1]) for name in stored]
    given = [make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 8, 8])]
    tensors = [numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in stored.items()]
    graph = make_graph(nodes, "g", given, values, tensors)
    return make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=8)


def masks_of(proto: ModelProto | None) -> dict[str, Any]:
    assert proto is not None
    return {tensor.name: numpy_helper.to_array(tensor) != 0 for tensor in proto.graph.initializer}


def test_copies_have_the_same_zeros_and_say_whose() -> None:
    made = osp.prune(copies(), tie_equal=True, **LEVEL)
    masks = masks_of(made.model)
    assert np.array_equal(masks["equal"], masks["first"])
    assert np.array_equal(masks["scaled"], masks["first"])
    reasons = {row.name: row.reason for row in made.report.rows}
    assert reasons["equal"] == reasons["scaled"] == "tied with 'first'"
    assert not reasons["nearly"]
    assert osp.verify(made.model).report.ok
    apart = masks_of(osp.prune(copies(), **LEVEL).model)
    assert not np.array_equal(apart["scaled"], apart["first"])


def test_copies_count_once_where_a_share_is_spread() -> None:
    masks = masks_of(osp.prune(copies(), tie_equal=True, **LEVEL).model)
    counted = [masks[name] for name in ("first", "nearly", "other")]
    assert abs(sum(int((~mask).sum()) for mask in counted) / sum(mask.size for mask in counted) - 0.7) < 1e-3


def test_masks_in_the_graph_are_tied_as_zeros_are() -> None:
    folded = osp.fold_masks(osp.insert_masks(copies(), tie_equal=True, **LEVEL).model).model
    assert masks_of(folded).keys() == masks_of(copies()).keys()
    pruned = masks_of(osp.prune(copies(), tie_equal=True, **LEVEL).model)
    assert all(np.array_equal(mask, pruned[name]) for name, mask in masks_of(folded).items())


def test_a_plan_that_was_written_with_ties_has_them_without_being_told_again(tmp_path: Any) -> None:
    path = str(tmp_path / "plan.yaml")
    osp.plan(copies(), tie_equal=True, output=path, **LEVEL)
    masks = masks_of(osp.prune(copies(), plan=path).model)
    assert np.array_equal(masks["scaled"], masks["first"])


def test_a_plan_that_was_written_without_ties_has_them_where_they_are_asked_for(tmp_path: Any) -> None:
    path = str(tmp_path / "plan.yaml")
    osp.plan(copies(), output=path, **LEVEL)
    masks = masks_of(osp.prune(copies(), plan=path, tie_equal=True).model)
    assert np.array_equal(masks["scaled"], masks["first"])


def test_a_layer_of_zeros_is_no_copy_and_outputs_of_zeros_make_none_apart() -> None:
    proto = copies()
    for tensor in proto.graph.initializer:
        numbers = numpy_helper.to_array(tensor).copy()
        numbers[: None if tensor.name == "other" else 4] = 0
        tensor.CopyFrom(numpy_helper.from_array(numbers, tensor.name))
    reasons = {row.name: row.reason for row in osp.prune(proto, pattern="2:4", tie_equal=True).report.rows}
    assert reasons["scaled"] == "tied with 'first'"
    assert "tied" not in reasons["other"]


def test_the_report_has_copies_under_a_heading_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(copies(), str(tmp_path / "dense.onnx"))
    given = ["--pattern", "unstructured", "--sparsity", "0.7", "--tie-equal"]
    main(["prune", str(tmp_path / "dense.onnx"), "-o", str(tmp_path / "sparse.onnx"), *given])
    out = capsys.readouterr().out
    assert "copies, with the zeros of what they are copies of:\n  equal, scaled: tied with 'first'" in out
    assert "smaller than they were" not in out
