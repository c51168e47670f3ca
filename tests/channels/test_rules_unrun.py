"""Operators that no runtime on a CPU has: their channels are those of the operators that they stand for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx.shape_inference
from onnx import ModelProto, ValueInfoProto, helper

from onnxsparse.channel_classes.classes import analyse
from onnxsparse.graph.model import Model
from tests.cases import for_each
from tests.channels.net import Net
from tests.channels.permuting import held_by_reference

MICROSOFT = "com.microsoft"
Graph = Callable[[Net, str, bool], str]
"""Continues from activations (2, 16, 16): by the operator, or by those that it stands for."""


def bias_add(net: Net, h: str, fused: bool) -> str:
    bias, skip = net.weight("b", 16), net.linear(h, "skip", 16, 16)
    return net("BiasAdd", h, bias, skip, domain=MICROSOFT) if fused else net("Add", net("Add", h, bias), skip)


def bias_dropout(net: Net, h: str, fused: bool) -> str:
    bias, skip = net.weight("b", 16), net.linear(h, "skip", 16, 16)
    if fused:
        return net("BiasDropout", h, bias, skip, domain=MICROSOFT)
    return net("Add", net("Dropout", net("Add", h, bias)), skip)


def gemm_fast_gelu(net: Net, h: str, fused: bool) -> str:
    stored = net.weight("w", 16, 16), net.weight("b", 16)
    if fused:
        return net("GemmFastGelu", h, *stored, domain=MICROSOFT)
    return net("Gelu", net("Add", net("MatMul", h, stored[0]), stored[1]))


def fused_matmul_activation(net: Net, h: str, fused: bool) -> str:
    weight = net.weight("w", 12, 16)
    if fused:
        h = net("FusedMatMulActivation", h, weight, domain=MICROSOFT, transB=1, activation="Relu")
    else:
        h = net.relu(net("MatMul", h, net.transpose(weight, 1, 0)))
    return net.linear(h, "back", 12, 16)


def matmul_of_16_bits(net: Net, h: str, fused: bool) -> str:
    stored = net.store("w", np.arange(256, dtype=np.int16).reshape(16, 16))
    h, weight = net("Cast", h, to=5), stored if fused else net("Cast", stored, to=1)
    h = net("MatMulInteger16", h, weight, domain=MICROSOFT) if fused else net("MatMul", net("Cast", h, to=1), weight)
    return net("Cast", h, to=1)


def group_norm(net: Net, h: str, fused: bool) -> str:
    """That of Microsoft has channels last."""
    stored, h = (net.weight("s", 16), net.weight("b", 16)), net.reshape(h, 2, 4, 4, 16)
    if fused:
        h = net("GroupNorm", h, *stored, domain=MICROSOFT, groups=4, activation=1)
    else:
        h = net.transpose(net("GroupNormalization", net.transpose(h, 0, 3, 1, 2), *stored, num_groups=4), 0, 2, 3, 1)
    return net.reshape(h, 2, 16, 16)


def quantized_mean(net: Net, h: str, fused: bool) -> str:
    step, point = net.number(0.1), net.store("point", np.array(3, np.uint8))
    h = net("QuantizeLinear", h, step, point)
    if fused:
        h = net("QLinearReduceMean", h, step, point, step, point, domain=MICROSOFT, axes=[1], keepdims=1)
    else:
        h = net("Cast", net("ReduceMean", net("Cast", h, to=1), net.ints(1), keepdims=1), to=2)
    return net("DequantizeLinear", h, step, point)


def quantized_where(net: Net, h: str, fused: bool) -> str:
    stored, mask = (net.number(0.1), net.store("point", np.array(3, np.uint8))), net("Greater", h, net.number(0))
    h, other = (net("QuantizeLinear", one, *stored) for one in (h, net.linear(h, "skip", 16, 16)))
    if fused:
        h = net("QLinearWhere", mask, h, *stored, other, *stored, *stored, domain=MICROSOFT)
    else:
        h = net("Where", mask, h, other)
    return net("DequantizeLinear", h, *stored)


GRAPHS: dict[str, Graph] = {
    "BiasAdd": bias_add,
    "BiasDropout": bias_dropout,
    "FusedMatMulActivation": fused_matmul_activation,
    "GemmFastGelu": gemm_fast_gelu,
    "GroupNorm": group_norm,
    "MatMulInteger16": matmul_of_16_bits,
    "QLinearReduceMean": quantized_mean,
    "QLinearWhere": quantized_where,
}


@for_each("op", list(GRAPHS))
def test_channels_are_those_of_what_it_stands_for(op: str) -> None:
    fused, plain = (_classes(GRAPHS[op], one) for one in (True, False))
    assert fused == plain
    assert ("first", (1,)) in {member for members in fused.values() for member in members}


def _classes(graph: Graph, fused: bool) -> dict[object, set[tuple[str, tuple[int, ...]]]]:
    """Each class by its first member, with all members that have names of their own."""
    net = Net(opset=21, ir=10)
    h = net.relu(net.linear(net.input("x", 2, 16, 8), "first", 8, 16))
    model = _unrun(net, net.linear(graph(net, h, fused), "last", 16, 6))
    found: dict[object, set[tuple[str, tuple[int, ...]]]] = {}
    for one in analyse(Model.open(model)).classes:
        members = {(member.name, member.axes) for member in one.members}
        found[(*min(members), one.size)] = members
    return found


def _unrun(net: Net, output: str) -> ModelProto:
    graph = helper.make_graph(net.nodes, "net", net.inputs, [ValueInfoProto(name=output)], net.initializers)
    imports = [helper.make_opsetid("", net.opset), helper.make_opsetid(MICROSOFT, 1)]
    return onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=imports, ir_version=net.ir))


@for_each("axis", [1, 2])
def test_products_up_to_each(axis: int) -> None:
    """Judged by the reference of onnx."""
    net = Net(opset=26, ir=11)
    h = net("Sigmoid", net.linear(net.input("x", 2, 5, 8), "first", 8, 16))
    h = net.linear(net("CumProd", h, net.store("axis", np.array(axis))), "last", 16, 6)
    move = {"move": "first:1 last:0"} if axis == 1 else {"stay": "first:1 last"}
    held_by_reference(net, h, **move)


@for_each(("op", "more"), [("Add", {"broadcast": 1, "axis": 1}), ("Mul", {"broadcast": 1, "axis": 1}), ("PRelu", {})])
def test_values_that_are_spread_from_an_axis(op: str, more: dict[str, int]) -> None:
    """Before opset 7 a stored vector of the channels stands along axis 1."""
    net = Net(opset=6, ir=3)
    h = net(op, net.conv(net.image(8), "first", 8, 16, bias=False), net.weight("b", 16), **more)
    found = analyse(Model.open(_unrun(net, net.conv(h, "last", 16, 6)))).classes
    assert [{(one.name, one.axes) for one in found[0].members}] == [{("first", (0,)), ("b", (0,)), ("last", (1,))}]
    assert len(found) == 1
