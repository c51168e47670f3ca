"""The axes along which a node reduces, whichever way it says so."""

from __future__ import annotations

from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import View, attributes


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
