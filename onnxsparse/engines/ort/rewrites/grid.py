"""Sampling an image at the places of a grid: look-ups of the corners around each place, weighted by nearness.

The corners are whole numbers, so no gradient flows through them; it flows through the weights (to the grid) and through
the numbers that are looked up (to the image).
"""

from __future__ import annotations

from itertools import product

import numpy as np
from onnx import NodeProto, TensorProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, attributes
from onnxsparse.engines.ort.rewrites.shorthand import part, reshape
from onnxsparse.engines.ort.writer import Writer

_NEAREST, _LINEAR = ("nearest",), ("bilinear", "linear")


class GridSample(Rewrite):
    """Two axes, nearest or linear, zeros or the border outside."""

    operators = ("GridSample",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        shape, grid = view.shapes.get(node.input[0]), view.shapes.get(node.input[1])
        options = attributes(node)
        mode, outside = options.get("mode", "linear"), options.get("padding_mode", "zeros")
        if shape is None or grid is None or len(shape) != 4:
            return "its shapes are not known, or it does not have two axes"
        if mode not in (*_NEAREST, *_LINEAR) or outside not in ("zeros", "border"):
            return f"its mode ({mode}, {outside}) has no rewrite"
        sampler = _Sampler(writer, shape, grid, outside == "zeros", bool(options.get("align_corners", 0)))
        found = sampler.nearest(*node.input) if mode in _NEAREST else sampler.linear(*node.input)
        turned = writer.node("Transpose", found, perm=[0, 2, 1])
        reshape(writer, turned, (*shape[:2], *grid[1:3]), to=node.output[0])
        return None


class _Sampler:
    def __init__(
        self, writer: Writer, shape: tuple[int, ...], grid: tuple[int, ...], zeros: bool, corners: bool
    ) -> None:
        self.writer, self.shape, self.zeros, self.corners = writer, shape, zeros, corners
        self.places = (shape[0], grid[1] * grid[2], 1)

    def nearest(self, image: str, grid: str) -> str:
        rows, columns = (self._whole("Round", place) for place in self._at(grid))
        return self._look_up(self._flat(image), rows, columns, None)

    def linear(self, image: str, grid: str) -> str:
        flat, sides = self._flat(image), []
        one = self.writer.constant(1, "one", np.int64)
        for place in self._at(grid):
            low = self._whole("Floor", place)
            share = self.writer.node("Sub", place, self._float(low))
            rest = self.writer.node("Sub", self.writer.constant(1.0, "one"), share)
            sides.append([(low, rest), (self.writer.node("Add", low, one), share)])
        total = ""
        for (row, above), (column, left) in product(*sides):
            found = self._look_up(flat, row, column, self.writer.node("Mul", above, left))
            total = self.writer.node("Add", total, found) if total else found
        return total

    def _flat(self, image: str) -> str:
        batch, channels, height, width = self.shape
        rows = reshape(self.writer, image, (batch, channels, height * width))
        return self.writer.node("Transpose", rows, perm=[0, 2, 1])

    def _at(self, grid: str) -> list[str]:
        """Rows and columns as real numbers; outside they are moved to the border where that is asked for."""
        return [self._coordinate(grid, 1, self.shape[2]), self._coordinate(grid, 0, self.shape[3])]

    def _coordinate(self, grid: str, place: int, size: int) -> str:
        value = reshape(self.writer, part(self.writer, grid, place, place + 1, 3), self.places)
        slope, offset = ((size - 1) / 2, (size - 1) / 2) if self.corners else (size / 2, (size - 1) / 2)
        value = self.writer.node("Mul", value, self.writer.constant(slope, "slope"))
        value = self.writer.node("Add", value, self.writer.constant(offset, "offset"))
        if self.zeros:
            return value
        low, high = self.writer.constant(0.0, "low"), self.writer.constant(float(size - 1), "high")
        return self.writer.node("Clip", value, low, high)

    def _look_up(self, flat: str, row: str, column: str, weight: str | None) -> str:
        """The numbers at whole places, (batch, places, channels), times their weight and zero outside."""
        writer, height, width = self.writer, self.shape[2], self.shape[3]
        top, left = self._inside(row, height), self._inside(column, width)
        place = writer.node("Mul", top, writer.constant(width, "width", np.int64))
        place = writer.node("Add", place, left)
        found = writer.node("GatherND", flat, place, batch_dims=1)
        if weight:
            found = writer.node("Mul", found, weight)
        if not self.zeros:
            return found
        kept = writer.node("And", writer.node("Equal", row, top), writer.node("Equal", column, left))
        return writer.node("Mul", found, self._float(kept))

    def _inside(self, whole: str, size: int) -> str:
        low, high = self.writer.constant(0, "low", np.int64), self.writer.constant(size - 1, "high", np.int64)
        return self.writer.node("Min", self.writer.node("Max", whole, low), high)

    def _whole(self, op: str, value: str) -> str:
        return self._cast(self.writer.node(op, value), TensorProto.INT64)

    def _float(self, value: str) -> str:
        return self._cast(value, TensorProto.FLOAT)

    def _cast(self, value: str, kind: int) -> str:
        made = self.writer.node("Cast", value)
        self.writer.nodes[-1].attribute.add(name="to", type=2, i=kind)
        return made
