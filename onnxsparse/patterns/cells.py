"""Patterns that drop whole cells: boxes of one size that tile a weight. What does not fill a cell stays dense."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator

import numpy as np

from onnxsparse import rank
from onnxsparse.patterns.pattern import Pattern, Shape4, Violations
from onnxsparse.scores.score import Score
from onnxsparse.values import Array, Values, storage_axes

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
        axes = storage_axes(values.stored)
        for part in _parts(values, score, axes[0], self.cell(values.shape)[axes[0]]):
            means = self._means(part, self.cell(values.shape))
            yield means.transpose(axes).reshape(-1)

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
        missing = drop - int(np.count_nonzero(split(zero, self.cell(zero.shape)).all(axis=CELL_AXES)))
        return Violations(max(0, missing), (), self.units(zero.shape))

    @staticmethod
    def _means(importance: Array, cell: Shape4) -> Array:
        sums = split(importance.astype(np.float64), cell)
        for axis in reversed(CELL_AXES):
            sums = tree_sum(sums, axis)
        sums /= math.prod(cell)
        return sums


def split(view: Array, cell: Shape4) -> Array:
    """The whole cells of an array as a view of eight axes: each axis becomes (which cell, where inside)."""
    grid = [size // max(1, step) for size, step in zip(view.shape, cell)]
    whole = view[tuple(slice(0, count * step) for count, step in zip(grid, cell))]
    return whole.reshape([size for pair in zip(grid, cell) for size in pair])


def tree_sum(array: Array, axis: int) -> Array:
    """Add along an axis by halving it: the same order of additions, so the same bits, on every machine."""
    parts: Array = np.moveaxis(array, axis, 0)
    if len(parts) == 0:
        return np.zeros(parts.shape[1:], array.dtype)
    while len(parts) > 1:
        half = len(parts) // 2
        summed = parts[:half] + parts[half : 2 * half]
        parts = np.concatenate([summed, parts[2 * half :]]) if len(parts) % 2 else summed
    total: Array = parts[0]
    return total


def _parts(values: Values, score: Score, axis: int, step: int) -> Iterator[Array]:
    """The importance of the elements in pieces along one axis that hold whole cells."""
    size = values.shape[axis]
    whole = score.value(values) if not score.elementwise else None
    cells = max(1, CHUNK * size // max(1, values.stored.size * step))
    for start in range(0, size - size % max(1, step), cells * max(1, step)):
        index = (slice(None),) * axis + (slice(start, start + cells * step),)
        yield score.value(values[index]) if whole is None else whole[index]
