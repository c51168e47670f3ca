"""Running sums, as products with a triangular matrix.

    y = T x along the axis, with T[i, j] = 1 where j <= i  (exclusive: j < i; reverse: the transpose)

Long axes are cut into pieces of 512: the sums within a piece, plus the exclusive running sum of the pieces' totals.
"""

from __future__ import annotations

import math

import numpy as np
from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, attributes
from onnxsparse.engines.ort.rewrites.shorthand import part, reshape
from onnxsparse.engines.ort.writer import Writer

_PIECE = 512


class CumSum(Rewrite):
    """Along any one axis that is a constant."""

    operators = ("CumSum",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        shape, axis = view.shapes.get(node.input[0]), view.constant(node.input[1])
        if shape is None or axis is None:
            return "its shape or its axis is not known"
        place, given = int(axis.reshape(())) % len(shape), attributes(node)
        sizes = (math.prod(shape[:place]), shape[place], math.prod(shape[place + 1 :]))
        flat = reshape(writer, node.input[0], sizes)
        summed = _running(flat, sizes, bool(given.get("exclusive", 0)), bool(given.get("reverse", 0)), writer)
        reshape(writer, summed, shape, to=node.output[0])
        return None


def _running(x: str, sizes: tuple[int, int, int], exclusive: bool, reverse: bool, writer: Writer) -> str:
    before, length, after = sizes
    if length <= _PIECE:
        return writer.node("MatMul", writer.constant(_triangle(length, exclusive, reverse)), x)
    pieces = -(-length // _PIECE)
    pads = writer.constant([0, 0, 0, 0, pieces * _PIECE - length, 0])
    cut = reshape(writer, writer.node("Pad", x, pads), [before, pieces, _PIECE, after])
    within = writer.node("MatMul", writer.constant(_triangle(_PIECE, exclusive, reverse)), cut)
    totals = writer.node("ReduceSum", cut, writer.constant([2]), keepdims=0)
    others = _running(totals, (before, pieces, after), True, reverse, writer)
    others = reshape(writer, others, [before, pieces, 1, after])
    whole = reshape(writer, writer.node("Add", within, others), [before, -1, after])
    return part(writer, whole, 0, length, 1)


def _triangle(length: int, exclusive: bool, reverse: bool) -> np.ndarray:
    matrix = np.tri(length, k=-1 if exclusive else 0, dtype=np.float32)
    return np.ascontiguousarray(matrix.T) if reverse else matrix
