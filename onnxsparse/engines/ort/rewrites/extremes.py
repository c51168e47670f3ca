"""The largest and the smallest along axes, and products along axes: what looks at the reduced axes as one row.

ReduceMax = TopK(1), ReduceMin = TopK(1) of the smallest; the gradient goes to the element that was picked

ReduceProd: the two halves of the row times each other, until one element is left. The gradient of an element is then
the product of all others, with no division: zeros do no harm.
"""

from __future__ import annotations

import math

from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.axes import reduced
from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View
from onnxsparse.engines.ort.rewrites.shorthand import part, reshape
from onnxsparse.engines.ort.writer import Writer


class Extremes(Rewrite):
    """The reduced axes are brought to the end and flattened to one."""

    operators = ("ReduceMax", "ReduceMin", "ReduceProd")

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        axes = reduced(node, view)
        shape, out = view.shapes.get(node.input[0]), view.shapes.get(node.output[0])
        if axes is None or shape is None or out is None:
            return "its axes or the shapes of its values are not known"
        if not axes:
            writer.node("Identity", node.input[0], to=node.output[0])
            return None
        length = math.prod(shape[axis] for axis in axes)
        if not length:
            return "it reduces no elements"
        rows = _rows(node.input[0], shape, axes, writer)
        if node.op_type == "ReduceProd":
            picked = _product(rows, length, writer)
        else:
            ends = [writer.fresh("values"), writer.fresh("places")]
            picked, _ = writer.many(
                "TopK", rows, writer.constant([1]), to=ends, largest=int(node.op_type == "ReduceMax")
            )
        reshape(writer, picked, out, to=node.output[0])
        return None


def _rows(x: str, shape: tuple[int, ...], axes: tuple[int, ...], writer: Writer) -> str:
    order = [axis for axis in range(len(shape)) if axis not in axes] + list(axes)
    if order != sorted(order):
        x = writer.node("Transpose", x, perm=order)
    sizes = [shape[axis] for axis in order]
    kept = math.prod(sizes[: len(shape) - len(axes)])
    return reshape(writer, x, [kept, math.prod(shape[axis] for axis in axes)])


def _product(rows: str, length: int, writer: Writer) -> str:
    while length > 1:
        half = length // 2
        times = writer.node("Mul", part(writer, rows, 0, half, 1), part(writer, rows, half, 2 * half, 1))
        if length % 2:
            times = writer.node("Concat", times, part(writer, rows, 2 * half, length, 1), axis=1)
        rows, length = times, half + length % 2
    return rows
