"""Normalization over positions (and groups of channels), written with means."""

from __future__ import annotations

from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, attributes
from onnxsparse.engines.ort.rewrites.shorthand import reshape, standardized
from onnxsparse.engines.ort.writer import Writer


class InstanceNormalization(Rewrite):
    """Each channel of each sample by itself."""

    operators = ("InstanceNormalization",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        shape = view.shapes.get(node.input[0])
        if shape is None:
            return "its shape is not known"
        epsilon = attributes(node).get("epsilon", 1e-5)
        normal = standardized(writer, node.input[0], range(2, len(shape)), epsilon)
        _scaled(writer, normal, node, (shape[1], *[1] * (len(shape) - 2)))
        return None


class GroupNormalization(Rewrite):
    """Groups of channels; scale and bias belong to groups before opset 21, to channels since."""

    operators = ("GroupNormalization",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        shape, sizes = view.shapes.get(node.input[0]), view.shapes.get(node.input[1])
        if shape is None or sizes is None:
            return "its shape is not known"
        groups, epsilon = attributes(node)["num_groups"], attributes(node).get("epsilon", 1e-5)
        grouped = (shape[0], groups, shape[1] // groups, *shape[2:])
        normal = standardized(writer, reshape(writer, node.input[0], grouped), range(2, len(grouped)), epsilon)
        inner = (groups, sizes[0] // groups, *[1] * (len(shape) - 2))
        scaled = writer.fresh("scaled")
        _scaled(writer, normal, node, inner, scaled)
        reshape(writer, scaled, shape, to=node.output[0])
        return None


def _scaled(writer: Writer, normal: str, node: NodeProto, shape: tuple[int, ...], to: str | None = None) -> None:
    product = writer.node("Mul", normal, reshape(writer, node.input[1], shape))
    writer.node("Add", product, reshape(writer, node.input[2], shape), to=to or node.output[0])
