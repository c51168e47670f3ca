"""Samples whose gradients are no numbers, and files whose batches samples do not fill."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxsparse as osp
from onnxsparse.engines.ort import library
from onnxsparse.engines.torch import library as torch_library
from onnxsparse.errors import ModelError
from onnxsparse.math.values import Array
from tests.engines.small_nets import net as small_net
from tests.engines.small_nets import numbers, run

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


def rooted() -> onnx.ModelProto:
    """The root of a layer's results less themselves: 0, and its gradient never a number."""
    rng = np.random.default_rng(0)
    stored = {"w": rng.standard_normal((16, 32)) / 4, "v": rng.standard_normal((32, 8)) / 4}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["b"]),
        helper.make_node("Sub", ["b", "b"], ["zeros"]),
        helper.make_node("Sqrt", ["zeros"], ["roots"]),
        helper.make_node("Add", ["b", "roots"], ["c"]),
        helper.make_node("MatMul", ["c", "v"], ["y"]),
    ]
    return small_net(nodes, {name: one.astype(np.float32) for name, one in stored.items()}, ["n", 16], {"y": ["n", 8]})


@pytest.mark.parametrize("engine", ["ort", "torch"])
def test_a_layer_without_gradients_is_refused(engine: str) -> None:
    if not {"ort": library, "torch": torch_library}[engine].available():
        pytest.skip(f"needs the engine {engine}")
    with pytest.raises(ModelError, match=r"gradient of 'b' is no number.*sensitivity=.?measured.? does without"):
        osp.prune(
            rooted(), pattern="2:4", data={"x": numbers(64, 16)}, engine=engine, allow=["output", "small", "stem"]
        )


@pytest.mark.parametrize("engine", ["ort", "torch"])
def test_a_class_that_is_ruled_out_by_infinity_takes_no_gradients_away(engine: str) -> None:
    if not {"ort": library, "torch": torch_library}[engine].available():
        pytest.skip(f"needs the engine {engine}")
    model = rooted()
    del model.graph.node[1:4]
    model.graph.node[-1].input[0], model.graph.node[-1].output[0] = "b", "scores"
    model.graph.node.append(helper.make_node("Add", ["scores", "ruled"], ["y"]))
    ruled = np.float32([0, 0, 0, -np.inf, 0, 0, 0, 0])
    model.graph.initializer.append(numpy_helper.from_array(ruled, "ruled"))
    asked = {"pattern": "2:4", "joint_steps": 0, "engine": engine, "allow": ["output", "small", "stem"]}
    report = osp.prune(model, data={"x": numbers(64, 16)}, **asked).report
    assert [row.zeros for row in report.rows] == [256, 128]
    assert all("refit" in row.reason for row in report.rows)


def test_batches_are_counted_by_inputs_that_samples_do_not_share() -> None:
    """Five numbers that all samples share stand before the samples; two batches of four have none to be left out."""
    model = rooted()
    del model.graph.node[1:4]
    model.graph.node[-1].input[0] = "c"
    model.graph.node.insert(1, helper.make_node("ReduceSum", ["shared"], ["sum"], keepdims=0))
    model.graph.node.insert(2, helper.make_node("Add", ["b", "sum"], ["c"]))
    (x,) = model.graph.input
    x.type.tensor_type.shape.dim[0].dim_value = 4
    del model.graph.input[:]
    model.graph.input.extend([helper.make_tensor_value_info("shared", TensorProto.FLOAT, [5]), x])
    data = {"shared": np.ones(5, np.float32), "x": numbers(8, 16)}
    asked = {"pattern": "2:4", "sensitivity": "measured", "allow": ["output", "small", "stem"]}
    notes = osp.prune(model, data=data, **asked).report.notes
    assert not any("left out" in note for note in notes)
    assert any(note.startswith("8 samples are few") for note in notes)


def test_samples_that_fill_no_batch_do_not_judge() -> None:
    """A file that takes seven: the 64th sample would be seen seven times over, alone among those held out."""
    asked = {"pattern": "unstructured", "sparsity": 0.6, "sensitivity": "measured", "allow": ["output", "small"]}
    whole, more = (osp.prune(net(batch=7), data={"x": words(count)}, **asked) for count in (63, 64))
    told = [note for note in more.report.notes if "left out" in note]
    assert told == ["1 of 64 samples left out: the model takes 7 at a time"]
    assert not any("left out" in note for note in whole.report.notes)
    told = [note for note in more.report.notes if "samples are few" in note]
    assert told == ["63 samples are few: some hundred are better"]
