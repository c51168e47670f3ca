"""Groups of nodes that many rewrites need."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import attributes
from onnxsparse.engines.ort.writer import Writer
from onnxsparse.math.values import Array


def given(node: NodeProto, place: int) -> str | None:
    """The name of an input that may be left out."""
    return node.input[place] if place < len(node.input) and node.input[place] else None


def result(node: NodeProto, place: int) -> str | None:
    """The name of an output that may be left out."""
    return node.output[place] if place < len(node.output) and node.output[place] else None


def reshape(writer: Writer, value: str, shape: Sequence[int], to: str | None = None) -> str:
    """A Reshape to fixed sizes."""
    return writer.node("Reshape", value, writer.constant(list(shape), "shape", np.int64), to=to)


def reduce(writer: Writer, op: str, value: str, axes: Sequence[int], keep: bool = True, to: str | None = None) -> str:
    """A reduction along at least one axis: the axes are an attribute or an input, as the opset has it."""
    if writer.opset >= (13 if op == "ReduceSum" else 18):
        return writer.node(op, value, writer.constant(list(axes), "axes", np.int64), keepdims=int(keep), to=to)
    return writer.node(op, value, axes=list(axes), keepdims=int(keep), to=to)


def gather(writer: Writer, value: str, places: Sequence[int] | Array, axis: int, to: str | None = None) -> str:
    """The given places along an axis, in the given order."""
    return writer.node("Gather", value, writer.constant(places, "places", np.int64), axis=axis, to=to)


def part(writer: Writer, value: str, start: int, end: int, axis: int, to: str | None = None) -> str:
    """The places from `start` up to `end` along an axis."""
    limits = [writer.constant([number], "limit", np.int64) for number in (start, end, axis)]
    return writer.node("Slice", value, *limits, to=to)


def standardized(writer: Writer, value: str, axes: Sequence[int], epsilon: float) -> str:
    """(value - mean) / sqrt(variance + epsilon) over some axes."""
    centered = writer.node("Sub", value, reduce(writer, "ReduceMean", value, axes))
    return writer.node("Div", centered, root_mean_square(writer, centered, axes, epsilon))


def root_mean_square(writer: Writer, value: str, axes: Sequence[int], epsilon: float) -> str:
    """sqrt(mean(value * value) + epsilon) over some axes."""
    mean = reduce(writer, "ReduceMean", writer.node("Mul", value, value), axes)
    return writer.node("Sqrt", writer.node("Add", mean, writer.constant(epsilon, "epsilon")))


def window(node: NodeProto, shape: Sequence[int], kernel: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """Strides, dilations and explicit pads (all begins, then all ends) of a node that moves a window over its input."""
    given = attributes(node)
    ones = [1] * len(kernel)
    strides, dilations = given.get("strides", ones), given.get("dilations", ones)
    mode = given.get("auto_pad", "NOTSET")
    if not mode.startswith("SAME"):
        none = [0] * 2 * len(kernel)
        return strides, dilations, given.get("pads", none) if mode == "NOTSET" else none
    totals = [
        max((math.ceil(size / stride) - 1) * stride + (width - 1) * dilation + 1 - size, 0)
        for size, stride, width, dilation in zip(shape[2:], strides, kernel, dilations)
    ]
    less, more = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return strides, dilations, less + more if mode == "SAME_UPPER" else more + less
