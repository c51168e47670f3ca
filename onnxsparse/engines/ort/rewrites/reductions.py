"""Reductions for the training graph: sums, norms, extremes, products, the cross-entropy loss."""

from __future__ import annotations

import math

from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, part, reduce, reshape, result
from onnxsparse.graph.attributes import attributes
from onnxsparse.graph.edit import Writer

# -- The axes along which a node reduces, whichever way it says so.


def reduced(node: NodeProto, view: View) -> tuple[int, ...] | None:
    """Its axes in order, each at least 0; all of them if it names none, none if it says so; None: not known."""
    shape, given = view.shapes.get(node.input[0]), attributes(node)
    if shape is None:
        return None
    axes = given.get("axes", [])
    if len(node.input) > 1 and node.input[1]:
        constant = view.constant(node.input[1])
        if constant is None:
            return None
        axes = constant.reshape(-1).tolist()
    if not axes:
        return () if given.get("noop_with_empty_axes", 0) else tuple(range(len(shape)))
    return tuple(sorted({int(axis) % len(shape) for axis in axes}))


def keeps(node: NodeProto) -> bool:
    """Whether the reduced axes stay, with length 1."""
    return bool(attributes(node).get("keepdims", 1))


# -- Reductions that are sums of something, and reductions that the engine gets right in one form only.
#
#     ReduceSumSquare(x) = ReduceSum(x^2)    ReduceL1(x) = ReduceSum(|x|)    ReduceLogSum(x) = log(ReduceSum(x))
#
# 1. ReduceL2 and ReduceLogSumExp are right where the axes are named and stay; a Reshape takes them out afterwards.
# 2. With `noop_with_empty_axes` and no axes all of them, whatever they sum, give back what they got.

_NATIVE = ("ReduceSum", "ReduceMean")
_KEEPING = ("ReduceL2", "ReduceLogSumExp")


class Reductions(Rewrite):
    """ReduceSum and ReduceMean stay unless they reduce nothing."""

    operators = ("ReduceSumSquare", "ReduceL1", "ReduceLogSum", *_KEEPING, *_NATIVE)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        op, to = node.op_type, node.output[0]
        axes, shape = reduced(node, view), view.shapes.get(to)
        if op in _NATIVE and not attributes(node).get("noop_with_empty_axes", 0):
            return None
        if axes is None or shape is None:
            return "its axes or the shapes of its values are not known"
        if not view.shapes[node.input[0]] and op not in _NATIVE:
            return "it reduces a scalar"
        if not axes:
            writer.node("Identity", node.input[0], to=to)
        elif op in _KEEPING:
            self._keep(node, axes, shape, writer)
        elif op not in _NATIVE:
            _sum(op, node.input[0], axes, keeps(node), writer, to)
        return None

    def _keep(self, node: NodeProto, axes: tuple[int, ...], shape: tuple[int, ...], writer: Writer) -> None:
        named = len(node.input) > 1 or "axes" in attributes(node)
        if not (keeps(node) and named):
            kept = reduce(writer, node.op_type, node.input[0], axes)
            reshape(writer, kept, shape, to=node.output[0])


def _sum(op: str, x: str, axes: tuple[int, ...], keep: bool, writer: Writer, to: str) -> None:
    if op == "ReduceLogSum":
        writer.node("Log", reduce(writer, "ReduceSum", x, axes, keep), to=to)
        return
    # not Mul(x, x): the engine fails on a trained tensor that one node reads twice
    of = writer.node("Abs", x) if op == "ReduceL1" else writer.node("Pow", x, writer.constant(2.0))
    reduce(writer, "ReduceSum", of, axes, keep, to)


# -- The largest and the smallest along axes, and products along axes: what looks at the reduced axes as one row.
#
# ReduceMax = TopK(1), ReduceMin = TopK(1) of the smallest; the gradient goes to the element that was picked
#
# ReduceProd: the two halves of the row times each other, until one element is left. The gradient of an element is then
# the product of all others, with no division: zeros do no harm.


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


# -- The cross-entropy of logits: the engine wants its second output, the logarithms, too.


class SoftmaxCrossEntropyLoss(Rewrite):
    """Declares both outputs."""

    operators = ("SoftmaxCrossEntropyLoss",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        logarithms = result(node, 1)
        if logarithms in view.gradients:
            return "a gradient would have to flow through its second output"
        if not logarithms:
            outputs = [node.output[0], writer.fresh("logarithms")]
            writer.many(node.op_type, *node.input, to=outputs, **attributes(node))
        return None
