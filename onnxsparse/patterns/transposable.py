"""N:M along both axes: a weight and its transpose are N:M. And ASP's mask calculators, as functions of a matrix.

1. In every whole block of M outputs by M inputs, at one tap, at most N of each row and each column are kept: the
   products with the weight, forward, and with its transpose, backward, are both N:M.
2. What fills no block, at the end of the outputs or of the inputs, stays dense.
3. Each block is chosen by itself (`transposable_masks`), so that pieces of whole blocks can be pruned alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse.errors import OptionError
from onnxsparse.math.values import BLOCK, Array, Reading, Values, blocks_of, halved
from onnxsparse.patterns import transposable_masks
from onnxsparse.patterns.cells import split
from onnxsparse.patterns.nm import NM, NOfM
from onnxsparse.patterns.pattern import PLACES, Index, Pattern, Shape4, Violations
from onnxsparse.scores import Magnitude, Score

BLOCKS_FIRST = (0, 2, 4, 6, 1, 7, 3, 5)
"""The axes of `cells.split` as (group, row of blocks, column of blocks, tap, 1, 1, row, column)."""


@dataclass(frozen=True)
class Transposable(NOfM):
    """N of M in each row and each column of M x M blocks: the transpose is N:M, too; of all such masks the best."""

    name: ClassVar[str] = "transposable"
    syntax: ClassVar[str] = "N:M:transposable"

    @classmethod
    def read(cls, text: str) -> Transposable | None:
        match = re.fullmatch(r"([0-9]{1,6}):([0-9]{1,6}):([a-z-]+)", text)
        return cls(int(match[1]), int(match[2])) if match and match[3] == cls.name else None

    @property
    def text(self) -> str:
        return f"{self.n}:{self.m}:{self.name}"

    @property
    def outputs(self) -> int:
        """The outputs of a block."""
        return self.m

    def cell(self, shape: Shape4) -> Shape4:
        return (1, self.m, self.m, 1)

    def choose(self, scores: Array) -> Array:
        """The masks of blocks (count, M, M)."""
        return transposable_masks.best(scores, self.n)

    def select(self, values: Values, score: Score, drop: int) -> Array:
        mask = np.empty_like(values.stored, dtype=bool)
        mask[...] = True
        whole = None if score.elementwise else score.value(values)
        for index in blocks_of(values.stored, BLOCK, self.cell(values.shape)):
            importance = score.value(values[index]) if whole is None else whole[index]
            kept = self._blocks(mask[index])
            kept[...] = self.choose(self._blocks(importance).reshape(-1, self.m, self.m)).reshape(kept.shape)
        return mask

    def violations(self, zero: Array, drop: int) -> Violations:
        return self._count(zero, lambda index: ~zero[index])

    def check(self, values: Values, drop: int) -> Violations:
        return self._count(values.stored, lambda index: ~values[index].is_zero())

    def _count(self, view: Array, used: Callable[[Index], Array]) -> Violations:
        """Count the rows and columns of blocks that use more than N."""
        count, places = 0, list[tuple[int, ...]]()
        for index in blocks_of(view, BLOCK, self.cell(view.shape)):
            blocks = self._blocks(used(index)).view(np.uint8)
            for axis, step in ((7, (1, 0)), (6, (0, 1))):
                crowded = halved(blocks, axis) > self.n
                count += int(np.count_nonzero(crowded))
                if len(places) < PLACES:
                    places += self._places(crowded, step, index)[: PLACES - len(places)]
        return Violations(count, tuple(places), self.units(view.shape))

    def _places(self, crowded: Array, step: tuple[int, int], index: Index) -> list[tuple[int, ...]]:
        """Where the first crowded rows (step 1, 0) or columns (0, 1) of a piece begin."""
        starts = [part.start for part in index]
        return [
            (
                int(starts[0] + group),
                int(starts[1] + row * self.m + inside * step[0]),
                int(starts[2] + column * self.m + inside * step[1]),
                int(starts[3] + tap),
            )
            for group, row, column, tap, _, _, inside in np.argwhere(crowded)[:PLACES]
        ]

    def _blocks(self, view: Array) -> Array:
        """The whole blocks of a view, as a view."""
        return split(view, self.cell(view.shape)).transpose(BLOCKS_FIRST)


@dataclass(frozen=True)
class TransposableGreedy(Transposable):
    """N:M:transposable by taking the largest elements one after the other; some rows and columns keep fewer than N."""

    name: ClassVar[str] = "transposable-greedy"
    syntax: ClassVar[str] = "N:M:transposable-greedy"

    def choose(self, scores: Array) -> Array:
        return transposable_masks.greedy(scores, self.n)


def mn_1d(matrix: Array, m: int, n: int) -> Array:
    """ASP's `mMnN_1d`: True for the N largest of every M in a row."""
    return _kept(NM(n, m), matrix)


def mn_2d_greedy(matrix: Array, m: int, n: int) -> Array:
    """ASP's `mMnN_2d_greedy`: True for the largest of every M x M block, while rows and columns hold fewer than N."""
    return _kept(TransposableGreedy(n, m), matrix)


def mn_2d_best(matrix: Array, m: int, n: int) -> Array:
    """ASP's `mMnN_2d_best`: True for N of M in the rows and columns of every M x M block, of the largest sum."""
    return _kept(Transposable(n, m), matrix)


def _kept(pattern: Pattern, matrix: Array) -> Array:
    """The mask of a matrix by magnitude; what fills no group or block is kept."""
    if matrix.ndim != 2:
        raise OptionError(f"{pattern.text} masks are of matrices, not of an array of shape {list(matrix.shape)}")
    values = Values(matrix.reshape(1, *matrix.shape, 1), Reading(matrix.dtype.name))
    mask: Array = pattern.select(values, Magnitude(), 0)[0, :, :, 0]
    return mask
