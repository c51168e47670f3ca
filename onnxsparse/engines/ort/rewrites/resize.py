"""Resizing, for which there is no gradient kernel: along each axis a fixed matrix, taken from the runtime itself.

1. The runtime resizes the unit vectors of an axis; what comes out are the columns of that axis's matrix.
2. A matrix that repeats each place k times becomes Reshape, Expand, Reshape; one that picks places becomes a Gather;
   all others are multiplied.
"""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
from onnx import NodeProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

from onnxsparse.engines.ort import library
from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, attributes
from onnxsparse.engines.ort.rewrites.shorthand import gather, given, reshape
from onnxsparse.engines.ort.writer import Writer
from onnxsparse.math.values import Array

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
