"""Clipped straight lines.

HardSigmoid(x) = clip(alpha x + beta, 0, 1)
HardSwish(x) = x clip(x / 6 + 1/2, 0, 1)
"""

from __future__ import annotations

from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, attributes
from onnxsparse.engines.ort.writer import Writer


class HardSigmoid(Rewrite):
    """HardSigmoid and HardSwish."""

    operators = ("HardSigmoid", "HardSwish")

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        x, given = node.input[0], attributes(node)
        if node.op_type == "HardSigmoid":
            _clipped(x, given.get("alpha", 0.2), given.get("beta", 0.5), writer, to=node.output[0])
        else:
            writer.node("Mul", x, _clipped(x, 1 / 6, 0.5, writer), to=node.output[0])
        return None


def _clipped(x: str, alpha: float, beta: float, writer: Writer, to: str | None = None) -> str:
    line = writer.node("Add", writer.node("Mul", x, writer.constant(alpha)), writer.constant(beta))
    return writer.node("Clip", line, writer.constant(0.0), writer.constant(1.0), to=to)
