"""Pooling for the training graph: explicit pads, dilated means as convolutions, pools without a gradient kernel."""

from __future__ import annotations

import math

import numpy as np
from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, reduce, reshape, result, window
from onnxsparse.graph.attributes import attributes
from onnxsparse.graph.edit import Writer


class MaxPool(Rewrite):
    """Right as it is, but for places counted in column order."""

    operators = ("MaxPool",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        if not attributes(node).get("storage_order", 0):
            return None
        if result(node, 1) in view.read:
            return "its indices are read in column order"
        kept = {name: value for name, value in attributes(node).items() if name != "storage_order"}
        writer.node("MaxPool", node.input[0], to=node.output[0], **kept)
        return None


class AveragePool(Rewrite):
    """`auto_pad` becomes `pads`; a dilated window becomes a convolution over each channel."""

    operators = ("AveragePool",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        given = attributes(node)
        dilated = any(size > 1 for size in given.get("dilations", []))
        if given.get("auto_pad", "NOTSET") == "NOTSET" and not dilated:
            return None
        shape = view.shapes.get(node.input[0])
        if shape is None:
            return "its shape is not known"
        kernel = given["kernel_shape"]
        strides, dilations, pads = window(node, shape, kernel)
        written = {"kernel_shape": kernel, "strides": strides, "pads": pads}
        if not dilated:
            kept = {name: given[name] for name in ("ceil_mode", "count_include_pad") if name in given}
            writer.node("AveragePool", node.input[0], to=node.output[0], **written, **kept)
            return None
        if given.get("ceil_mode") or (any(pads) and not given.get("count_include_pad")):
            return "it is dilated, with pads that are not counted or a rounded-up size"
        flat = reshape(writer, node.input[0], (shape[0] * shape[1], 1, *shape[2:]))
        even = writer.constant(np.full((1, 1, *kernel), 1 / math.prod(kernel), np.float32), "even")
        pooled = writer.node("Conv", flat, even, dilations=dilations, **written)
        reshape(writer, pooled, view.shapes[node.output[0]], to=node.output[0])
        return None


class GlobalMaxPool(Rewrite):
    """The largest of the flattened positions, found by TopK."""

    operators = ("GlobalMaxPool",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        shape = view.shapes.get(node.input[0])
        if shape is None:
            return "its shape is not known"
        flat = reshape(writer, node.input[0], (*shape[:2], math.prod(shape[2:])))
        largest, place = writer.fresh("largest"), writer.fresh("place")
        writer.many("TopK", flat, writer.constant([1], "one", np.int64), to=[largest, place], axis=2)
        reshape(writer, largest, (*shape[:2], *[1] * len(shape[2:])), to=node.output[0])
        return None


class LpPool(Rewrite):
    """The p-th root of a window's sum of p-th powers; the sum is a mean times the window's size."""

    operators = ("LpPool", "GlobalLpPool")

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        given = attributes(node)
        shape = view.shapes.get(node.input[0])
        if shape is None or given.get("ceil_mode") or any(size > 1 for size in given.get("dilations", [])):
            return "its shape is not known, or it is dilated or rounded up"
        power = float(given.get("p", 2))
        powers = writer.node("Pow", writer.node("Abs", node.input[0]), writer.constant(power, "power"))
        if node.op_type == "GlobalLpPool":
            total = reduce(writer, "ReduceSum", powers, range(2, len(shape)))
        else:
            kernel = given["kernel_shape"]
            strides, _, pads = window(node, shape, kernel)
            written = {"kernel_shape": kernel, "strides": strides, "pads": pads, "count_include_pad": 1}
            mean = writer.node("AveragePool", powers, **written)
            total = writer.node("Mul", mean, writer.constant(float(math.prod(kernel)), "size"))
        writer.node("Pow", total, writer.constant(1 / power, "power"), to=node.output[0])
        return None
