"""Slices that run backwards, and Splits of which a part goes nowhere."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, attributes
from onnxsparse.engines.ort.rewrites.shorthand import gather, given, part
from onnxsparse.engines.ort.writer import Writer
from onnxsparse.math.values import Array


class Slice(Rewrite):
    """Along an axis with a negative step, the places are gathered."""

    operators = ("Slice",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        steps = view.constant(node.input[4]) if given(node, 4) else np.ones(1, np.int64)
        if steps is not None and (steps > 0).all():
            return None
        shape = view.shapes.get(node.input[0])
        starts, ends = view.constant(node.input[1]), view.constant(node.input[2])
        axes = view.constant(node.input[3]) if given(node, 3) else np.arange(len(shape or ()))
        if shape is None or steps is None or starts is None or ends is None or axes is None:
            return "its shape or limits are not fixed"
        value = node.input[0]
        for axis, start, end, step in zip(axes % len(shape), starts, ends, steps):
            value = gather(writer, value, _places(shape[axis], start, end, step), int(axis))
        writer.node("Identity", value, to=node.output[0])
        return None


def _places(size: int, start: int, end: int, step: int) -> Array:
    # An end before the first place means "through the very first one", which Python writes as None.
    return np.arange(size)[int(start) : None if end < -size and step < 0 else int(end) : int(step)]


class Split(Rewrite):
    """The gradient of a Split forgets the parts that no gradient comes back from; Slices do not."""

    operators = ("Split",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        if all(name in view.gradients for name in node.output):
            return None
        axis = attributes(node).get("axis", 0)
        sizes = _sizes(node, view, axis)
        if sizes is None:
            return "the sizes of its parts are not known"
        for name, size, end in zip(node.output, sizes, accumulate(sizes)):
            if name in view.read:
                part(writer, node.input[0], end - size, end, axis, to=name)
        return None


def _sizes(node: NodeProto, view: View, axis: int) -> list[int] | None:
    listed = view.constant(node.input[1]) if given(node, 1) else None
    if listed is not None:
        return [int(size) for size in listed]
    shapes = [view.shapes.get(name) for name in node.output]
    return [shape[axis] for shape in shapes if shape is not None] if None not in shapes else None
