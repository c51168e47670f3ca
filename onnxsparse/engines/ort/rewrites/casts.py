"""Casts that change nothing, and casts to the kind of another tensor.

The engine takes a cast of floats to the same floats out of the graph, and then fails on what it left behind.
"""

from __future__ import annotations

from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, attributes
from onnxsparse.engines.ort.writer import Writer


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
