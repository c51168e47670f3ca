"""Sums and means of any number of tensors.

Sum(a, b, c) = (a + b) + c
Mean(a, b, c) = Sum(a, b, c) / 3
"""

from __future__ import annotations

from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View
from onnxsparse.engines.ort.writer import Writer


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
