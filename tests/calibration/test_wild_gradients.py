"""Samples whose gradients are no numbers, and files whose batches samples do not fill."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxsparse as osp
from onnxsparse.engines.ort import library
from onnxsparse.math.values import Array
from tests.engines.small_nets import run

WIDTH, LENGTH = 16, 5


def net(batch: int | str = "n", minus: float | None = None) -> onnx.ModelProto:
    """Words of length 1, a layer, their sum. The gradient of a root at 0 is infinite: a word of zeros has none."""
    rng = np.random.default_rng(0)

    def stored(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((rng.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32), name)

    nodes = [
        helper.make_node("MatMul", ["x", "inner"], ["b"], name="inner"),
        helper.make_node("Mul", ["b", "b"], ["squares"]),
        helper.make_node("ReduceSum", ["squares", "last"], ["sums"]),
        helper.make_node("Sqrt", ["sums"], ["roots"]),
        helper.make_node("Add", ["roots", "little"], ["lengths"]),
        helper.make_node("Div", ["b", "lengths"], ["c"]),
        helper.make_node("MatMul", ["c", "middle"], ["d"], name="middle"),
        helper.make_node("Relu", ["d"], ["e"]),
        helper.make_node("ReduceSum", ["e", "first"], ["f"], keepdims=0),
        helper.make_node("MatMul", ["f", "outer"], ["y"], name="outer"),
    ]
    axes = [numpy_helper.from_array(np.array([at]), name) for name, at in (("last", 2), ("first", 1))]
    little = numpy_helper.from_array(np.float32(1e-6), "little")
    graph = helper.make_graph(
        nodes,
        "words",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, LENGTH, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 6])],
        [stored("inner", 8, WIDTH), stored("middle", WIDTH, 32), stored("outer", 32, 6), *axes, little],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def words(count: int = 64, padded: tuple[int, ...] = ()) -> Array:
    found = np.random.default_rng(1).standard_normal((count, LENGTH, 8)).astype(np.float32)
    found[list(padded), 3:] = 0
    return found


def distance(model: onnx.ModelProto, x: Array) -> float:
    ours, dense = (run(one, x)["y"] for one in (model, net()))
    return float(np.square(ours - dense).mean() / dense.var())


@pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")
@pytest.mark.parametrize("padded", [(3,), (40,), (3, 4, 20, 60)])
def test_a_sample_without_gradients_counts_nothing(padded: tuple[int, ...]) -> None:
    others = np.delete(words(), list(padded), axis=0)
    asked = {"pattern": "unstructured", "sparsity": 0.6, "joint_steps": 0, "allow": ["output", "small", "stem"]}
    without = osp.prune(net(), data={"x": others}, **asked)
    result = osp.prune(net(), data={"x": words(padded=padded)}, **asked)
    assert any("is no number for some samples" in note for note in result.report.notes)
    assert not any("no number" in note for note in without.report.notes)
    assert not any("nan" in (row.reason or "") for row in result.report.rows)
    far, near = (distance(one.model, others) for one in (result, without))
    assert far < 2 * near


def test_samples_that_fill_no_batch_do_not_judge() -> None:
    """A file that takes seven: the 64th sample would be seen seven times over, alone among those held out."""
    asked = {"pattern": "unstructured", "sparsity": 0.6, "sensitivity": "measured", "allow": ["output", "small"]}
    whole, more = (osp.prune(net(batch=7), data={"x": words(count)}, **asked) for count in (63, 64))
    told = [note for note in more.report.notes if "fill" in note]
    assert told == ["the last 1 of 64 samples do not fill a batch of 7, which the model takes, and are left out"]
    assert not any("fill" in note for note in whole.report.notes)
    told = [note for note in more.report.notes if "samples are few" in note]
    assert told == ["63 samples are few: some hundred are better"]
