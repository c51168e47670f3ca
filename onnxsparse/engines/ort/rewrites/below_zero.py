"""Activations that are the identity above zero and something else below it.

With p = max(x, 0) and n = min(x, 0), so that x = p + n:

    PRelu = p + slope n            Elu = p + alpha (exp(n) - 1)
    Celu = p + alpha (exp(n / alpha) - 1)
    Selu = gamma (p + alpha (exp(n) - 1))

At zero the derivative of p is 0 and that of n is 1: that of the whole is the one from below, which for Elu with
alpha = 1 and for Celu is the one from above, too.
"""

from __future__ import annotations

from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, attributes
from onnxsparse.engines.ort.writer import Writer

_SELU_ALPHA, _SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


class BelowZero(Rewrite):
    """The slope of PRelu may have any shape that broadcasts, and may be trained."""

    operators = ("PRelu", "Elu", "Celu", "Selu")

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        x, given = node.input[0], attributes(node)
        above = writer.node("Relu", x)
        below = writer.node("Clip", x, "", writer.constant(0.0))
        if node.op_type == "PRelu":
            writer.node("Add", above, writer.node("Mul", below, node.input[1]), to=node.output[0])
            return None
        alpha = given.get("alpha", _SELU_ALPHA if node.op_type == "Selu" else 1.0)
        if node.op_type == "Celu":
            below = writer.node("Div", below, writer.constant(alpha))
        curve = writer.node("Sub", writer.node("Exp", below), writer.constant(1.0))
        curve = writer.node("Mul", curve, writer.constant(alpha))
        gamma = given.get("gamma", _SELU_GAMMA) if node.op_type == "Selu" else 1.0
        writer.node("Mul", writer.node("Add", above, curve), writer.constant(gamma), to=node.output[0])
        return None
