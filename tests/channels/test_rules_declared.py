"""Declared shapes are not believed where operators say something else, and nonsense blocks what it reads."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from onnxsparse.channel_classes.classes import analyse
from onnxsparse.graph.model import Model
from tests.cases import for_each
from tests.channels.net import Net
from tests.channels.permuting import permuted


def moving(model: ModelProto) -> set[str]:
    return {name for seed in range(2) for name in permuted(model, seed)[1]}


def outer_sum() -> ModelProto:
    """(N, 16) of activations and a stored (16, 1), whose rows stand beside those of a batch of 16."""
    net = Net()
    h = net.relu(net.linear(net.input("x", 16, 8, dims=["N", 8]), "first", 8, 16))
    h = net("ReduceSum", net("Mul", h, net.weight("w", 16, 1)), net.ints(0), keepdims=0)
    return net.build(net.linear(net.reshape(h, 1, 16), "last", 16, 6))


def test_shapes_that_are_left_from_before_an_edit() -> None:
    """The file says that the batch is one: then the rows of `w` would be channels that begin here."""
    model = outer_sum()
    honest = moving(model)
    assert "first:1" in honest
    assert "w" not in honest
    for node in model.graph.node[:-1]:
        shape = [1, 16] if node.op_type in ("MatMul", "Add", "Relu") else None
        if shape:
            model.graph.value_info.append(helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, shape))
    assert moving(model) == honest


@for_each("said", [-1, 0, "?", "None", ""])
def test_sizes_that_exporters_write_for_unknown(said: int | str) -> None:
    """(N, 16, W) is read as (W, 16, N): equal names are no equal sizes here."""
    net = Net()
    h = net.transpose(net.relu(net.linear(net.input("x", 4, 6, 8, dims=["N", "W", 8]), "first", 8, 16)), 0, 2, 1)
    shape = net("Shape", h)
    turned = net("Concat", net("Gather", shape, net.ints(2)), net.ints(16), net("Gather", shape, net.ints(0)), axis=0)
    h = net("ReduceMax", net("Reshape", h, turned), axes=[2], keepdims=0)
    model = net.build(net.linear(h, "last", 16, 6))
    for dim in model.graph.input[0].type.tensor_type.shape.dim[:2]:
        dim.ClearField("dim_param")
        setattr(dim, "dim_param" if isinstance(said, str) else "dim_value", said)
    del model.graph.value_info[:]
    assert "last:0" not in moving(model)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [("Split", {"axis": 7}), ("Transpose", {"perm": [0, 5, 1]}), ("Softmax", {"axis": -9}), ("Concat", {"axis": 4}),
     ("Gather", {"axis": "a"}), ("Reshape", {}), ("Conv", {"group": 0}), ("BatchNormalization", {}), ("Gemm", {}),
     ("Einsum", {"equation": "->->,"}), ("DepthToSpace", {"blocksize": 0}), ("Resize", {"axes": [9]}), ("MatMul", {}),
     ("GroupNormalization", {"num_groups": 0}), ("QLinearConv", {}), ("ScatterND", {}), ("Tile", {}), ("Where", {})],
)  # fmt: skip
def test_nodes_that_make_no_sense(op: str, attributes: dict[str, object]) -> None:
    """The channels that they read stay; what is beside them moves."""
    net = Net()
    h = net.relu(net.linear(net.input("x", 2, 5, 8), "first", 8, 16))
    aside = net.relu(net.linear("x", "aside", 8, 16))
    net.nodes.append(
        helper.make_node(op, [h, net.store("odd", np.ones((2, 3), np.float32)), h], ["made"], **attributes)
    )
    y = net("Sigmoid", "made")
    z = net.linear(aside, "last", 16, 6)
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in (y, z)]
    graph = helper.make_graph(net.nodes, "net", net.inputs, outputs, net.initializers)
    found = analyse(Model.open(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])))
    members = {(member.name, member.axes) for one in found.classes for member in one.members}
    assert ("aside", (1,)) in members
    assert not {name for name, _ in members} & {"first", "odd"}
