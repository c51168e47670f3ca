"""Structured patterns whose units are boxes that tile a weight: blocks, tiles, filters and channels."""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from onnxsparse.errors import OptionError
from onnxsparse.math import rank
from onnxsparse.math.values import Array, Values, blocks_of, halved, storage_axes
from onnxsparse.patterns.pattern import Pattern, Shape4, Violations
from onnxsparse.scores import Score

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


@dataclass(frozen=True)
class Block(CellPattern):
    """Blocks of R outputs by C inputs of the reduction are zero as a whole; ragged edges stay dense."""

    name: ClassVar[str] = "block"
    syntax: ClassVar[str] = "block:RxC"
    example: ClassVar[str] = "block:4x1"
    outputs: int = field(metadata={"option": False})
    inputs: int = field(metadata={"option": False})

    def __post_init__(self) -> None:
        if self.outputs < 1 or self.inputs < 1:
            raise OptionError(f"{self.text} has an empty block")

    @classmethod
    def read(cls, text: str) -> Block | None:
        word, _, size = text.partition(":")
        if word != cls.name:
            return None
        match = re.fullmatch(r"([0-9]{1,6})x([0-9]{1,6})", size)
        if match is None:
            raise OptionError(f"{text[:60]!r} is not a {word}: write {cls.syntax}, for example {cls.example}")
        return cls(int(match[1]), int(match[2]))

    @property
    def text(self) -> str:
        return f"{self.name}:{self.outputs}x{self.inputs}"

    def cell(self, shape: Shape4) -> Shape4:
        return (1, self.outputs, self.inputs, 1)


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


@dataclass(frozen=True)
class Filter(CellPattern):
    """All weights of an output are zero; never those of all outputs."""

    name: ClassVar[str] = "filter"

    @property
    def text(self) -> str:
        return "filter"

    def cell(self, shape: Shape4) -> Shape4:
        return (1, 1, shape[2], shape[3])

    def drop_count(self, shape: Shape4, sparsity: float | None) -> int:
        return min(super().drop_count(shape, sparsity), max(0, self.units(shape) - 1))


@dataclass(frozen=True)
class Channel(CellPattern):
    """All weights that read an input channel are zero; never those of all channels."""

    name: ClassVar[str] = "channel"

    @property
    def text(self) -> str:
        return "channel"

    def cell(self, shape: Shape4) -> Shape4:
        return (1, shape[1], 1, shape[3])

    def drop_count(self, shape: Shape4, sparsity: float | None) -> int:
        return min(super().drop_count(shape, sparsity), max(0, self.units(shape) - 1))
