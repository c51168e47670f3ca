"""Channels to positions and back: a Reshape, a Transpose and a Reshape."""

from __future__ import annotations

from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, attributes
from onnxsparse.engines.ort.rewrites.shorthand import reshape
from onnxsparse.engines.ort.writer import Writer


class DepthToSpace(Rewrite):
    """In both orders of the channels."""

    operators = ("DepthToSpace",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        if node.input[0] not in view.shapes:
            return "its shape is not known"
        n, c, h, w = view.shapes[node.input[0]]
        size = attributes(node)["blocksize"]
        deep = c // size**2
        if attributes(node).get("mode", "DCR") == "DCR":
            split, order = (n, size, size, deep, h, w), (0, 3, 4, 1, 5, 2)
        else:
            split, order = (n, deep, size, size, h, w), (0, 1, 4, 2, 5, 3)
        turned = writer.node("Transpose", reshape(writer, node.input[0], split), perm=order)
        reshape(writer, turned, (n, deep, h * size, w * size), to=node.output[0])
        return None


class SpaceToDepth(Rewrite):
    """The places of a block become the slower part of the channels."""

    operators = ("SpaceToDepth",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        if node.input[0] not in view.shapes:
            return "its shape is not known"
        n, c, h, w = view.shapes[node.input[0]]
        size = attributes(node)["blocksize"]
        split = reshape(writer, node.input[0], (n, c, h // size, size, w // size, size))
        turned = writer.node("Transpose", split, perm=(0, 3, 5, 1, 2, 4))
        reshape(writer, turned, (n, c * size**2, h // size, w // size), to=node.output[0])
        return None
