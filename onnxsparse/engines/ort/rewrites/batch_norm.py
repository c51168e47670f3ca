"""Batch normalization with frozen statistics; the engine would silently take those of the batch.

y = x * s + (bias - mean * s) with s = scale / sqrt(variance + epsilon). Scale and bias stay the tensors they are.
"""

from __future__ import annotations

from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, attributes
from onnxsparse.engines.ort.rewrites.shorthand import reshape
from onnxsparse.engines.ort.writer import Writer


class BatchNormalization(Rewrite):
    """As in inference, whatever `training_mode` says."""

    operators = ("BatchNormalization",)
    needless = True

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        if any(name in view.read for name in node.output[1:] if name):
            return "its statistics are read"
        shape = view.shapes.get(node.input[0])
        if shape is None:
            return "its shape is not known"
        x, scale, bias, mean, variance = node.input
        epsilon = writer.constant(attributes(node).get("epsilon", 1e-5), "epsilon")
        deviation = writer.node("Sqrt", writer.node("Add", variance, epsilon))
        slope = writer.node("Div", scale, deviation)
        offset = writer.node("Sub", bias, writer.node("Mul", mean, slope))
        channels = (shape[1] if len(shape) > 1 else 1, *[1] * (len(shape) - 2))
        scaled = writer.node("Mul", x, reshape(writer, slope, channels))
        writer.node("Add", scaled, reshape(writer, offset, channels), to=node.output[0])
        return None
