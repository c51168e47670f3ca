"""Values without their gradient, and functions drawn as their tangents.

1. The engine lets no gradient through integers. With I(x) = float(int64(x)), which cuts towards zero, and d = x - I(x),
   which is exact, s = I(x) + I(2^62 d) / 2^62 is x to the last bit for 2^-38 < |x| < 2^63, is off by less than 2^-62
   below, and has no gradient.
2. y = f(s) + f'(s) (x - s) then has the value f(x), as x - s = 0, and the gradient f'(x); f and f' may be written with
   any operator that the plain runtime has.
"""

from __future__ import annotations

from onnx import TensorProto

from onnxsparse.engines.ort.writer import Writer

_SCALE = 2.0**62


def stopped(x: str, writer: Writer) -> str:
    """The float values of `x`, through which no gradient flows."""
    whole = _cut(x, writer)
    rest = writer.node("Sub", x, whole)
    rest = _cut(writer.node("Mul", rest, writer.constant(_SCALE)), writer)
    return writer.node("Add", whole, writer.node("Mul", rest, writer.constant(1 / _SCALE)))


def tangent(x: str, point: str, slope: str, writer: Writer) -> str:
    """slope * (x - point), which is zero and has the gradient `slope`; `point` is `x`, stopped."""
    return writer.node("Mul", slope, writer.node("Sub", x, point))


def _cut(x: str, writer: Writer) -> str:
    return writer.cast(writer.cast(x, TensorProto.INT64), TensorProto.FLOAT)
