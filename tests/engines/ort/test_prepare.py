"""Any exported model becomes a graph to train that does the same: one small graph for each rule."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper
from onnx.helper import (
    make_graph,
    make_model,
    make_node,
    make_opsetid,
    make_tensor,
    make_tensor_value_info,
)

from onnxsparse.engines.ort import library
from onnxsparse.engines.ort.prepare import Prepared, prepare
from onnxsparse.engines.ort.sessions import Runner
from onnxsparse.errors import ModelError, OptionError

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")

FLOAT, HALF, DOUBLE, INT64, BOOL = (
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.DOUBLE,
    TensorProto.INT64,
    TensorProto.BOOL,
)


def numbers(*shape: int, seed: int = 0, dtype: object = np.float32) -> np.ndarray:
    return np.random.Generator(np.random.Philox(key=seed)).standard_normal(shape).astype(dtype)


def tensor(array: np.ndarray, name: str, tag: str = "") -> TensorProto:
    made = numpy_helper.from_array(array, name)
    made.doc_string = tag
    return made


def constant(array: np.ndarray, name: str, tag: str = "") -> NodeProto:
    return make_node("Constant", [], [name], value=tensor(array, name, tag))


def info(name: str, shape: list[object] | None, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return make_tensor_value_info(name, kind, shape)


def model(nodes, inputs, outputs, stored=(), opset: int = 17, functions=(), extra=(), ir: int = 8) -> ModelProto:
    graph = make_graph(nodes, "graph", inputs, outputs, list(stored))
    imports = [make_opsetid("", opset), *(make_opsetid(domain, 1) for domain in extra)]
    return make_model(graph, opset_imports=imports, functions=list(functions), ir_version=ir)


def ready(proto: ModelProto, feeds: dict[str, np.ndarray], batch: int = 4, tags=("t0",)) -> Prepared:
    """The prepared model, which must do what the given one does for each sample."""
    given = ModelProto()
    given.CopyFrom(proto)
    made = prepare(proto, set(tags), feeds, batch)
    onnx.checker.check_model(made.model, full_check=True)
    assert set(made.weights.values()) | set(made.unreached) == set(tags)
    assert [value.name for value in made.model.graph.output] == [signal.name for signal in made.signals]
    return made


def stored_in(made: Prepared) -> dict[str, np.ndarray]:
    return {one.name: numpy_helper.to_array(one) for one in made.model.graph.initializer}


def operators(made: Prepared) -> list[str]:
    return [node.op_type for node in made.model.graph.node]


X = info("x", ["N", 6])
FEED = {"x": numbers(8, 6)}
W = numbers(6, 5, seed=1)


# -- stored tensors


def test_weights_in_constant_nodes_become_initializers_under_their_name() -> None:
    made = ready(
        model([constant(W, "w", "t0"), make_node("MatMul", ["x", "w"], ["y"])], [X], [info("y", ["N", 5])]), FEED
    )
    assert made.weights == {"w": "t0"}
    assert np.array_equal(stored_in(made)["w"], W)
    assert made.batch == 4
    assert made.inputs == [("x", np.dtype(np.float32), (4, 6))]
    assert [(one.name, one.original, one.kind) for one in made.signals] == [("y", "y", "output")]


def test_chains_of_identities_lead_to_the_stored_tensor() -> None:
    nodes = [make_node("Identity", [f"w{i}"], [f"w{i + 1}"]) for i in range(5)]
    nodes.append(make_node("MatMul", ["x", "w5"], ["y"]))
    made = ready(model(nodes, [X], [info("y", ["N", 5])], [tensor(W, "w0", "t0")]), FEED)
    assert made.weights == {"w0": "t0"}
    assert operators(made) == ["MatMul"]


def test_initializers_that_are_listed_as_inputs_are_not_fed() -> None:
    made = ready(
        model(
            [make_node("MatMul", ["x", "w"], ["y"])], [X, info("w", [6, 5])], [info("y", None)], [tensor(W, "w", "t0")]
        ),
        FEED,
    )
    assert [name for name, _, _ in made.inputs] == ["x"]


def test_trained_weights_are_not_fused_with_what_follows_them() -> None:
    nodes = [
        make_node("Conv", ["x", "w"], ["a"]),
        make_node("BatchNormalization", ["a", "s", "b", "m", "v"], ["c"]),
        make_node("Mul", ["c", "k"], ["y"]),
    ]
    kernel = numbers(4, 3, 1, 1)
    four = [tensor(np.abs(numbers(4, seed=seed)) + 1, name) for seed, name in enumerate("sbmv")]
    proto = model(
        nodes,
        [info("x", [1, 3, 5, 5])],
        [info("y", None)],
        [tensor(kernel, "w", "t0"), *four, tensor(np.full((4, 1, 1), 2, np.float32), "k")],
    )
    made = ready(proto, {"x": numbers(8, 3, 5, 5)})
    assert np.array_equal(stored_in(made)["w"], kernel)
    assert made.batch == 4


def test_constant_arithmetic_without_weights_is_folded_and_with_weights_is_not() -> None:
    nodes = [
        make_node("Add", ["a", "a"], ["b"]),
        make_node("Transpose", ["w"], ["wt"], perm=[1, 0]),
        make_node("MatMul", ["x", "wt"], ["c"]),
        make_node("Add", ["c", "b"], ["y"]),
    ]
    proto = model(nodes, [X], [info("y", None)], [tensor(W.T.copy(), "w", "t0"), tensor(numbers(5), "a")])
    made = ready(proto, FEED)
    assert np.array_equal(stored_in(made)["w"], W.T)
    assert sum(np.array_equal(one, 2 * numbers(5)) for one in stored_in(made).values()) == 1
    assert "w" in made.weights


# -- taps


def test_outputs_that_end_in_a_sigmoid_are_tapped_before_it() -> None:
    nodes = [
        make_node("MatMul", ["x", "w"], ["logits"]),
        make_node("Sigmoid", ["logits"], ["p"]),
        make_node("Reshape", ["p", "shape"], ["y"]),
    ]
    stored = [tensor(W, "w", "t0"), tensor(np.array([-1, 5, 1]), "shape")]
    made = ready(model(nodes, [X], [info("y", None)], stored), FEED)
    assert [(one.name, one.original, one.kind) for one in made.signals] == [
        ("y", "y", "output"),
        ("logits", "y", "tap"),
    ]


def test_whole_number_outputs_are_dropped_for_the_floats_before_them() -> None:
    nodes = [make_node("MatMul", ["x", "w"], ["logits"]), make_node("ArgMax", ["logits"], ["y"], axis=1, keepdims=0)]
    made = ready(model(nodes, [X], [info("y", ["N"], INT64)], [tensor(W, "w", "t0")]), FEED)
    assert [(one.name, one.original, one.kind) for one in made.signals] == [("logits", "y", "tap")]
    assert operators(made) == ["MatMul"]


def test_taps() -> None:
    nodes = [
        make_node("Split", ["x"], ["a", "b"], axis=1),
        make_node("MatMul", ["a", "w"], ["m"]),
        make_node("MatMul", ["b", "w"], ["n"]),
        make_node("Softmax", ["m"], ["p"]),
        make_node("Concat", ["p", "n"], ["y"], axis=1),
    ]
    made = ready(model(nodes, [X], [info("y", None)], [tensor(W[:3], "w", "t0")], opset=13), FEED)
    assert [one.name for one in made.signals] == ["y", "m"]


# -- the batch


def test_a_batch_in_the_shape_of_a_reshape_is_taken_out() -> None:
    nodes = [make_node("Reshape", ["x", "shape"], ["f"]), make_node("MatMul", ["f", "w"], ["y"])]
    stored = [tensor(W, "w", "t0"), tensor(np.array([1, 6]), "shape")]
    made = ready(model(nodes, [info("x", [1, 2, 3])], [info("y", [1, 5])], stored), {"x": numbers(8, 2, 3)})
    assert made.batch == 4
    assert made.inputs[0][2] == (4, 2, 3)


def test_samples_that_are_mixed_without_a_word_are_noticed() -> None:
    nodes = [
        make_node("MatMul", ["x", "w"], ["a"]),
        make_node("ReduceMean", ["a"], ["m"], axes=[0], keepdims=1),
        make_node("Sub", ["a", "m"], ["b"]),
        make_node("Add", ["b", "x"], ["y"]),
    ]
    made = ready(model(nodes, [X], [info("y", None)], [tensor(numbers(6, 6), "w", "t0")]), FEED)
    assert made.batch == 1
    assert any("one sample at a time" in note and "differs" in note for note in made.notes)


def test_too_few_samples_for_an_input_are_refused() -> None:
    proto = model([make_node("MatMul", ["x", "w"], ["y"])], [X], [info("y", None)], [tensor(W, "w", "t0")])
    with pytest.raises(OptionError, match="no array for the input 'x'"):
        prepare(proto, {"t0"}, {}, 4)


def test_the_runner_says_why_a_graph_does_not_load() -> None:
    with pytest.raises(ModelError, match="does not load"):
        Runner(model([make_node("Nothing", ["x"], ["y"])], [X], [info("y", None)]))


__all__ = ["BOOL", "DOUBLE", "HALF", "make_tensor"]
