"""Resizing and grid sampling for the training graph."""

from __future__ import annotations

import importlib
import math
from itertools import product
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

from onnxsparse.engines.ort import library
from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, gather, given, part, reshape
from onnxsparse.graph.attributes import attributes
from onnxsparse.graph.edit import Writer
from onnxsparse.math.values import Array

# -- Resizing, for which there is no gradient kernel: along each axis a fixed matrix, taken from the runtime itself.
#
# 1. The runtime resizes the unit vectors of an axis; what comes out are the columns of that axis's matrix.
# 2. A matrix that repeats each place k times becomes Reshape, Expand, Reshape; one that picks places becomes a Gather;
#    all others are multiplied.

_KEPT = (
    "antialias",
    "coordinate_transformation_mode",
    "cubic_coeff_a",
    "exclude_outside",
    "mode",
    "nearest_mode",
)


class Resize(Rewrite):
    """Nearest, linear and cubic, in every coordinate mode but that of a region of interest."""

    operators = ("Resize",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        before, after = view.shapes.get(node.input[0]), view.shapes.get(node.output[0])
        if before is None or after is None:
            return "its shapes are not known"
        options = attributes(node)
        if options.get("coordinate_transformation_mode") == "tf_crop_and_resize":
            return "it cuts out a region of interest"
        if options.get("keep_aspect_ratio_policy", "stretch") != "stretch":
            return "it keeps the aspect ratio"
        scales = _scales(node, view, len(before))
        if scales is None:
            return "its scales are not fixed"
        value, shape = node.input[0], list(before)
        for axis, scale in enumerate(scales):
            if before[axis] != after[axis] or scale not in (None, 1.0):
                matrix = _matrix(before[axis], after[axis], scale, options, view.opset)
                value, shape[axis] = _along(writer, value, shape, axis, matrix), after[axis]
        writer.node("Identity", value, to=node.output[0])
        return None


def _scales(node: NodeProto, view: View, rank: int) -> list[float | None] | None:
    """A scale for each axis (None: what the sizes say); None when they are computed."""
    name = given(node, 2)
    if name is None or view.shapes.get(name) == (0,):
        return [None] * rank
    stored = view.constant(name)
    if stored is None:
        return None
    scales: list[float | None] = [1.0] * rank
    for axis, scale in zip(attributes(node).get("axes", range(rank)), stored):
        scales[axis] = float(scale)
    return scales


def _matrix(before: int, after: int, scale: float | None, options: dict[str, Any], opset: int) -> Array:
    """What the runtime makes of each unit vector, as (after, before)."""
    kept = {name: options[name] for name in _KEPT if name in options}
    if scale is None:
        inputs, last, stored = ["x", "", "", "s"], np.array([1, before, 1, after], np.int64), 7
    else:
        inputs, last, stored = ["x", "", "s"], np.array([1, 1, 1, scale], np.float32), 1
    graph = make_graph(
        [make_node("Resize", inputs, ["y"], **kept)],
        "axis",
        [make_tensor_value_info("x", 1, [1, before, 1, before]), make_tensor_value_info("s", stored, [4])],
        [make_tensor_value_info("y", 1, None)],
    )
    model = make_model(graph, opset_imports=[make_opsetid("", opset)], ir_version=8)
    runtime = importlib.import_module("onnxruntime")
    session = runtime.InferenceSession(model.SerializeToString(), library.options(), providers=["CPUExecutionProvider"])
    unit = np.eye(before, dtype=np.float32).reshape(1, before, 1, before)
    made: Array = session.run(None, {"x": unit, "s": last})[0]
    return np.ascontiguousarray(made.reshape(before, after).T)


def _along(writer: Writer, value: str, shape: list[int], axis: int, matrix: Array) -> str:
    after, before = matrix.shape
    result = [*shape[:axis], after, *shape[axis + 1 :]]
    if after % before == 0 and np.array_equal(matrix, np.repeat(np.eye(before), after // before, 0)):
        places = reshape(writer, value, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
        wide = writer.constant([*shape[: axis + 1], after // before, *shape[axis + 1 :]], "shape", np.int64)
        return reshape(writer, writer.node("Expand", places, wide), result)
    if np.isin(matrix, (0, 1)).all() and (matrix.sum(1) == 1).all():
        return gather(writer, value, matrix.argmax(1), axis)
    if axis == len(shape) - 1:
        return writer.node("MatMul", value, writer.constant(matrix.T, "resized"))
    rows = reshape(writer, value, (math.prod(shape[:axis]), before, math.prod(shape[axis + 1 :])))
    return reshape(writer, writer.node("MatMul", writer.constant(matrix, "resized"), rows), result)


# -- Sampling an image at the places of a grid: look-ups of the corners around each place, weighted by nearness.
#
# The corners are whole numbers, so no gradient flows through them; it flows through the weights (to the grid) and
# through the numbers that are looked up (to the image).

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
