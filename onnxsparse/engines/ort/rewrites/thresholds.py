"""Activations that choose between straight lines.

ThresholdedRelu(x) = x if x > alpha else 0
Shrink(x) = x - bias if x > lambda, x + bias if x < -lambda, else 0
"""

from __future__ import annotations

from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, attributes
from onnxsparse.engines.ort.writer import Writer


class Thresholds(Rewrite):
    """The comparison lets no gradient through, and the line that is chosen does."""

    operators = ("ThresholdedRelu", "Shrink")

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        x, given, zero = node.input[0], attributes(node), writer.constant(0.0)
        if node.op_type == "ThresholdedRelu":
            _chosen("Greater", x, given.get("alpha", 1.0), x, zero, writer, node.output[0])
            return None
        edge, bias = given.get("lambd", 0.5), writer.constant(given.get("bias", 0.0))
        low = _chosen("Less", x, -edge, writer.node("Add", x, bias), zero, writer)
        _chosen("Greater", x, edge, writer.node("Sub", x, bias), low, writer, node.output[0])
        return None


def _chosen(op: str, x: str, edge: float, one: str, other: str, writer: Writer, to: str | None = None) -> str:
    return writer.node("Where", writer.node(op, x, writer.constant(edge)), one, other, to=to)
