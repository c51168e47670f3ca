"""The N:M pattern."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from onnxsparse.errors import OptionError
from onnxsparse.patterns.cells import CellPattern
from onnxsparse.patterns.erasing import erase_block, ranked_blocks
from onnxsparse.patterns.groups import LARGEST_GROUP, Groups
from onnxsparse.patterns.pattern import PLACES, Shape4, Violations
from onnxsparse.scores.score import Score
from onnxsparse.values import BLOCK, Array, Values, blocks_of, storage_axes

REDUCTION = 2
Index = tuple[slice, ...]
Look = Callable[[Index], Any]


@dataclass(frozen=True)
class NM(CellPattern):
    """N of every M weights in a row along the reduction are kept; a last group shorter than M stays dense."""

    name: ClassVar[str] = "N:M"
    takes_sparsity: ClassVar[bool] = False
    n: int
    m: int

    def __post_init__(self) -> None:
        if not 1 <= self.n < self.m <= LARGEST_GROUP:
            raise OptionError(f"{self.text}: N:M needs 1 <= N < M <= {LARGEST_GROUP}")

    @classmethod
    def read(cls, text: str) -> NM | None:
        match = re.fullmatch(r"([0-9]{1,6}):([0-9]{1,6})", text)
        return None if match is None else cls(int(match[1]), int(match[2]))

    @property
    def text(self) -> str:
        return f"{self.n}:{self.m}"

    def cell(self, shape: Shape4) -> Shape4:
        return (1, 1, self.m, 1)

    def drop_count(self, shape: Shape4, sparsity: float | None) -> int:
        """The elements that go; N:M leaves no choice."""
        return self.units(shape) * (self.m - self.n)

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
        """`violations`, several times faster: -0.0 is told from other numbers only where that may matter."""
        if not values.reading.is_float:
            return self._count(values.stored, lambda index: ~values[index].is_zero())
        bits = values.bits
        return self._count(bits, lambda index: bits[index] != 0, lambda index: _without_signed_zeros(values[index]))

    def _count(self, view: Array, used: Look, second: Look = lambda index: None) -> Violations:
        groups, axes, count = Groups(self.n, self.m), storage_axes(view), 0
        places: list[tuple[int, ...]] = []
        for index in blocks_of(view, BLOCK, self.cell(view.shape)):
            shape, stride = _layout(index, axes)
            crowded, step = groups.crowded(_flat(used(index), axes), stride)
            found = np.count_nonzero(crowded)
            again = second(index) if found else None
            if again is not None:
                crowded, step = groups.crowded(_flat(again, axes), stride)
                found = np.count_nonzero(crowded)
            if found and len(places) < PLACES:
                lanes = np.flatnonzero(crowded)[: PLACES - len(places)] * step
                places += [_place(lane, index, axes, shape) for lane in lanes]
            count += int(found)
        return Violations(count, tuple(places), self.units(view.shape))

    def _kept(self, values: Values, score: Score) -> Iterator[tuple[Index, Array]]:
        """Pieces of whole groups, each with its mask."""
        groups, axes = Groups(self.n, self.m), storage_axes(values.stored)
        for index, ranks in ranked_blocks(values, score, self.cell(values.shape)):
            shape, stride = _layout(index, axes)
            yield index, groups.keep(ranks, stride).reshape(shape).transpose(np.argsort(axes))

    def _tail(self, array: Array) -> Array:
        return array[:, :, array.shape[REDUCTION] // self.m * self.m :]


def _layout(index: Index, axes: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """The shape of a piece in stored order, and how far apart the members of a group lie in it."""
    shape = tuple(index[axis].stop - index[axis].start for axis in axes)
    return shape, math.prod(shape[axes.index(REDUCTION) + 1 :])


def _flat(piece: Array, axes: tuple[int, ...]) -> Array:
    flat: Array = piece.transpose(axes).reshape(-1)
    return flat


def _place(lane: int, index: Index, axes: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Where in the weight a lane of a piece lies."""
    found = dict(zip(axes, np.unravel_index(lane, shape)))
    return tuple(int(found[axis]) + index[axis].start for axis in range(len(index)))


def _without_signed_zeros(values: Values) -> Array | None:
    """The elements used, when some -0.0 was taken for one of them; None when there is none."""
    sign = values.bits.dtype.type(values.reading.magnitude_bits + 1)
    return ~values.is_zero() if np.count_nonzero(values.bits == sign) else None
