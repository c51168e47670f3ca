"""What holds for all rewrites: rounds, notes, names, shapes that are read off a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxsparse.engines.ort import library, rewrites
from onnxsparse.engines.ort.rewrites.rewrite import View
from onnxsparse.engines.ort.shapes import infer_shapes
from tests.engines.ort.rewrites.numbers import floats

onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")
MS = "com.microsoft"


def graph(nodes: list[onnx.NodeProto], outputs: list[str], **stored: Any) -> onnx.ModelProto:
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, [2, 4])],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MS, 1)]
    return helper.make_model(made, opset_imports=opsets, ir_version=8)


def run(model: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), library.options(fold=False))
    return list(session.run(None, {"x": x}))


def test_rewrites_that_need_another_one_go_on_until_nothing_changes() -> None:
    fused = helper.make_node("FusedGemm", ["x", "w"], ["y"], domain=MS, activation="Softplus")
    model = graph([fused], ["y"], w=floats(4, 3))
    before = run(model, floats(2, 4))
    assert rewrites.apply(model, {"w"}) == []
    assert not {node.op_type for node in model.graph.node} & {"FusedGemm", "Softplus"}
    assert [value.name for value in model.graph.output] == ["y"]
    assert before[0].shape == (2, 3)


def test_without_a_gradient_nothing_changes() -> None:
    nodes = [helper.make_node("HardSwish", ["x"], ["a"]), helper.make_node("MatMul", ["a", "w"], ["y"])]
    model = graph(nodes, ["y"], w=floats(4, 3))
    assert rewrites.apply(model, {"w"}) == []
    assert [node.op_type for node in model.graph.node] == ["HardSwish", "MatMul"]


def test_behind_the_last_output_that_a_gradient_comes_from_nothing_changes() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("HardSwish", ["y"], ["a"]),
        helper.make_node("ArgMax", ["a"], ["k"], axis=1),
    ]
    model = graph(nodes, ["y", "k"], w=floats(4, 3))
    assert rewrites.apply(model, {"w"}) == []
    assert [node.op_type for node in model.graph.node] == ["MatMul", "HardSwish", "ArgMax"]


def test_a_refusal_leaves_the_node_and_names_it() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Einsum", ["a"], ["y"], equation="ii->i"),
    ]
    model = graph(nodes, ["y"], w=floats(4, 2))
    stored = len(model.graph.initializer)
    assert rewrites.apply(model, {"w"}) == ["Einsum Einsum_node: an operand has the same letter twice"]
    assert [node.op_type for node in model.graph.node] == ["MatMul", "Einsum"]
    assert len(model.graph.initializer) == stored


def test_every_node_gets_a_name_of_its_own() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="same"),
        helper.make_node("Relu", ["a"], ["b"], name="same"),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    model = graph(nodes, ["y"], w=floats(4, 3))
    rewrites.apply(model, {"w"})
    names = [node.name for node in model.graph.node]
    assert all(names)
    assert len(set(names)) == 3


def test_constants_that_nothing_reads_are_dropped_and_trained_ones_stay() -> None:
    model = graph([helper.make_node("MatMul", ["x", "w"], ["y"])], ["y"], w=floats(4, 3), u=floats(2), v=floats(2))
    rewrites.apply(model, {"w", "u"})
    assert [tensor.name for tensor in model.graph.initializer] == ["w", "u"]


def test_shapes_of_foreign_operators_are_read_off_a_run() -> None:
    nodes = [
        helper.make_node("FusedMatMul", ["x", "w"], ["a"], domain=MS),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    model = graph(nodes, ["y"], w=floats(4, 3))
    infer_shapes(model)
    view = View.of(model, {"w"})
    assert view.shapes["a"] == view.shapes["y"] == (2, 3)
    assert view.types["a"] == onnx.TensorProto.FLOAT


def test_a_shape_that_depends_on_the_data_stays_unknown() -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["a"]), helper.make_node("Transpose", ["a"], ["y"], perm=[1, 0])]
    model = graph(nodes, ["y"])
    infer_shapes(model)
    assert not {"a", "y"} & set(View.of(model, set()).shapes)


def test_a_graph_that_does_not_run_keeps_its_gaps() -> None:
    model = graph([helper.make_node("Wonder", ["x"], ["y"], domain=MS)], ["y"])
    infer_shapes(model)
    assert "y" not in View.of(model, set()).shapes


def test_values_read_in_nested_graphs_are_read() -> None:
    def branch(name: str) -> onnx.GraphProto:
        made = helper.make_node("Relu", ["a"], [name])
        return helper.make_graph([made], name, [], [helper.make_tensor_value_info(name, 1, [2, 3])])

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("If", ["c"], ["y"], then_branch=branch("t"), else_branch=branch("e")),
    ]
    model = graph(nodes, ["y"], w=floats(4, 3), c=np.array(True))
    infer_shapes(model)
    view = View.of(model, {"w"})
    assert view.flows(model.graph.node[1])
    rewrites.apply(model, {"w"})
    assert [node.op_type for node in model.graph.node] == ["MatMul", "If"]


def test_an_operator_of_the_training_graph_is_one_class_in_one_family() -> None:
    """Who adds one touches one file: every subclass of Rewrite is found, however deep."""
    families = {type(rewrite).__module__ for rewrite in rewrites.known().values()}
    assert all(name.startswith("onnxsparse.engines.ort.rewrites.") for name in families)
    assert {type(rewrites.known()[op]).__name__ for op in ("Clip", "Mish")} == {"Clip", "StandardBody"}
