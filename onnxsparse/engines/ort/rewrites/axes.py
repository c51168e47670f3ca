"""The axes along which a node reduces, whichever way it says so."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import View, attributes
from onnxsparse.engines.ort.writer import Writer

_AXES_ARE_AN_INPUT = 18  # since this opset; for ReduceSum since 13


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


def keeps(node: NodeProto) -> int:
    """Whether the reduced axes stay, with length 1."""
    return int(attributes(node).get("keepdims", 1))


def reduce(op: str, x: str, axes: Sequence[int], keepdims: int, writer: Writer, to: str | None = None) -> str:
    """A reduction along at least one axis, said the way the opset wants it."""
    if op == "ReduceSum" or writer.opset >= _AXES_ARE_AN_INPUT:
        return writer.node(op, x, writer.constant(list(axes), "axes", "int64"), to=to, keepdims=keepdims)
    return writer.node(op, x, to=to, axes=list(axes), keepdims=keepdims)
