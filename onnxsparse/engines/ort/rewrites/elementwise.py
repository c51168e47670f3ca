"""Elementwise arithmetic for the training graph: casts, choices, sums, powers, trigonometry, step functions, Dropout.

A function that onnxruntime-training 1.19.2 has no gradient for is taken of its *stopped* input, plus its tangent there:

    y = f(s) + f'(s) (x - s), where s is x without its gradient

has the value f(x), as x - s = 0, and the gradient f'(x); f and f' may use any operator that the plain runtime has.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View
from onnxsparse.graph.attributes import attributes
from onnxsparse.graph.edit import Writer

# -- Values without their gradient, and functions drawn as their tangents.
#
# 1. The engine lets no gradient through integers. With I(x) = float(int64(x)), which cuts towards zero, and d = x -
#    I(x), which is exact, s = I(x) + I(2^62 d) / 2^62 is x to the last bit for 2^-38 < |x| < 2^63, is off by less than
#    2^-62 below, and has no gradient.
# 2. y = f(s) + f'(s) (x - s) then has the value f(x), as x - s = 0, and the gradient f'(x); f and f' may be written
#    with any operator that the plain runtime has.

_SCALE = 2.0**62


def stopped(x: str, writer: Writer) -> str:
    """The float values of `x`, through which no gradient flows."""
    whole = _through_whole(x, writer)
    rest = writer.node("Sub", x, whole)
    rest = _through_whole(writer.node("Mul", rest, writer.constant(_SCALE)), writer)
    return writer.node("Add", whole, writer.node("Mul", rest, writer.constant(1 / _SCALE)))


def tangent(x: str, point: str, slope: str, writer: Writer) -> str:
    """slope * (x - point), which is zero and has the gradient `slope`; `point` is `x`, stopped."""
    return writer.node("Mul", slope, writer.node("Sub", x, point))


def _through_whole(x: str, writer: Writer) -> str:
    return writer.cast(writer.cast(x, TensorProto.INT64), TensorProto.FLOAT)


# -- Circular and hyperbolic functions and their inverses, drawn as their tangents (above).
#
#     tan' = 1 / cos^2      asin' = 1 / sqrt(1 - x^2)    acos' = -asin'                 atan' = 1 / (1 + x^2)
#     sinh' = cosh          cosh' = sinh                 asinh' = 1 / sqrt(x^2 + 1)     acosh' = 1 / sqrt(x^2 - 1)
#     atanh' = 1 / (1 - x^2)
#
# What is below a fraction line is kept above 1e-12: at the edges of a domain the slope is steep, and not infinite.

_QUADRATICS = {
    "Asin": (-1.0, 1.0),
    "Acos": (-1.0, 1.0),
    "Atan": (1.0, 1.0),
    "Asinh": (1.0, 1.0),
    "Acosh": (1.0, -1.0),
    "Atanh": (-1.0, 1.0),
}
_ROOTS = ("Asin", "Acos", "Asinh", "Acosh")
_SMALLEST = 1e-12


class Trigonometry(Rewrite):
    """Each is taken of the stopped input, plus its tangent there."""

    operators = ("Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh")

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        x = node.input[0]
        point = stopped(x, writer)
        value = writer.node(node.op_type, point)
        slope = _slope(node.op_type, point, writer)
        writer.node("Add", value, tangent(x, point, slope, writer), to=node.output[0])
        return None


def _slope(op: str, x: str, writer: Writer) -> str:
    if op in ("Sinh", "Cosh"):
        return writer.node("Cosh" if op == "Sinh" else "Sinh", x)
    if op == "Tan":
        cosine = writer.node("Cos", x)
        return _inverse(writer.node("Mul", cosine, cosine), writer)
    factor, offset = _QUADRATICS[op]
    square = writer.node("Mul", writer.node("Mul", x, x), writer.constant(factor))
    below = writer.node("Add", square, writer.constant(offset))
    slope = _inverse(below, writer, root=op in _ROOTS)
    return writer.node("Neg", slope) if op == "Acos" else slope


def _inverse(below: str, writer: Writer, root: bool = False) -> str:
    bounded = writer.node("Max", below, writer.constant(_SMALLEST))
    return writer.node("Reciprocal", writer.node("Sqrt", bounded) if root else bounded)


# -- Step functions: flat wherever they have a derivative, which is zero.
#
#     y = f(x), dy/dx = 0
#
# They are taken of the stopped input (above); what else reads the input still passes its gradient.


class Steps(Rewrite):
    """Roundings, the sign, and the one-hot vector of the largest."""

    operators = ("Floor", "Ceil", "Round", "Sign", "Hardmax")

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        flat = stopped(node.input[0], writer)
        writer.node(node.op_type, flat, to=node.output[0], axis=attributes(node).get("axis"))
        return None


# -- The remainder of a division, as the straight line that it is between two steps.
#
#     y = fmod(a, b) = a - k b  with  k = (a - fmod(a, b)) / b, a whole number
#     dy/da = 1, dy/db = -k
#
# The value is that of the plain runtime at the stopped inputs (above), to the last bit.


class Mod(Rewrite):
    """fmod of floats; the other kind is defined for whole numbers only."""

    operators = ("Mod",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        if not attributes(node).get("fmod", 0):
            return "fmod=0 is not defined for floats"
        a, b = node.input
        at_a, at_b = stopped(a, writer), stopped(b, writer)
        value = writer.node("Mod", at_a, at_b, fmod=1)
        times = writer.node("Round", writer.node("Div", writer.node("Sub", at_a, value), at_b))
        along_b = writer.node("Mul", times, writer.node("Sub", b, at_b))
        change = writer.node("Sub", writer.node("Sub", a, at_a), along_b)
        writer.node("Add", value, change, to=node.output[0])
        return None


# -- Powers whose exponent is trained or is no float, and powers whose base broadcasts.
#
#     y = x^e, dy/dx = e x^(e - 1), dy/de = y log(x)
#
# 1. The engine has the first derivative, but gives a base that is broadcast a gradient of the wrong size, silently: the
#    base is expanded to the shape of the output first.
# 2. The second derivative is drawn as a tangent at the stopped values (above), where x > 0; elsewhere it is zero, as
#    no change of a real exponent is defined there.


class Power(Rewrite):
    """Left to the engine where the exponent is a fixed float and the base has the shape of the output."""

    operators = ("Pow",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        (base, exponent), shape = node.input, view.shapes.get(node.output[0])
        if shape is None or base not in view.shapes:
            return "the shapes of its values are not known"
        narrow, whole = view.shapes[base] != shape, view.types.get(exponent) != TensorProto.FLOAT
        if not (narrow or whole or exponent in view.gradients):
            return None
        base = writer.node("Expand", base, writer.constant(shape, "shape", "int64")) if narrow else base
        exponent = writer.cast(exponent, TensorProto.FLOAT) if whole else exponent
        if exponent in view.gradients:
            _trained(base, exponent, node.output[0], writer)
        else:
            writer.node("Pow", base, exponent, to=node.output[0])
        return None


def _trained(base: str, exponent: str, to: str, writer: Writer) -> None:
    at_base, at_exponent = stopped(base, writer), stopped(exponent, writer)
    zero, one = writer.constant(0.0), writer.constant(1.0)
    positive = writer.node("Greater", at_base, zero)
    logarithm = writer.node("Log", writer.node("Where", positive, at_base, one))
    value = writer.node("Pow", at_base, at_exponent)
    slope = writer.node("Where", positive, writer.node("Mul", value, logarithm), zero)
    along_base = writer.node("Pow", base, at_exponent)
    writer.node("Add", along_base, tangent(exponent, at_exponent, slope, writer), to=to)


# -- Sums and means of any number of tensors.
#
# Sum(a, b, c) = (a + b) + c
# Mean(a, b, c) = Sum(a, b, c) / 3


class Sums(Rewrite):
    """A chain of additions, each of which may broadcast."""

    operators = ("Sum", "Mean")

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        total = node.input[0]
        for name in node.input[1:]:
            total = writer.node("Add", total, name)
        count = len(node.input) if node.op_type == "Mean" else 1
        if count > 1:
            writer.node("Div", total, writer.constant(float(count)), to=node.output[0])
        else:
            writer.node("Identity", total, to=node.output[0])
        return None


# -- A choice between tensors that broadcast.
#
# The engine gives a broadcast branch a gradient of the wrong size, silently: the branches through which a gradient
# flows are expanded to the shape of the output first.


class Where(Rewrite):
    """The condition and branches without a gradient stay as they are."""

    operators = ("Where",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        shape, branches = view.shapes.get(node.output[0]), node.input[1:]
        if shape is None or any(name not in view.shapes for name in branches):
            return "the shapes of its branches are not known"
        narrow = [name in view.gradients and view.shapes[name] != shape for name in branches]
        if any(narrow):
            target = writer.constant(shape, "shape", "int64")
            wide = [writer.node("Expand", n, target) if is_narrow else n for n, is_narrow in zip(branches, narrow)]
            writer.node("Where", node.input[0], *wide, to=node.output[0])
        return None


# -- Casts that change nothing, and casts to the kind of another tensor.
#
# The engine takes a cast of floats to the same floats out of the graph, and then fails on what it left behind.


class Casts(Rewrite):
    """Identity, or Cast."""

    operators = ("Cast", "CastLike")

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        before = view.types.get(node.input[0])
        after = attributes(node).get("to") if node.op_type == "Cast" else view.types.get(node.input[1])
        if not after or not before:
            return "the types of its values are not known"
        if before == after:
            writer.node("Identity", node.input[0], to=node.output[0])
        elif node.op_type == "CastLike":
            writer.cast(node.input[0], after, to=node.output[0])
        return None


# -- Dropout does nothing here: a random node would not resume, and an inference graph has none to begin with.


class Dropout(Rewrite):
    """Passes its input on; a mask that is read is true everywhere."""

    operators = ("Dropout",)
    needless = True

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        if len(node.output) > 1 and node.output[1] in view.read:
            if node.input[0] not in view.shapes:
                return "its shape is not known, and its mask is read"
            mask = writer.constant(np.ones(view.shapes[node.input[0]], bool), "mask", bool)
            writer.node("Identity", mask, to=node.output[1])
        writer.node("Identity", node.input[0], to=node.output[0])
        return None
