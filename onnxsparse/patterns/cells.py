"""Patterns that drop whole cells: boxes of one size that tile a weight. What does not fill a cell stays dense."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator

import numpy as np

from onnxsparse import rank
from onnxsparse.patterns.pattern import Pattern, Shape4, Violations
from onnxsparse.scores.score import Score
from onnxsparse.values import Array, Values, blocks_of, storage_axes

CHUNK = 1 << 20
CELL_AXES = (1, 3, 5, 7)


class CellPattern(Pattern):
    """A pattern whose units are cells of one size."""

    @abstractmethod
    def cell(self, shape: Shape4) -> Shape4:
        """The size of a cell along every axis."""

    def grid(self, shape: Shape4) -> Shape4:
        """How many whole cells fit along every axis."""
        return tuple(size // max(1, step) for size, step in zip(shape, self.cell(shape)))

    def units(self, shape: Shape4) -> int:
        return math.prod(self.grid(shape))

    def unit_size(self, shape: Shape4) -> int:
        return math.prod(self.cell(shape))

    def unit_scores(self, values: Values, score: Score) -> Array:
        pieces = list(self.unit_chunks(values, score))
        return np.concatenate(pieces) if pieces else np.zeros(0)

    def unit_chunks(self, values: Values, score: Score) -> Iterator[Array]:
        axes, cell = storage_axes(values.stored), self.cell(values.shape)
        whole = None if score.elementwise else score.value(values)
        for index in blocks_of(values.stored, CHUNK, cell):
            importance = score.value(values[index]) if whole is None else whole[index]
            yield _means(importance, cell).transpose(axes).reshape(-1)

    def select(self, values: Values, score: Score, drop: int) -> Array:
        dropped = rank.smallest(self.unit_scores(values, score), drop)
        axes = storage_axes(values.stored)
        grid = self.grid(values.shape)
        by_axis = dropped.reshape([grid[axis] for axis in axes]).transpose(np.argsort(axes))
        keep = np.empty_like(values.stored, dtype=bool)
        keep[...] = True
        split(keep, self.cell(values.shape))[...] = ~np.expand_dims(by_axis, CELL_AXES)
        return keep

    def violations(self, zero: Array, drop: int) -> Violations:
        missing = drop - _whole_cells(zero, self.cell(zero.shape))
        return Violations(max(0, missing), (), self.units(zero.shape))

    def check(self, values: Values, drop: int) -> Violations:
        cell = self.cell(values.shape)
        pieces = blocks_of(values.stored, CHUNK, cell)
        missing = drop - sum(_whole_cells(values[index].is_zero(), cell) for index in pieces)
        return Violations(max(0, missing), (), self.units(values.shape))


def _whole_cells(flags: Array, cell: Shape4) -> int:
    """How many cells are True in all elements."""
    return int(np.count_nonzero(_folded(split(flags, cell), np.logical_and))) if flags.size else 0


def _means(importance: Array, cell: Shape4) -> Array:
    sums = _folded(split(importance.astype(np.float64), cell), np.add)
    sums /= math.prod(cell)
    return sums


def split(view: Array, cell: Shape4) -> Array:
    """The whole cells of an array as a view of eight axes: each axis becomes (which cell, where inside)."""
    grid = [size // max(1, step) for size, step in zip(view.shape, cell)]
    whole = view[tuple(slice(0, count * step) for count, step in zip(grid, cell))]
    return whole.reshape([size for pair in zip(grid, cell) for size in pair])


def _folded(cells: Array, operation: np.ufunc) -> Array:
    for axis in reversed(CELL_AXES):
        cells = halved(cells, axis, operation)
    return cells


def halved(array: Array, axis: int, operation: np.ufunc = np.add) -> Array:
    """Add (or the like) along an axis by halving it: the same order, so the same bits, on every machine."""
    parts: Array = np.moveaxis(array, axis, 0)
    while len(parts) > 1:
        half = len(parts) // 2
        both = operation(parts[:half], parts[half : 2 * half])
        parts = np.concatenate([both, parts[2 * half :]]) if len(parts) % 2 else both
    total: Array = parts[0]
    return total
