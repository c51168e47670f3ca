"""N:M sparsity, and its ramp, where more and more groups keep N of M."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from onnxsparse.errors import OptionError
from onnxsparse.math import rank
from onnxsparse.math.values import BLOCK, Array, Values, blocks_of, erase_block, halved, storage_axes
from onnxsparse.patterns.cells import CellPattern
from onnxsparse.patterns.groups import LARGEST_GROUP, Groups
from onnxsparse.patterns.pattern import (
    PLACES,
    Index,
    RankedBlocks,
    Shape4,
    Violations,
    checked_sparsity,
    flat,
    stored_shape,
)
from onnxsparse.scores import Score

REDUCTION = 2
Look = Callable[[Index], Any]


@dataclass(frozen=True)
class NOfM(CellPattern):
    """N of M are kept in every cell, each chosen by itself: the pattern fixes how much goes, and counts elements."""

    takes_sparsity: ClassVar[bool] = False
    n: int = field(metadata={"option": False})
    m: int = field(metadata={"option": False})

    def __post_init__(self) -> None:
        if not 1 <= self.n < self.m <= LARGEST_GROUP:
            raise OptionError(f"{self.text}: N:M needs 1 <= N < M <= {LARGEST_GROUP}")

    def drop_count(self, shape: Shape4, sparsity: float | None) -> int:
        """The elements that go; N:M leaves no choice."""
        return self.units(shape) * (self.unit_size(shape) // self.m) * (self.m - self.n)

    def dropped(self, shape: Shape4, drop: int) -> int:
        return drop


@dataclass(frozen=True)
class NM(NOfM):
    """N of every M weights in a row along the reduction are kept; a last group shorter than M stays dense."""

    name: ClassVar[str] = "N:M"

    @classmethod
    def read(cls, text: str) -> NM | None:
        match = re.fullmatch(r"([0-9]{1,6}):([0-9]{1,6})", text)
        return None if match is None else cls(int(match[1]), int(match[2]))

    @property
    def text(self) -> str:
        return f"{self.n}:{self.m}"

    def cell(self, shape: Shape4) -> Shape4:
        return (1, 1, self.m, 1)

    def select(self, values: Values, score: Score, drop: int) -> Array:
        mask = np.empty_like(values.stored, dtype=bool)
        for index, keep in self._kept(values, score):
            mask[index] = keep
        self._tail(mask)[...] = True
        return mask

    def prune(self, values: Values, score: Score, drop: int, out: Array) -> None:
        for index, keep in self._kept(values, score):
            erase_block(values[index], keep, out[index])
        if out is not values.stored:
            np.copyto(self._tail(out), self._tail(values.stored))

    def violations(self, zero: Array, drop: int) -> Violations:
        return self._count(zero, lambda index: ~zero[index])

    def check(self, values: Values, drop: int) -> Violations:
        """`violations`, several times faster: -0.0 is told from other numbers only once that may matter."""
        if not values.reading.is_float:
            return self._count(values.stored, lambda index: ~values[index].is_zero())
        bits, magnitude = values.bits, values.bits.dtype.type(values.reading.magnitude_bits)
        return self._count(bits, lambda index: bits[index] != 0, lambda index: (bits[index] & magnitude) != 0)

    def _count(self, view: Array, used: Look, exact: Look | None = None) -> Violations:
        """Count crowded groups by what `used` says of a piece; from the first piece that has some on, by `exact`."""
        groups, axes, count = Groups(self.n, self.m), storage_axes(view), 0
        places: list[tuple[int, ...]] = []
        for index in blocks_of(view, BLOCK, self.cell(view.shape)):
            stride = _stride(index, axes)
            crowded = groups.crowded(flat(used(index), axes), stride)
            found = int(np.count_nonzero(crowded))
            if found and exact:
                used, exact = exact, None
                crowded = groups.crowded(flat(used(index), axes), stride)
                found = int(np.count_nonzero(crowded))
            if found and len(places) < PLACES:
                lanes = groups.first_lanes(crowded, stride, PLACES - len(places))
                places += [_place(lane, index, axes) for lane in lanes]
            count += found
        return Violations(count, tuple(places), self.units(view.shape))

    def _kept(self, values: Values, score: Score) -> Iterator[tuple[Index, Array]]:
        """Pieces of whole groups, each with its mask."""
        groups, axes = Groups(self.n, self.m), storage_axes(values.stored)
        blocks = RankedBlocks(values, score, self.cell(values.shape))
        for index, ranks in blocks:
            yield index, blocks.unflatten(groups.keep(ranks, _stride(index, axes)), index)

    def _tail(self, array: Array) -> Array:
        return array[:, :, array.shape[REDUCTION] // self.m * self.m :]


def _stride(index: Index, axes: tuple[int, ...]) -> int:
    """How far apart the members of a group lie in a piece."""
    return math.prod(stored_shape(index, axes)[axes.index(REDUCTION) + 1 :])


def _place(lane: int, index: Index, axes: tuple[int, ...]) -> tuple[int, ...]:
    """Where in the weight a lane of a piece lies."""
    found = dict(zip(axes, np.unravel_index(lane, stored_shape(index, axes))))
    return tuple(int(found[axis]) + index[axis].start for axis in range(len(index)))


# N:M on its way: only some groups keep N of M, and more and more do.
#
# 1. A level counts zeros: at a sparsity s of n elements floor(s * n / (M - N) + 0.5) groups have M - N zeros each, and
#    at 1 - N/M every whole group has. The others stay dense, and so does what fills no group.
# 2. First come the groups that lose the least score, the sum of their M - N smallest elements; among equals the
#    earlier.


@dataclass(frozen=True)
class NMRamp(CellPattern):
    """N:M in so many groups; a unit is the M - N elements that a group loses."""

    n: int
    m: int

    @property
    def text(self) -> str:
        return f"{self.n}:{self.m}"

    @property
    def whole(self) -> NM:
        """The pattern at the end of the way."""
        return NM(self.n, self.m)

    def cell(self, shape: Shape4) -> Shape4:
        return (1, 1, self.m, 1)

    def unit_size(self, shape: Shape4) -> int:
        return self.m - self.n

    def drop_count(self, shape: Shape4, sparsity: float | None) -> int:
        level = checked_sparsity(sparsity, self.text)
        if level >= 1 - self.n / self.m:
            return self.units(shape)
        return min(self.units(shape), math.floor(level * math.prod(shape) / (self.m - self.n) + 0.5))

    def unit_scores(self, values: Values, score: Score) -> Array:
        """What every group loses."""
        lost = self._lost(score.value(values))
        return lost.transpose(storage_axes(values.stored)).reshape(-1)

    def select(self, values: Values, score: Score, drop: int) -> Array:
        keep = self.whole.select(values, score, 0)
        if drop < self.units(values.shape):
            axes, grid = storage_axes(values.stored), self.grid(values.shape)
            chosen = rank.smallest(self.unit_scores(values, score), drop)
            by_axis = chosen.reshape([grid[axis] for axis in axes]).transpose(np.argsort(axes))
            groups = np.repeat(by_axis, self.m, REDUCTION)
            keep[:, :, : groups.shape[REDUCTION]] |= ~groups
        return keep

    def _lost(self, importance: Array) -> Array:
        groups, out, inputs, tap = importance.shape
        count = inputs // self.m
        cells = importance[:, :, : count * self.m].astype(np.float64).reshape(groups, out, count, self.m, tap)
        smallest = np.sort(cells, axis=3)[:, :, :, : self.m - self.n]
        return halved(smallest, 3)
