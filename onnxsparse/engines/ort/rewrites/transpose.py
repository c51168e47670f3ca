"""A transposition that does not say how: all axes turn around. The engine fails without the attribute."""

from __future__ import annotations

from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, attributes
from onnxsparse.engines.ort.writer import Writer


class Transpose(Rewrite):
    """Says how."""

    operators = ("Transpose",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        if "perm" in attributes(node):
            return None
        shape = view.shapes.get(node.input[0])
        if shape is None:
            return "its rank is not known"
        writer.node("Transpose", node.input[0], to=node.output[0], perm=list(range(len(shape)))[::-1])
        return None
