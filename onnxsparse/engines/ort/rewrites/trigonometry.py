"""Circular and hyperbolic functions and their inverses, drawn as their tangents (stop.py).

    tan' = 1 / cos^2      asin' = 1 / sqrt(1 - x^2)    acos' = -asin'                 atan' = 1 / (1 + x^2)
    sinh' = cosh          cosh' = sinh                 asinh' = 1 / sqrt(x^2 + 1)     acosh' = 1 / sqrt(x^2 - 1)
    atanh' = 1 / (1 - x^2)

What is below a fraction line is kept above 1e-12: at the edges of a domain the slope is steep, and not infinite.
"""

from __future__ import annotations

from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View
from onnxsparse.engines.ort.rewrites.stop import stopped, tangent
from onnxsparse.engines.ort.writer import Writer

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
