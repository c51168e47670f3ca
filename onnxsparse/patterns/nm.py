"""The N:M pattern."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from onnxsparse.errors import OptionError
from onnxsparse.patterns.cells import CellPattern
from onnxsparse.patterns.erasing import erase_block
from onnxsparse.patterns.groups import LARGEST_GROUP, Groups
from onnxsparse.patterns.pattern import PLACES, Shape4, Violations
from onnxsparse.patterns.ranked import Index, RankedBlocks, flat, stored_shape
from onnxsparse.scores.score import Score
from onnxsparse.values import BLOCK, Array, Values, blocks_of, storage_axes

REDUCTION = 2
Look = Callable[[Index], Any]


@dataclass(frozen=True)
class NM(CellPattern):
    """N of every M weights in a row along the reduction are kept; a last group shorter than M stays dense."""

    name: ClassVar[str] = "N:M"
    takes_sparsity: ClassVar[bool] = False
    n: int = field(metadata={"option": False})
    m: int = field(metadata={"option": False})

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
