"""Smooth activations.

    Softplus(x) = log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|)), where nothing overflows
    Mish(x) = x tanh(Softplus(x))
    Softsign(x) = x / (1 + |x|)
    Swish(x) = x sigmoid(alpha x)

At zero the engine halves the gradient of the maximum and drops that of |x|: the derivative of Softplus is 1/2 there.
"""

from __future__ import annotations

from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, attributes
from onnxsparse.engines.ort.writer import Writer


class Softplus(Rewrite):
    """Softplus, Mish and Softsign; Swish, which is younger than the engine."""

    operators = ("Softplus", "Mish", "Softsign", "Swish")

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        x, to = node.input[0], node.output[0]
        if node.op_type == "Softplus":
            _softplus(x, writer, to)
        elif node.op_type == "Mish":
            writer.node("Mul", x, writer.node("Tanh", _softplus(x, writer)), to=to)
        elif node.op_type == "Softsign":
            writer.node("Div", x, writer.node("Add", writer.node("Abs", x), writer.constant(1.0)), to=to)
        else:
            line = writer.node("Mul", x, writer.constant(attributes(node).get("alpha", 1.0)))
            writer.node("Mul", x, writer.node("Sigmoid", line), to=to)
        return None


def _softplus(x: str, writer: Writer, to: str | None = None) -> str:
    smaller = writer.node("Exp", writer.node("Neg", writer.node("Abs", x)))
    smooth = writer.node("Log", writer.node("Add", smaller, writer.constant(1.0)))
    return writer.node("Add", writer.node("Max", x, writer.constant(0.0)), smooth, to=to)
