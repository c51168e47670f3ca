"""Masks of M x M blocks that keep N of M in every row and in every column.

    best      the mask of the largest sum, exactly: of few possible ones by a look at all (90 for 2:4), of many as a
              min-cost flow. Every row and column keeps N.
    greedy    the largest elements, one after the other, while their row and column keep fewer than N. The last of
              them may have no room left: then a row and a column keep fewer.

What may be the same on every machine is: scores are rounded to whole numbers whose sums double precision holds, so no
order of adding decides anything. That is exact to BITS below the largest score of a block; what is not zero never
becomes zero by it.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np

from onnxsparse.math.values import Array

BITS = 45
"""A path through 255 rows and columns adds and subtracts no more than 2**8 numbers below 2**45."""
MOST_LISTED = 4
"""The largest M of which all masks are listed; 2:5 has 2,040 of them, 4:8 117 million."""
LARGEST = np.finfo(np.float64).max


def best(scores: Array, n: int) -> Array:
    """The mask of the largest sum for every block of (count, M, M) scores >= 0."""
    gains = _whole_numbers(scores)
    return _best_listed(gains, n) if scores.shape[1] <= MOST_LISTED else _best_flow(gains, n)


def greedy(scores: Array, n: int) -> Array:
    """Elements in falling order, the last of equals first, as long as their row and column have room."""
    count, side, _ = scores.shape
    keep = np.zeros(scores.shape, bool)
    rows, columns = np.zeros((2, count, side), np.uint8)
    each, order = np.arange(count), np.argsort(scores.reshape(count, -1), axis=1, kind="stable")
    for place in order.T[::-1]:
        row, column = place // side, place % side
        free = (rows[each, row] < n) & (columns[each, column] < n)
        keep[each, row, column] = free
        rows[each, row] += free
        columns[each, column] += free
    return keep


def _whole_numbers(scores: Array) -> Array:
    """Scores as whole numbers up to 2**BITS, each block on its own scale; NaN is large, as it is where it is sorted."""
    numbers = np.fmin(scores, LARGEST, dtype=np.float64)
    exponents = np.frexp(numbers.max(axis=(1, 2), keepdims=True, initial=0))[1]
    rounded: Array = np.rint(np.ldexp(numbers, BITS - exponents))
    rounded[(rounded == 0) & (numbers > 0)] = 1
    return rounded


# -- few masks: all of them are tried


def _best_listed(gains: Array, n: int) -> Array:
    """The first mask with the largest sum."""
    masks = _listed(n, gains.shape[1])
    sums = gains.reshape(len(gains), -1) @ masks.T.astype(np.float64)
    chosen: Array = masks[np.argmax(sums, axis=1)].reshape(gains.shape)
    return chosen


@functools.cache
def _listed(n: int, side: int) -> Array:
    """All masks of a block, a row each; those that drop earlier elements come first."""
    rows = [[place in kept for place in range(side)] for kept in itertools.combinations(range(side), n)]
    found = [mask for mask in itertools.product(sorted(rows), repeat=side) if (np.sum(mask, axis=0) == n).all()]
    return np.array(found, bool).reshape(len(found), side * side)


# -- many masks: a min-cost flow, in all blocks at once
#
# 1. Every row keeps its N largest. No mask with as many in each column has a larger sum.
# 2. While a column has too many: along the path that loses least from a crowded column to one with room, each row on it
#    exchanges an element for one in the next column. Shortest paths keep the first property, so the mask is the best
#    when all columns have N. They are found by Bellman and Ford's relaxation, columns to rows and rows to columns.


def _best_flow(gains: Array, n: int) -> Array:
    side = gains.shape[1]
    keep = np.zeros(gains.shape, bool)
    largest = np.argsort(gains, axis=2, kind="stable")[:, :, side - n :]
    np.put_along_axis(keep, largest, True, axis=2)
    left = np.arange(len(gains))
    while left.size:
        excess = keep[left].sum(axis=1) - n
        open_ = (excess > 0).any(axis=1)
        left, excess = left[open_], excess[open_]
        keep[left] = _exchanged(gains[left], keep[left], excess)
    return keep


def _exchanged(gains: Array, keep: Array, excess: Array) -> Array:
    """The masks with one element less in a crowded column, and one more in a column with room."""
    column_gains, from_row, from_column = _paths(gains, keep, excess > 0)
    blocks = np.arange(len(gains))
    column = np.where(excess < 0, column_gains, -np.inf).argmax(axis=1)
    while blocks.size:
        row = from_row[blocks, column]
        before = from_column[blocks, row]
        keep[blocks, row, column], keep[blocks, row, before] = True, False
        further = excess[blocks, before] <= 0
        blocks, column = blocks[further], before[further]
    return keep


def _paths(gains: Array, keep: Array, starts: Array) -> tuple[Array, Array, Array]:
    """For each column the most that a path to it gains, its last row; and for each row the column before it."""
    leave, enter = np.where(keep, -gains, -np.inf), np.where(keep, -np.inf, gains)
    columns, rows = np.where(starts, 0.0, -np.inf), np.full(starts.shape, -np.inf)
    from_row, from_column = np.zeros((2, *starts.shape), np.intp)
    while _relaxed(columns[:, np.newaxis, :] + leave, 2, rows, from_column) and _relaxed(
        rows[:, :, np.newaxis] + enter, 1, columns, from_row
    ):
        pass
    return columns, from_row, from_column


def _relaxed(paths: Array, axis: int, known: Array, came: Array) -> bool:
    """Whether any path along an axis gains more than what is known; then it and where it came from are known."""
    first = np.expand_dims(paths.argmax(axis=axis), axis)
    gain = np.take_along_axis(paths, first, axis).squeeze(axis)
    more = gain > known
    known[more], came[more] = gain[more], first.squeeze(axis)[more]
    return bool(more.any())
