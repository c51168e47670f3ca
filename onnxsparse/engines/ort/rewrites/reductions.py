"""Reductions that are sums of something, and reductions that the engine gets right in one form only.

    ReduceSumSquare(x) = ReduceSum(x^2)    ReduceL1(x) = ReduceSum(|x|)    ReduceLogSum(x) = log(ReduceSum(x))

1. ReduceL2 and ReduceLogSumExp are right where the axes are named and stay; a Reshape takes them out afterwards.
2. With `noop_with_empty_axes` and no axes all of them, whatever they sum, give back what they got.
"""

from __future__ import annotations

from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.axes import keeps, reduced
from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, attributes
from onnxsparse.engines.ort.rewrites.shorthand import reduce, reshape
from onnxsparse.engines.ort.writer import Writer

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
