"""What a pattern keeps of a weight's scores before and after moves, and whether moves tear groups that are sparse.

Scores are those of the stored tensor; moves are those that `Permute` makes in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from onnxsparse.channel_classes.permutation import Move, MovedTensor
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array, Reading, Values
from onnxsparse.patterns.nm import NM, NOfM
from onnxsparse.permutation_search import kept_score
from onnxsparse.planning.given_scores import GivenScores
from onnxsparse.planning.plan import PlanRow
from onnxsparse.scores import Magnitude

COMMON = (NM(2, 4), NM(1, 4), NM(4, 8), NM(1, 2))
"""Patterns that a file may be pruned to without a record of it."""


@dataclass(frozen=True, eq=False)
class Gain:
    """What the pattern keeps of a weight's scores, before and after some moves."""

    moves: Sequence[Move]
    before: float
    after: float


def gain(row: PlanRow, moves: Sequence[Move], scores: GivenScores | None) -> Gain:
    matrix = scores_of(row, scores)
    before = kept(row, matrix)
    return Gain(moves, before, kept(row, moved(row, matrix, moves)) if moves else before)


def moved(row: PlanRow, matrix: Array, moves: Sequence[Move]) -> Array:
    """Scores of a weight, as (group, out, reduce, tap), after moves of the stored tensor."""
    flat = row.use.restore(matrix).reshape(row.weight.shape)
    return row.use.matrix(MovedTensor(row.name, row.weight.shape, tuple(moves))(flat).reshape(-1))


def kept(row: PlanRow, matrix: Array) -> float:
    """What the pattern keeps of scores, as (group, out, reduce, tap)."""
    assert isinstance(row.pattern, NOfM)
    if not isinstance(row.pattern, NM):
        mask = row.pattern.select(Values(matrix, Reading(matrix.dtype.name)), Magnitude(), row.drop)
        return float(matrix[mask].sum(dtype=np.float64))
    rows = (part.transpose(0, 2, 1).reshape(-1, matrix.shape[2]) for part in matrix)
    return sum(kept_score(part, row.pattern.n, row.pattern.m) for part in rows)


def scores_of(row: PlanRow, scores: GivenScores | None) -> Array:
    """The scores of a weight as (group, out, reduce, tap)."""
    if scores is not None:
        return row.use.matrix(scores.scores(row.weight).reshape(-1))
    found = np.abs(row.param.whole().real())
    if not np.isfinite(found).all():
        raise OptionError(f"weight '{row.name}' holds numbers that are not finite; --exclude it")
    return found


@dataclass(frozen=True, eq=False)
class Grouped:
    """A weight whose zeros are N:M."""

    row: PlanRow
    pattern: NOfM
    zero: Array

    def torn(self, moves: Sequence[Move]) -> bool:
        return bool(moves) and bool(self.pattern.violations(moved(self.row, self.zero, moves), 0).count)


def grouped(row: PlanRow, asked: object) -> Iterator[Grouped]:
    """The patterns that a weight has already: those that are common, and the one that is asked for."""
    if not row.weight.uses or row.weight.refusal:
        return
    zero = row.param.whole().is_zero()
    for pattern in dict.fromkeys((asked, *COMMON)):
        if isinstance(pattern, NOfM) and pattern.units(zero.shape) and not pattern.violations(zero, 0).count:
            yield Grouped(row, pattern, zero)


__all__ = ["Gain", "Grouped", "gain", "grouped", "kept", "moved", "scores_of"]
