"""Indexing for the training graph: gather, slice, split, pad and scatter."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import Any

import numpy as np
from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, gather, given, part, reshape
from onnxsparse.graph.attributes import attributes
from onnxsparse.graph.edit import Writer
from onnxsparse.math.values import Array

# -- Elements picked by constants, written as Gather.
#
# Compress(x, c) = Gather(x, where c)
# ReverseSequence(x, n): row t of sequence b is x[n[b] - 1 - t] for t < n[b], and x[t] after it


class Compress(Rewrite):
    """Where the condition is a constant."""

    operators = ("Compress",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        x, axis, chosen = node.input[0], attributes(node).get("axis"), view.constant(node.input[1])
        if chosen is None:
            return "its condition is not constant"
        if axis is None:
            x = reshape(writer, x, [-1])
        gather(writer, x, np.flatnonzero(chosen), axis or 0, to=node.output[0])
        return None


class ReverseSequence(Rewrite):
    """Where the lengths are constants."""

    operators = ("ReverseSequence",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        shape, lengths = view.shapes.get(node.input[0]), view.constant(node.input[1])
        if shape is None or lengths is None:
            return "its shape is not known, or its lengths are not constant"
        batch_first = attributes(node).get("batch_axis", 1) == 0
        places = _reversed(lengths, shape[1 if batch_first else 0])
        sequences = np.arange(len(lengths))[:, None]
        flat = sequences * shape[1] + places if batch_first else (places * shape[1] + sequences).T
        rows = reshape(writer, node.input[0], [shape[0] * shape[1], math.prod(shape[2:])])
        reshape(writer, gather(writer, rows, flat.reshape(-1), 0), shape, to=node.output[0])
        return None


def _reversed(lengths: Array, steps: int) -> Array:
    """For each sequence and step the step that goes there."""
    step, length = np.arange(steps)[None, :], lengths.reshape(-1, 1)
    return np.where(step < length, length - 1 - step, step)


# -- Slices that run backwards, and Splits of which a part goes nowhere.


class Slice(Rewrite):
    """Along an axis with a negative step, the places are gathered."""

    operators = ("Slice",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        steps = view.constant(node.input[4]) if given(node, 4) else np.ones(1, np.int64)
        if steps is not None and (steps > 0).all():
            return None
        shape = view.shapes.get(node.input[0])
        starts, ends = view.constant(node.input[1]), view.constant(node.input[2])
        axes = view.constant(node.input[3]) if given(node, 3) else np.arange(len(shape or ()))
        if shape is None or steps is None or starts is None or ends is None or axes is None:
            return "its shape or limits are not fixed"
        value = node.input[0]
        for axis, start, end, step in zip(axes % len(shape), starts, ends, steps):
            value = gather(writer, value, _places(shape[axis], start, end, step), int(axis))
        writer.node("Identity", value, to=node.output[0])
        return None


def _places(size: int, start: int, end: int, step: int) -> Array:
    # An end before the first place means "through the very first one", which Python writes as None.
    return np.arange(size)[int(start) : None if end < -size and step < 0 else int(end) : int(step)]


class Split(Rewrite):
    """The gradient of a Split forgets the parts that no gradient comes back from; Slices do not."""

    operators = ("Split",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        if all(name in view.gradients for name in node.output):
            return None
        axis = attributes(node).get("axis", 0)
        sizes = _part_sizes(node, view, axis)
        if sizes is None:
            return "the sizes of its parts are not known"
        for name, size, end in zip(node.output, sizes, accumulate(sizes)):
            if name in view.read:
                part(writer, node.input[0], end - size, end, axis, to=name)
        return None


def _part_sizes(node: NodeProto, view: View, axis: int) -> list[int] | None:
    listed = view.constant(node.input[1]) if given(node, 1) else None
    if listed is not None:
        return [int(size) for size in listed]
    shapes = [view.shapes.get(name) for name in node.output]
    return [shape[axis] for shape in shapes if shape is not None] if None not in shapes else None


# -- Pads that repeat what is there become a Gather along each axis; pads of some axes become pads of all.

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


# -- Scattering that combines what is there with what comes.
#
#     y = x;  y[i] = op(y[i], u[n])  for each index i = indices[n], op one of +, *, max, min
#
# The engine differentiates it as if nothing were combined, silently. Here data and updates become rows, and a round
# takes at most one update for each row, which the engine can do:
#
#     y = ScatterND(y, i, op(Gather(y, i), Gather(u, n)))
#
# There are as many rounds as the busiest row has updates. The indices have to be constants.

_COMBINED = {"add": "Add", "mul": "Mul", "max": "Max", "min": "Min"}
_ROUNDS = 64


class Scatter(Rewrite):
    """ScatterND and ScatterElements with a `reduction`."""

    operators = ("ScatterND", "ScatterElements")

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        data, places, updates = node.input
        op = _COMBINED.get(attributes(node).get("reduction", "none"))
        if op is None:
            return None
        shape, indices = view.shapes.get(data), view.constant(places)
        if shape is None or indices is None:
            return "its shape is not known, or its indices are not constant"
        rows, width = _rows(node, indices, shape)
        rounds = _rounds(rows)
        if len(rounds) > _ROUNDS:
            return f"more than {_ROUNDS} updates go to one place"
        whole = reshape(writer, data, [-1, width])
        updates = reshape(writer, updates, [-1, width])
        for chosen in rounds:
            whole = _round(op, whole, rows[chosen], updates, chosen, writer)
        reshape(writer, whole, shape, to=node.output[0])
        return None


def _round(op: str, whole: str, rows: Array, updates: str, chosen: Array, writer: Writer) -> str:
    there = gather(writer, whole, rows, 0)
    coming = gather(writer, updates, chosen, 0)
    return writer.node("ScatterND", whole, writer.constant(rows[:, None]), writer.node(op, there, coming))


def _rows(node: NodeProto, indices: Array, shape: tuple[int, ...]) -> tuple[Array, int]:
    """For each update the row of the data that it goes to, and the width of a row."""
    if node.op_type == "ScatterND":
        depth = indices.shape[-1]
        where: Array = np.moveaxis(indices, -1, 0).reshape(depth, -1)
    else:
        depth = len(shape)
        where = np.indices(indices.shape)
        where[attributes(node).get("axis", 0)] = indices
    sizes = np.array(shape[:depth], np.int64).reshape(-1, *[1] * (where.ndim - 1))
    wrapped = np.where(where < 0, where + sizes, where)
    flat = np.ravel_multi_index(tuple(wrapped), shape[:depth]).reshape(-1)
    return flat.astype(np.int64), math.prod(shape[depth:])


def _rounds(rows: Array) -> list[Array]:
    """The updates, each row at most once in a round."""
    order = np.argsort(rows, kind="stable")
    _, first, count = np.unique(rows[order], return_index=True, return_counts=True)
    turn = np.empty(rows.size, np.int64)
    turn[order] = np.arange(rows.size) - np.repeat(first, count)
    return [np.flatnonzero(turn == which) for which in range(int(count.max(initial=0)))]
