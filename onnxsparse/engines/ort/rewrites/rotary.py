"""Positions as rotations: pairs of numbers are turned by an angle that their place gives.

    (a, b) becomes (a cos - b sin, b cos + a sin)

A pair is a number of the first half and one of the second, or two neighbours (`interleaved`).
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, attributes
from onnxsparse.engines.ort.rewrites.shorthand import gather, part, reshape
from onnxsparse.engines.ort.writer import Writer
from onnxsparse.math.values import Array


class RotaryEmbedding(Rewrite):
    """With stored tables of cosines and sines."""

    operators = ("com.microsoft:RotaryEmbedding",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        shape, table = view.shapes.get(node.input[0]), view.shapes.get(node.input[2])
        if shape is None or table is None or attributes(node).get("is_packed_batching"):
            return "its shapes are not known, or its batch is packed"
        options, turned = attributes(node), 2 * table[1]
        by_heads = len(shape) == 4
        batch, places = shape[0], shape[2] if by_heads else shape[1]
        width = shape[3] if by_heads else shape[2] // (options.get("num_heads") or shape[2] // turned)
        chosen = _places(node, view, places)
        if chosen is None and view.shapes.get(node.input[1]) != (batch, places):
            return "its first place is not fixed"
        if by_heads:
            x = writer.node("Transpose", node.input[0], perm=[0, 2, 1, 3])
        else:
            x = reshape(writer, node.input[0], (batch, places, shape[2] // width, width))
        cos, sin = (_looked_up(writer, name, chosen, node.input[1]) for name in node.input[2:4])
        found = _rotated(writer, x, cos, sin, turned, bool(options.get("interleaved", 0)))
        if width > turned:
            found = writer.node("Concat", found, part(writer, x, turned, width, 3), axis=3)
        if by_heads:
            writer.node("Transpose", found, perm=[0, 2, 1, 3], to=node.output[0])
        else:
            reshape(writer, found, shape, to=node.output[0])
        return None


def _places(node: NodeProto, view: View, count: int) -> Array | None:
    """The places counted from a fixed first one; None where each sample names its own."""
    first = view.constant(node.input[1])
    if first is None or first.size != 1 or first.ndim > 1:
        return None
    return np.arange(count)[None] + int(first.reshape(()))


def _looked_up(writer: Writer, table: str, chosen: Array | None, named: str) -> str:
    """Rows of a table, (batch or 1, places, 1, half of the width)."""
    places = named if chosen is None else writer.constant(chosen, "places", np.int64)
    rows = writer.node("Gather", table, places, axis=0)
    return writer.node("Unsqueeze", rows, writer.constant([2], "axes", np.int64))


def _rotated(writer: Writer, x: str, cos: str, sin: str, turned: int, interleaved: bool) -> str:
    if interleaved:
        a, b = (gather(writer, x, np.arange(start, turned, 2), 3) for start in (0, 1))
    else:
        a, b = part(writer, x, 0, turned // 2, 3), part(writer, x, turned // 2, turned, 3)
    one = writer.node("Sub", writer.node("Mul", a, cos), writer.node("Mul", b, sin))
    two = writer.node("Add", writer.node("Mul", b, cos), writer.node("Mul", a, sin))
    joined = writer.node("Concat", one, two, axis=3)
    if not interleaved:
        return joined
    return gather(writer, joined, np.arange(turned).reshape(2, -1).T.reshape(-1), 3)
