"""Pads that repeat what is there become a Gather along each axis; pads of some axes become pads of all."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, attributes
from onnxsparse.engines.ort.rewrites.shorthand import gather, given
from onnxsparse.engines.ort.writer import Writer
from onnxsparse.math.values import Array

_MODES: dict[str, Any] = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}


class Pad(Rewrite):
    """Modes reflect, edge and wrap, and the input `axes`."""

    operators = ("Pad",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        mode = attributes(node).get("mode", "constant")
        if mode == "constant" and given(node, 3) is None:
            return None
        shape = view.shapes.get(node.input[0])
        pads = view.constant(node.input[1])
        axes = view.constant(node.input[3]) if given(node, 3) else np.arange(len(shape or ()))
        if shape is None or pads is None or axes is None:
            return "its shape, pads or axes are not fixed"
        before, after = _for_all(pads, axes, len(shape))
        if mode == "constant":
            full = writer.constant(np.concatenate([before, after]), "pads", np.int64)
            writer.node("Pad", node.input[0], full, *node.input[2:3], to=node.output[0])
        else:
            _gathers(node, writer, shape, mode, before, after)
        return None


def _for_all(pads: Array, axes: Array, rank: int) -> tuple[Array, Array]:
    before, after = np.zeros(rank, np.int64), np.zeros(rank, np.int64)
    before[axes], after[axes] = pads[: len(axes)], pads[len(axes) :]
    return before, after


def _gathers(node: NodeProto, writer: Writer, shape: tuple[int, ...], mode: str, before: Array, after: Array) -> None:
    value = node.input[0]
    for axis, size in enumerate(shape):
        if before[axis] or after[axis]:
            kept = np.arange(max(-before[axis], 0), size - max(-after[axis], 0))
            places = np.pad(kept, (max(before[axis], 0), max(after[axis], 0)), mode=_MODES[mode])
            value = gather(writer, value, places, axis)
    writer.node("Identity", value, to=node.output[0])
