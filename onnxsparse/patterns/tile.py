"""The tile pattern: blocks without a rest."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse import rank
from onnxsparse.patterns.block import Block
from onnxsparse.patterns.cells import CELL_AXES, halved, split
from onnxsparse.patterns.pattern import Shape4, Violations
from onnxsparse.scores.score import Score
from onnxsparse.values import Array, Values, storage_axes


@dataclass(frozen=True)
class Tile(Block):
    """Blocks of R outputs by C inputs of the reduction are zero as a whole, smaller ones at the edges, too."""

    name: ClassVar[str] = "tile"
    syntax: ClassVar[str] = "tile:RxC"
    example: ClassVar[str] = "tile:1x4"

    def grid(self, shape: Shape4) -> Shape4:
        return tuple(-(-size // step) for size, step in zip(shape, self.cell(shape)))

    def ragged(self, shape: Shape4) -> int:
        return 0

    def dropped(self, shape: Shape4, drop: int) -> int:
        """Tiles at the edges are smaller."""
        return round(drop * math.prod(shape) / max(1, self.units(shape)))

    def unit_chunks(self, values: Values, score: Score) -> Iterator[Array]:
        """The mean of a tile's elements, which are fewer at an edge."""
        sums = self._sums(score.value(values).astype(np.float64))
        sums /= self._sums(np.ones(values.shape))
        yield sums.transpose(storage_axes(values.stored)).reshape(-1)

    def select(self, values: Values, score: Score, drop: int) -> Array:
        dropped, axes = rank.smallest(self.unit_scores(values, score), drop), storage_axes(values.stored)
        grid = self.grid(values.shape)
        by_axis = dropped.reshape([grid[axis] for axis in axes]).transpose(np.argsort(axes))
        keep = np.empty_like(values.stored, dtype=bool)
        for axis in (1, 2):
            by_axis = np.repeat(by_axis, self.cell(values.shape)[axis], axis)[self._inside(axis, values.shape)]
        keep[...] = ~by_axis
        return keep

    def violations(self, zero: Array, drop: int) -> Violations:
        zeros = self._sums(zero.astype(np.float64)) == self._sums(np.ones(zero.shape))
        return Violations(max(0, drop - int(np.count_nonzero(zeros))), (), self.units(zero.shape))

    def check(self, values: Values, drop: int) -> Violations:
        return self.violations(values.is_zero(), drop)

    def _sums(self, numbers: Array) -> Array:
        """The sum over every tile, in an order of its own."""
        cell = self.cell(numbers.shape)
        whole = np.zeros([count * step for count, step in zip(self.grid(numbers.shape), cell)])
        whole[tuple(slice(0, size) for size in numbers.shape)] = numbers
        cells = split(whole, cell)
        for axis in reversed(CELL_AXES):
            cells = halved(cells, axis)
        return np.array(cells)

    def _inside(self, axis: int, shape: Shape4) -> tuple[slice, ...]:
        return tuple(slice(0, shape[axis]) if place == axis else slice(None) for place in range(4))
