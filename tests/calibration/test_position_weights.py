"""Positions that count by their gradients: weights, moments under them, and what padding has to say of a layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import onnxsparse as osp
from onnxsparse.calibration.moments import WIDE, BlockMoments
from onnxsparse.calibration.sensitivity import FOLLOWED, PositionEnergies
from onnxsparse.calibration.statistics import LayerMoments
from onnxsparse.engines.ort import library
from onnxsparse.math.values import Array
from onnxsparse.solvers.quadratic import Factored, Quadratic


def weights(*blocks: Array, size: int) -> list[list[Array]]:
    found = PositionEnergies()
    for draw in np.split(np.stack(blocks), 2, axis=-1):
        found.add(0, list(draw))
    return found.weights([size])


def test_padding_counts_nothing_and_others_by_their_squares() -> None:
    gradients = np.random.default_rng(0).standard_normal((12, 6)).astype(np.float32)
    gradients[[3, 7, 11]] = 0
    ((found,),) = weights(gradients, size=3)
    squares = np.square(gradients).sum(axis=1)
    wanted = np.where(squares > 0, 1 - FOLLOWED + FOLLOWED * squares / squares[squares > 0].mean(), 0)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert found.sum() == pytest.approx(9, rel=1e-5)


def test_all_count_alike_where_nothing_is_known() -> None:
    ((found,),) = weights(np.zeros((8, 2), np.float32), size=2)
    np.testing.assert_array_equal(found, 1)
    assert weights(np.ones((8, 2), np.float32), size=8) == []  # one position for each sample


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_moments_are_those_of_positions_that_often(seed: int, biased: bool) -> None:
    """Whole numbers as weights are rows that come so many times."""
    rng = np.random.default_rng(seed)
    x, y, times = rng.standard_normal((20, 4)) + 1, rng.standard_normal((20, 3)), rng.integers(0, 4, 20)
    times[0] = 1
    roots = np.sqrt(times)[:, None]
    counted, often, outputs = LayerMoments(4, 3), LayerMoments(4, 3), np.arange(3)
    counted.add(x * roots, y * roots, roots[:, 0])
    often.add(np.repeat(x, times, axis=0), np.repeat(y, times, axis=0))
    one, other = (Quadratic.of(outputs, sums, biased) for sums in (counted, often))
    few = Factored(outputs, x * roots, y * roots, biased, roots[:, 0])
    assert (one.count, few.count) == (np.count_nonzero(times),) * 2
    matrix = rng.standard_normal((3, 4))
    for found in (one, few):
        for name in ("gram", "cross", "energy", "mean_x", "mean_y"):
            np.testing.assert_allclose(getattr(found, name), getattr(other, name), atol=1e-10)
        np.testing.assert_allclose(found.errors(matrix, np.ones(3)), other.errors(matrix, np.ones(3)), atol=1e-10)


def test_few_rows_are_kept_with_what_they_count() -> None:
    rng = np.random.default_rng(3)
    x, y, roots = rng.standard_normal((30, WIDE)), rng.standard_normal((30, 2)), rng.random(30)
    kept, sums = BlockMoments(WIDE, 2), LayerMoments(WIDE, 2)
    for part in np.split(np.arange(30), 3):
        kept.add(x[part], y[part], roots[part])
    sums.add(x, y, roots)
    found, wanted = kept.quadratic(np.arange(2), True), Quadratic.of(np.arange(2), sums, True)
    np.testing.assert_allclose(found.mean_x, wanted.mean_x, atol=1e-6)
    np.testing.assert_allclose(found.cross, wanted.cross, atol=1e-6)
    np.testing.assert_allclose(kept.summed().gram, sums.gram, atol=1e-5)


# -- models

WORDS, WIDTH, LENGTH = 32, 16, 12


def masked_net() -> onnx.ModelProto:
    """Words, a layer for each of them, their mean behind a mask, and classes."""
    rng = np.random.default_rng(0)

    def stored(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((rng.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32), name)

    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["words"]),
        helper.make_node("MatMul", ["words", "inner"], ["sums"], name="inner"),
        helper.make_node("Relu", ["sums"], ["active"]),
        helper.make_node("Unsqueeze", ["mask", "last"], ["column"]),
        helper.make_node("Mul", ["active", "column"], ["seen"]),
        helper.make_node("ReduceSum", ["seen", "first"], ["whole"], keepdims=0),
        helper.make_node("MatMul", ["whole", "outer"], ["y"], name="outer"),
    ]
    table = stored("table", WORDS, WIDTH)
    axes = [numpy_helper.from_array(np.array([at]), name) for name, at in (("last", 2), ("first", 1))]
    graph = helper.make_graph(
        nodes,
        "masked",
        [
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", LENGTH]),
            helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["n", LENGTH]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [table, stored("inner", WIDTH, 24), stored("outer", 24, 4), *axes],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def padded(filler: int, count: int = 64) -> dict[str, Array]:
    """Sentences of two to five words, padded with a word."""
    rng = np.random.default_rng(1)
    mask = (np.arange(LENGTH) < rng.integers(2, 6, count)[:, None]).astype(np.float32)
    ids = rng.integers(1, WORDS - 1, (count, LENGTH))
    return {"ids": np.where(mask > 0, ids, filler), "mask": mask}


@pytest.mark.skipif(not library.available(), reason="needs an engine")
def test_what_stands_behind_a_mask_changes_nothing(tmp_path: Path) -> None:
    """Samples that differ in their padding alone give the same file."""
    found = []
    for filler in (0, WORDS - 1):
        np.savez(tmp_path / "samples.npz", **padded(filler))
        out = tmp_path / f"{filler}.onnx"
        osp.prune(masked_net(), data=str(tmp_path / "samples.npz"), output=out, pattern="2:4", workers=1)
        found.append({one.name: numpy_helper.to_array(one) for one in onnx.load(out).graph.initializer})
    assert np.count_nonzero(found[0]["inner"]) == WIDTH * 24 // 2
    for name in ("inner", "outer"):
        np.testing.assert_allclose(found[0][name], found[1][name], atol=1e-5)


@pytest.mark.skipif(not library.available(), reason="needs an engine")
def test_it_goes_on_with_the_same_weights(tmp_path: Path) -> None:
    np.savez(tmp_path / "samples.npz", **padded(0))
    options = {"data": str(tmp_path / "samples.npz"), "pattern": "unstructured", "sparsity": 0.5, "workers": 1}
    osp.prune(masked_net(), output=tmp_path / "whole.onnx", checkpoint=tmp_path / "saves", **options)
    again = tmp_path / "again.onnx"
    last = sorted((tmp_path / "saves").glob("*"))[-1]
    for path in [last] if last.is_file() else sorted(last.glob("*")):
        path.unlink()
    if last.is_dir():
        last.rmdir()
    osp.prune(masked_net(), output=again, checkpoint=tmp_path / "saves", resume=True, **options)
    assert again.read_bytes() == (tmp_path / "whole.onnx").read_bytes()
