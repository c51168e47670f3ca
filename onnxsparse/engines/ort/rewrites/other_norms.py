"""Normalization by neighbouring channels, by the length of a vector, and to mean 0 and variance 1."""

from __future__ import annotations

import math

from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, attributes
from onnxsparse.engines.ort.rewrites.shorthand import reduce, reshape, standardized
from onnxsparse.engines.ort.writer import Writer

_TINY = 1e-24  # keeps the gradient of a vector of zeros finite


class LRN(Rewrite):
    """x / (bias + alpha * mean of the squares of `size` channels) ** beta; the mean is a pool along the channels."""

    operators = ("LRN",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        shape = view.shapes.get(node.input[0])
        if shape is None:
            return "its shape is not known"
        given = attributes(node)
        size, flat = given["size"], (shape[0], 1, shape[1], math.prod(shape[2:]))
        squares = reshape(writer, writer.node("Mul", node.input[0], node.input[0]), flat)
        pads = [(size - 1) // 2, 0, size // 2, 0]
        mean = writer.node("AveragePool", squares, kernel_shape=[size, 1], pads=pads, count_include_pad=1)
        share = writer.node("Mul", mean, writer.constant(given.get("alpha", 1e-4), "alpha"))
        total = writer.node("Add", reshape(writer, share, shape), writer.constant(given.get("bias", 1.0), "bias"))
        powers = writer.node("Pow", total, writer.constant(given.get("beta", 0.75), "beta"))
        writer.node("Div", node.input[0], powers, to=node.output[0])
        return None


class LpNormalization(Rewrite):
    """A vector divided by its length; zeros stay zeros."""

    operators = ("LpNormalization",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        shape = view.shapes.get(node.input[0])
        if shape is None:
            return "its shape is not known"
        axes = [attributes(node).get("axis", -1) % len(shape)]
        x, tiny = node.input[0], writer.constant(_TINY, "tiny")
        if attributes(node).get("p", 2) == 1:
            length = writer.node("Add", reduce(writer, "ReduceSum", writer.node("Abs", x), axes), tiny)
        else:
            total = reduce(writer, "ReduceSum", writer.node("Mul", x, x), axes)
            length = writer.node("Sqrt", writer.node("Add", total, tiny))
        writer.node("Div", x, length, to=node.output[0])
        return None


class MeanVarianceNormalization(Rewrite):
    """Over the given axes, without scale and bias."""

    operators = ("MeanVarianceNormalization",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        axes = attributes(node).get("axes", [0, 2, 3])
        writer.node("Identity", standardized(writer, node.input[0], axes, _TINY), to=node.output[0])
        return None
