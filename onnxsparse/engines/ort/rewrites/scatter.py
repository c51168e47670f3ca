"""Scattering that combines what is there with what comes.

    y = x;  y[i] = op(y[i], u[n])  for each index i = indices[n], op one of +, *, max, min

The engine differentiates it as if nothing were combined, silently. Here data and updates become rows, and a round takes
at most one update for each row, which the engine can do:

    y = ScatterND(y, i, op(Gather(y, i), Gather(u, n)))

There are as many rounds as the busiest row has updates. The indices have to be constants.
"""

from __future__ import annotations

import math

import numpy as np
from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, attributes
from onnxsparse.engines.ort.rewrites.shorthand import gather, reshape
from onnxsparse.engines.ort.writer import Writer
from onnxsparse.math.values import Array

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
