"""Operators that work element by element: every name, every way in which values broadcast."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from onnxsparse.channel_classes.rules.elementwise import UNARY
from tests.cases import for_each
from tests.channels.net import Net, generator
from tests.channels.permuting import held

MICROSOFT = "com.microsoft"
WHOLE = ("BitwiseNot", "Not", "IsInf", "IsNaN")
OPSETS = {"Gelu": 20, "HardSwish": 17, "Mish": 18, "Swish": 24}


def start(net: Net, name: str = "first", width: int = 16) -> str:
    """Activations (2, 5, width) in (0, 1) with channels that may move along the last axis."""
    source = "x" if net.inputs else net.input("x", 2, 5, 8)
    return net("Sigmoid", net.linear(source, name, 8, width))


def close(net: Net, h: str, width: int = 16) -> str:
    return net.linear(h, "last", width, 6)


@for_each("op", [op for op in UNARY if op not in (*WHOLE, "Swish")])
def test_functions_of_one_value(op: str) -> None:
    net = Net(opset=OPSETS.get(op, 17))
    held(net, close(net, net(op, start(net))), move="first:1 first_b last:0", stay="first:0 last:1")


@for_each("op", ["IsInf", "IsNaN", "Not", "BitwiseNot"])
def test_functions_of_bits(op: str) -> None:
    net = Net(opset=18)
    h = net("Greater", start(net), net.number(0.5)) if op == "Not" else start(net)
    if op == "BitwiseNot":
        h = net("Cast", net("Mul", h, net.number(50)), to=TensorProto.INT32)
    held(net, close(net, net("Add", net("Cast", net(op, h), to=1), start(net, "second"))), move="first:1 last:0")


@for_each("op", ["Gelu", "QuickGelu", "FastGelu"])
def test_functions_of_microsoft(op: str) -> None:
    net = Net()
    held(net, close(net, net(op, start(net), domain=MICROSOFT)), move="first:1 last:0", stay="last:1")


@for_each("op", ["BiasGelu", "FastGelu"])
def test_functions_with_a_bias(op: str) -> None:
    net = Net()
    h = net(op, start(net), net.weight("bias", 16), domain=MICROSOFT)
    held(net, close(net, h), move="first:1 bias last:0", stay="last:1")


@for_each("op", ["Add", "Div", "Max", "Mean", "Min", "Mul", "Pow", "Sub", "Sum", "PRelu"])
@pytest.mark.parametrize("shape", [(16,), (1, 16), (5, 16), (2, 5, 16), (1, 1, 16)])
def test_a_stored_operand_moves_along(op: str, shape: tuple[int, ...]) -> None:
    net = Net()
    axis = len(shape) - 1
    h = net(op, start(net), net.weight("w", *shape, around=2.0))
    held(net, close(net, h), move=f"first:1 w:{axis} last:0", stay="first:0 last:1" + (" w:0" if axis else ""))


@for_each("op", ["Add", "Mul", "PRelu", "Max"])
@pytest.mark.parametrize("shape", [(), (1,), (5, 1), (2, 1, 1)])
def test_a_stored_operand_without_channels_stays(op: str, shape: tuple[int, ...]) -> None:
    net = Net()
    h = net(op, start(net), net.weight("w", *shape, around=2.0))
    held(net, close(net, h), move="first:1 last:0", stay="w last:1")


@for_each("op", ["Mean", "Sum", "Max", "Min"])
def test_of_one_and_of_many(op: str) -> None:
    net = Net()
    h = net(op, net(op, start(net)), start(net, "second"), net.weight("w", 16))
    held(net, close(net, h), move="first:1 second:1 w last:0", stay="last:1")


@for_each("op", ["And", "Or", "Xor", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"])
def test_comparisons(op: str) -> None:
    net = Net()
    one, other = start(net), start(net, "second")
    if op in ("And", "Or", "Xor"):
        one, other = (net("Greater", each, net.number(0.5)) for each in (one, other))
    h = net("Where", net(op, one, other), start(net, "third"), net.weight("w", 16))
    held(net, close(net, h), move="third:1 w last:0", stay="last:1")


@for_each(
    ("op", "more"),
    [("BitShift", {"direction": "LEFT"}), ("BitwiseAnd", {}), ("BitwiseOr", {}), ("BitwiseXor", {}), ("Mod", {})],
)
def test_of_whole_numbers(op: str, more: dict[str, str]) -> None:
    net = Net(opset=18)
    h = net("Cast", net("Mul", start(net), net.number(90)), to=TensorProto.UINT32)
    h = net(op, h, net.store("w", generator("w").integers(1, 9, 16).astype(np.uint32)), **more)
    held(net, close(net, net("Cast", h, to=1)), move="first:1 w last:0", stay="last:1")


def test_a_value_meets_itself() -> None:
    net = Net()
    h = start(net)
    held(net, close(net, net("Mul", h, h)), move="first:1 last:0", stay="last:1")


def test_a_value_meets_itself_transposed() -> None:
    """Rows become columns: what moves along the one would have to move along the other."""
    net = Net()
    h = net("MatMul", net("MatMul", net.weight("left", 16, 5), start(net)), net.weight("right", 16, 16))
    held(net, close(net, net("Sub", h, net.transpose(h, 0, 2, 1))), move="first:1 right:0", stay="left right:1 last:0")


def test_a_value_meets_itself_reversed() -> None:
    """A channel and its mirror image change places with another pair."""
    net = Net()
    h = start(net)
    held(net, close(net, net("Add", h, net.slice(h, -1, -17, axis=2, step=-1))), move="first:1 last:0", stay="last:1")


def test_two_kinds_of_channels_on_two_axes() -> None:
    """An outer sum: each axis has channels of its own."""
    net = Net()
    one = net("Unsqueeze", start(net), net.ints(3))
    other = net("Unsqueeze", start(net, "second", 12), net.ints(2))
    h = net("Relu", net("Sub", one, other))
    h = net.linear(h, "last", 12, 6)
    h = net("MatMul", net.weight("left", 3, 16), h)
    held(net, h, move="first:1 second:1 last:0 left:1", stay="last:1 left:0")


def test_clip_with_bounds_as_inputs() -> None:
    net = Net()
    h = net("Clip", start(net), net.number(0.2), net.number(0.7))
    held(net, close(net, net("Clip", h, "", net.number(0.6))), move="first:1 last:0", stay="last:1")


def test_where_with_a_stored_mask() -> None:
    net = Net()
    mask = net.store("mask", generator("mask").integers(0, 2, 16).astype(bool))
    held(net, close(net, net("Where", mask, start(net), net.number(0))), move="first:1 mask last:0", stay="last:1")


def test_cast_like_reads_only_the_type() -> None:
    net = Net()
    h = net("CastLike", start(net), net.weight("like", 8, 16))
    held(net, net("Add", close(net, h), net("MatMul", "x", net("MatMul", "like", net.weight("v", 16, 6)))),
         move="first:1 last:0 like:1 v:0", stay="last:1")  # fmt: skip


@for_each("op", ["Shape", "Size", "EyeLike", "RandomNormalLike", "RandomUniformLike"])
def test_what_reads_only_the_shape(op: str) -> None:
    """The weight whose shape is asked for moves."""
    net = Net()
    net.input("x", 2, 5, 8)
    made = net(op, net.weight("w", 8, 16, axis=0))
    zero = net("Cast", net("Mul", net("Cast", made, to=1), net.number(0)), to=1)
    h = net("Add", net("MatMul", "x", "w"), net("ReduceMax", zero))
    held(net, close(net, h), move="w:1 last:0", stay="w:0 last:1")


@for_each("masked", [False, True])
def test_dropout(masked: bool) -> None:
    net = Net()
    h, mask = net.many("Dropout", 2, start(net), net.number(0.5))
    h = net("Mul", h, net("Cast", mask, to=1)) if masked else h
    held(net, close(net, h), move="first:1 last:0", stay="last:1")


def test_dropout_in_training_stays() -> None:
    net = Net()
    h = net("Dropout", start(net), net.number(0.0), net.store("training", np.array(True)), seed=7)
    held(net, close(net, h), stay="first:1 last:0")


def test_constants_of_equal_elements() -> None:
    net = Net()
    ones = net("ConstantOfShape", net.ints(2, 5, 16))
    h = net("Add", net("Add", start(net), ones), net("Expand", net.number(3), net.ints(5, 16)))
    held(net, close(net, h), move="first:1 last:0", stay="last:1")


def test_of_rank_0_and_1() -> None:
    net = Net()
    h = net("MatMul", net.input("x", 8), net.weight("first", 8, 16))
    h = net("Add", net.relu(h), net.weight("b", 16))
    h = net("MatMul", net("Mul", h, net.number(0.5)), net.weight("last", 16))
    held(net, h, move="first:1 b last")


def test_a_number_that_all_are_added_to() -> None:
    net = Net()
    total = net("ReduceSum", start(net), keepdims=0)
    held(
        net,
        close(net, net("Add", net("Mul", total, net.number(0.01)), start(net, "second"))),
        move="first second last:0",
    )
