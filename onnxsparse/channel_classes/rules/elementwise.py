"""Operators that combine values element by element: their channels are one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from onnx import TensorProto, numpy_helper

from onnxsparse.channel_classes.tensors import Sizes, Tensor, View
from onnxsparse.channel_classes.walk import Node, Rule, Walk
from onnxsparse.graph.shape_values import LARGEST
from onnxsparse.math.values import Array

BROADCASTING = 7
"""The opset from which values broadcast from their last axis."""
WHOLE = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT32, TensorProto.INT64)
"""Types in which a small integer stays what it is."""

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
MICROSOFT_UNARY = ("Gelu", "QuickGelu", "FastGelu", "BiasGelu", "BiasAdd")


def many(walk: Walk, node: Node) -> list[Tensor]:
    """Add, Mul, Where and the like; PRelu's slope broadcasts like a factor."""
    if node.opset < BROADCASTING and node.op not in ("Sum", "Mean", "Max", "Min", "Where"):
        return _of_old_opset(walk, node)
    return [walk.elementwise(node, node.inputs, node.shape())]


def _of_old_opset(walk: Walk, node: Node) -> list[Tensor]:
    """Before opset 7 the second value is spread from an axis on, only where an attribute says so."""
    tensor, other = node.input(0), node.input(1)
    if tensor is None or other is None or tensor.shape is None or other.shape is None or len(node.inputs) > 2:
        return [walk.elementwise(node, node.inputs, node.shape())]
    axis = 1 if node.op == "PRelu" else node.attributes.integer("axis", tensor.rank - other.rank)
    if node.op == "PRelu" and (other.rank != 1 or other.shape == (1,)):
        axis = tensor.rank - other.rank
    spread = walk.widened(other, max(tensor.rank - other.rank - axis % max(tensor.rank, 1), 0))
    return [walk.elementwise(node, [tensor, spread], tensor.shape)]


def passing(walk: Walk, node: Node) -> list[Tensor]:
    """Every number stays in its place: Identity, Cast, activations. What they make of a weight moves with it."""
    tensor = node.input(0)
    if tensor is None:
        return walk.blocked(node)
    known = node.op == "Identity" or (node.op == "Cast" and node.attributes.integer("to") in WHOLE)
    return [replace(tensor, numbers=tensor.numbers if known else None)]


def like(walk: Walk, node: Node) -> list[Tensor]:
    """CastLike: only the type of the second input is read."""
    for other in node.inputs[1:]:
        if other is not None:
            walk.unread(other)
    return passing(walk, node)


def dropout(walk: Walk, node: Node) -> list[Tensor]:
    """Dropout, which keeps all in a model that is run; in one that trains it draws in a fixed order."""
    tensor, training = node.input(0), node.input(2)
    off = training is None or (training.numbers is not None and not training.numbers.any())
    if not off or (node.opset < BROADCASTING and not node.attributes.integer("is_test")):
        return walk.blocked(node, f"{node.called} draws random numbers in a fixed order")
    return [*passing(walk, node), Tensor(None if tensor is None else tensor.shape, uniform=True)]


def bias_dropout(walk: Walk, node: Node) -> list[Tensor]:
    """BiasDropout: a bias and a residual are added around a Dropout."""
    training = node.input(4)
    if training is not None and (training.numbers is None or training.numbers.any()):
        return walk.blocked(node, f"{node.called} draws random numbers in a fixed order")
    made = walk.elementwise(node, node.inputs[:3], node.shape())
    return [made, Tensor(made.shape, uniform=True)]


def along_axis(numbers: Tensor, axis: int, rank: int) -> Tensor:
    """A list of numbers as a value that broadcasts along one axis."""
    if numbers.shape is None or numbers.rank > 1:
        return Tensor(None, numbers.fields, numbers.views)
    if numbers.rank == 0 or numbers.shape == (1,):
        return replace(numbers, shape=(1,) * rank, fields=(), views=(), uniform=True)
    places = tuple(0 if at == axis else None for at in range(rank))
    shape = tuple((numbers.shape or (None,))[0] if at == axis else 1 for at in range(rank))
    views = tuple(View(one.tag, tuple(one.axes[0] if at == 0 else None for at in places)) for one in numbers.views)
    fields = tuple(one.moved({0: axis}) for one in numbers.fields)
    return Tensor(shape, fields, views, uniform=numbers.uniform)


def filled(walk: Walk, node: Node) -> list[Tensor]:
    """ConstantOfShape: all elements are equal, so that none has a place."""
    target = node.input(0)
    shape = node.shape()
    if shape is None and target is not None and target.numbers is not None:
        shape = tuple(int(size) for size in target.numbers.reshape(-1))
    return [Tensor(shape, numbers=_equal_integers(node, shape), uniform=True)]


def _equal_integers(node: Node, shape: Sizes | None) -> Array | None:
    """What ConstantOfShape makes where these are few integers: a target of Expand, for example."""
    value = next((one.t for one in node.proto.attribute if one.name == "value"), None)
    if value is None or value.data_type != TensorProto.INT64 or shape is None or None in shape:
        return None
    sizes = [size or 0 for size in shape]
    return np.full(sizes, numpy_helper.to_array(value).reshape(-1)[0]) if np.prod(sizes) <= LARGEST else None


def unseen(walk: Walk, node: Node) -> list[Tensor]:
    """Shape and Size read no numbers; random numbers and ranges have fixed places."""
    for tensor in node.inputs if node.op != "Range" else ():
        if tensor is not None:
            walk.unread(tensor)
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
    **{("", name): passing for name in UNARY},
    **{("", name): many for name in MANY},
    **{("com.microsoft", name): many for name in MICROSOFT_UNARY},
    **{("", name): passing for name in ("Identity", "Cast")},
    ("", "CastLike"): like,
    ("", "BitCast"): passing,
    ("", "SwiGLU"): many,
    ("", "Dropout"): dropout,
    ("com.microsoft", "BiasDropout"): bias_dropout,
    **{
        ("", name): unseen
        for name in (
            "EyeLike",
            "RandomNormal",
            "RandomNormalLike",
            "RandomUniform",
            "RandomUniformLike",
            "Range",
            "Shape",
            "Size",
        )
    },
    ("", "ConstantOfShape"): filled,
    ("", "Constant"): constant,
}

__all__ = ["RULES", "along_axis", "many", "passing"]
