"""The pattern interface: the object that makes zeros is the one that checks them.

A unit is the smallest thing that can be dropped alone. Units are counted in stored order: the C order of the tensor.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse.errors import OptionError
from onnxsparse.math.values import BLOCK, Array, Values, blocks_of, erase, storage_axes
from onnxsparse.plugins import Plugin
from onnxsparse.scores import Score

Shape4 = tuple[int, ...]
PLACES = 5


@dataclass(frozen=True)
class Violations:
    """How often a pattern does not hold, the first places (group, out, in, tap), and how many units were looked at."""

    count: int
    places: tuple[tuple[int, ...], ...]
    checked: int

    def __bool__(self) -> bool:
        return self.count > 0


class Pattern(Plugin, ABC):
    """Which zeros are legal in a weight seen as (group, out, in, tap)."""

    kind: ClassVar[str] = "patterns"
    takes_sparsity: ClassVar[bool] = True

    @property
    @abstractmethod
    def text(self) -> str:
        """The canonical text: `parse(pattern.text).text == pattern.text`."""

    @abstractmethod
    def units(self, shape: Shape4) -> int:
        """How many units can be dropped one by one (for N:M: how many whole groups there are)."""

    @abstractmethod
    def unit_size(self, shape: Shape4) -> int:
        """The elements of one unit."""

    def dropped(self, shape: Shape4, drop: int) -> int:
        """How many elements so many dropped units are; about so many, where units differ in size."""
        return drop * self.unit_size(shape)

    def ragged(self, shape: Shape4) -> int:
        """The elements that belong to no whole unit and stay."""
        return math.prod(shape) - self.units(shape) * self.unit_size(shape)

    def drop_count(self, shape: Shape4, sparsity: float | None) -> int:
        """How many units go at a sparsity."""
        units = self.units(shape)
        return min(units, math.floor(checked_sparsity(sparsity, self.text) * units + 0.5))

    @abstractmethod
    def unit_scores(self, values: Values, score: Score) -> Array:
        """The importance of every unit (mean of its elements), in stored order; comparable between weights."""

    def unit_chunks(self, values: Values, score: Score) -> Iterator[Array]:
        """`unit_scores` in pieces, so that a large weight is never scored as a whole."""
        yield self.unit_scores(values, score)

    @abstractmethod
    def select(self, values: Values, score: Score, drop: int) -> Array:
        """The mask, True where an element is kept, laid out in memory like the stored values."""

    def prune(self, values: Values, score: Score, drop: int, out: Array) -> None:
        """Write the stored values with zeros where the pattern drops them to `out`, which may be the stored array."""
        erase(values, self.select(values, score, drop), out)

    @abstractmethod
    def violations(self, zero: Array, drop: int) -> Violations:
        """Check an array that is True where a weight is zero."""

    def check(self, values: Values, drop: int) -> Violations:
        """`violations` of stored values."""
        return self.violations(values.is_zero(), drop)


def checked_sparsity(sparsity: float | None, text: str) -> float:
    """Return a sparsity from 0 to 1 or raise."""
    if sparsity is None:
        raise OptionError(f"{text} needs a sparsity")
    if not 0 <= sparsity <= 1:
        raise OptionError(f"a sparsity lies between 0 and 1, not at {sparsity}")
    return float(sparsity)


Index = tuple[slice, ...]


class RankedBlocks:
    """Pieces of whole cells in stored order, each with the ranks of its elements as a flat array; many times over."""

    def __init__(self, values: Values, score: Score, cell: tuple[int, ...] = (1, 1, 1, 1)) -> None:
        self._values, self._score, self._cell = values, score, cell
        self._axes = storage_axes(values.stored)
        self._whole = None if score.elementwise else score.rank(values)

    def __iter__(self) -> Iterator[tuple[Index, Array]]:
        for index in self.indices():
            ranks = self._score.rank(self._values[index]) if self._whole is None else self._whole[index]
            yield index, flat(ranks, self._axes)

    def indices(self) -> Iterator[Index]:
        """Where the pieces are."""
        return blocks_of(self._values.stored, BLOCK, self._cell)

    def ranks(self) -> Iterator[Array]:
        """The ranks alone."""
        return (ranks for _, ranks in self)

    def unflatten(self, lanes: Array, index: Index) -> Array:
        """A flat array of a piece as a view with the axes of the weight."""
        piece: Array = lanes.reshape(stored_shape(index, self._axes)).transpose(np.argsort(self._axes))
        return piece


def flat(piece: Array, axes: tuple[int, ...]) -> Array:
    """A piece as a flat array in the order of the given axes."""
    lanes: Array = piece.transpose(axes).reshape(-1)
    return lanes


def stored_shape(index: Index, axes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a piece in the order of the given axes."""
    return tuple(index[axis].stop - index[axis].start for axis in axes)
