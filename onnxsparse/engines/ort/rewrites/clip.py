"""Clipping between bounds that are trained.

    Clip(x, low, high) = min(max(x, low), high)

The engine gives no gradient to the bounds of Clip. Both are scalars.
"""

from __future__ import annotations

from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View
from onnxsparse.engines.ort.writer import Writer


class Clip(Rewrite):
    """Left to the engine where the bounds are fixed."""

    operators = ("Clip",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        if not any(name in view.gradients for name in node.input[1:]):
            return None
        value, bounds = node.input[0], dict(zip(("Max", "Min"), node.input[1:]))
        for op, bound in bounds.items():
            value = writer.node(op, value, bound) if bound else value
        writer.node("Identity", value, to=node.output[0])
        return None
