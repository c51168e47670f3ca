"""Operators that combine values element by element: their channels are one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from onnxsparse.channels.tensors import Tensor, View
from onnxsparse.channels.walk import Node, Rule, Walk

UNARY = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Ceil", "Celu", "Cos", "Cosh", "Elu", "Erf",
    "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "IsInf", "IsNaN", "LeakyRelu", "Log", "Mish", "Neg", "Not",
    "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt",
    "Swish", "Tan", "Tanh", "ThresholdedRelu",
)  # fmt: skip
MANY = (
    "Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater", "GreaterOrEqual",
    "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "PRelu", "Pow", "Sub", "Sum", "Where", "Xor",
    "Clip",
)  # fmt: skip
MICROSOFT_UNARY = ("Gelu", "QuickGelu", "FastGelu", "BiasGelu", "BiasAdd", "BiasDropout")


def many(walk: Walk, node: Node) -> list[Tensor]:
    """Add, Mul, Where and the like; PRelu's slope broadcasts like a factor. A mask is of the same shape."""
    if node.opset < 7 and len({one.shape for one in node.inputs if one is not None}) > 1:
        return walk.blocked(node, f"{node.called} broadcasts along an axis of its own, as before opset 7")
    return [walk.elementwise(node, node.inputs, node.shape())] * len(node.shapes)


def passing(walk: Walk, node: Node) -> list[Tensor]:
    """Every number stays in its place: Identity, Cast, Dropout (whose mask is of the same shape)."""
    tensor = node.input(0)
    if tensor is None:
        return walk.blocked(node)
    return [replace(tensor, numbers=tensor.numbers if node.op in ("Identity", "Cast") else None)] * len(node.shapes)


def unary(walk: Walk, node: Node) -> list[Tensor]:
    """Relu, Tanh and the like. What they make of a weight moves with it."""
    return passing(walk, node)


def quantize(walk: Walk, node: Node) -> list[Tensor]:
    """QuantizeLinear, DequantizeLinear: the scale and zero point of an axis move with it; blocks of one do not."""
    tensor, scale, zero = node.input(0), node.input(1), node.input(2)
    if tensor is None or scale is None or tensor.shape is None or scale.shape is None:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    if scale.rank == tensor.rank and scale.rank > 1:
        return walk.blocked(node, f"{node.called} scales blocks of numbers")
    axis = node.attributes.integer("axis", 1) % max(tensor.rank, 1)
    numbers = [_along(one, axis, tensor.rank) for one in (scale, zero) if one is not None]
    return [walk.elementwise(node, [tensor, *numbers], tensor.shape)]


def _along(numbers: Tensor, axis: int, rank: int) -> Tensor:
    """A list of numbers as a value that broadcasts along one axis."""
    if numbers.shape is None:
        return numbers
    if numbers.rank == 0 or numbers.shape == (1,):
        return replace(numbers, shape=(1,) * rank, fields=(), views=(), uniform=True)
    places = tuple(0 if at == axis else None for at in range(rank))
    shape = tuple((numbers.shape or (None,))[0] if at == axis else 1 for at in range(rank))
    views = tuple(View(one.tag, tuple(one.axes[0] if at == 0 else None for at in places)) for one in numbers.views)
    fields = tuple(one.moved({0: axis}) for one in numbers.fields)
    return Tensor(shape, fields, views)


def filled(walk: Walk, node: Node) -> list[Tensor]:
    """ConstantOfShape: all elements are equal, so that none has a place."""
    target = node.input(0)
    shape = node.shape()
    if shape is None and target is not None and target.numbers is not None:
        shape = tuple(int(size) for size in target.numbers.reshape(-1))
    return [Tensor(shape, uniform=True)]


def unseen(walk: Walk, node: Node) -> list[Tensor]:
    """Shape and Size read no numbers; random numbers and ranges have fixed places."""
    return [Tensor(shape) for shape in node.shapes]


def constant(walk: Walk, node: Node) -> list[Tensor]:
    """A Constant node."""
    for attribute in node.proto.attribute:
        if attribute.name == "value":
            return [walk.constant(attribute.t)]
        if attribute.name == "value_ints":
            return [Tensor((len(attribute.ints),), numbers=np.array(attribute.ints, np.int64))]
        if attribute.name == "value_int":
            return [Tensor((), numbers=np.array(attribute.i, np.int64))]
        if attribute.name == "value_float":
            return [Tensor((), uniform=True)]
    return [Tensor(node.shape())]


RULES: dict[tuple[str, str], Rule] = {
    **{("", name): unary for name in UNARY},
    **{("", name): many for name in MANY},
    **{("com.microsoft", name): many for name in MICROSOFT_UNARY},
    **{("", name): passing for name in ("Identity", "Cast", "CastLike", "Dropout")},
    **{(domain, name): quantize for domain in ("", "com.microsoft") for name in ("QuantizeLinear", "DequantizeLinear")},
    **{
        ("", name): unseen
        for name in ("Shape", "Size", "Range", "RandomNormal", "RandomUniform", "EyeLike", "RandomNormalLike")
    },
    ("", "ConstantOfShape"): filled,
    ("", "Constant"): constant,
}

__all__ = ["RULES", "many", "passing"]
