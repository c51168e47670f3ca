"""SparseGPT's solver: one pass over the columns of a layer, each pruned column made up for by those to its right.

With the upper triangular U of H^-1 = U^T U, row i of which is what is left of H^-1 when the columns before i are
settled, taking weight i away and refitting those behind it is (Frantar and Alistarh, 2023)

    w_j -= w_i / U_ii * U_ij    for all j >= i,    at the cost of (w_i / U_ii)^2

1. Columns are settled in blocks of 128. Where single elements go, or N of M, or blocks of inputs, the mask of a block
   is chosen when it is reached, by what is left: with the whole level in view, settled columns counting as they are.
2. Under other patterns (filter, channel, alive, a transposable N:M) the mask is chosen once, before the pass.
What it does not do: move weights to the left of a pruned one. Least squares does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse.math.values import Array
from onnxsparse.patterns.cells import Block, Tile
from onnxsparse.patterns.nm import NM
from onnxsparse.patterns.unstructured import Unstructured
from onnxsparse.scores import Obs, Score
from onnxsparse.solvers.choosing import Part, goals
from onnxsparse.solvers.least_squares import Refit, inverse_factor
from onnxsparse.solvers.rounds import Choose, Fitted, Layer, importance, joined
from onnxsparse.solvers.solver import Solver, one_mask

COLUMNS = 128
"""Of a block, or a few less, so that no group of inputs is cut."""


@dataclass(frozen=True)
class Blocked(Solver):
    """SparseGPT: block by block of columns, what goes is made up for by the columns behind it."""

    name: ClassVar[str] = "obs"

    def solve(self, layer: Layer, parts: Sequence[Part], drops: Sequence[int], score: Score, joint: bool) -> Fitted:
        passes = [Pass(refit) for refit in layer.refits()]
        if isinstance(score, Obs) and all(_adapts(part) for part in parts):
            mask = _chosen(layer, parts, goals(parts, drops, 1, joint)[-1], passes)
        else:
            mask = one_mask(layer, parts, drops, score, joint)
            for start, stop in _blocks(parts):
                _settle(passes, mask, start, stop)
        rows, _ = joined(layer, [(one.block, (one.rows, np.zeros_like(one.rows))) for one in passes], mask)
        return Fitted(mask, rows, layer.bias(rows), ("blocked",))


def _adapts(part: Part) -> bool:
    """Whether masks of blocks of columns, chosen one after the other, are a legal mask."""
    pattern = part.pattern
    boxes = isinstance(pattern, Block) and not isinstance(pattern, Tile)
    return pattern is None or boxes or isinstance(pattern, (NM, Unstructured))


def _chosen(layer: Layer, parts: Sequence[Part], choose: Choose, passes: Sequence[Pass]) -> Array:
    """Choose the mask of each block of columns when it is reached, and settle them."""
    mask, costs = np.ones(layer.dense.shape, bool), np.zeros_like(layer.dense)
    for start, stop in _blocks(parts):
        for one in passes:
            costs[one.outputs, start:] = one.costs(start)
        open_columns = importance(layer, costs, mask)
        open_columns[:, :start] = np.where(mask[:, :start], np.inf, 0.0)
        mask[:, start:stop] = choose(open_columns)[:, start:stop]
        _settle(passes, mask, start, stop)
    return mask


def _settle(passes: Sequence[Pass], mask: Array, start: int, stop: int) -> None:
    for one in passes:
        one.settle(mask[one.outputs], start, stop)


def _blocks(parts: Sequence[Part]) -> Iterator[tuple[int, int]]:
    """Where the blocks of columns begin and end: at a group of inputs of one tap."""
    for part in parts:
        _, _, inputs, taps = part.shape4
        wide = _width(part)
        step = max(wide, COLUMNS // wide * wide)
        if inputs <= step // 2:  # several taps at a time
            step, inputs, taps = step // inputs * inputs, inputs * taps, 1
        for tap in range(taps):
            first = part.columns.start + tap * inputs
            yield from ((first + at, first + min(at + step, inputs)) for at in range(0, inputs, step))


def _width(part: Part) -> int:
    """How many inputs go together, or compete."""
    if isinstance(part.pattern, NM):
        return part.pattern.m
    return part.pattern.inputs if isinstance(part.pattern, Block) else 1


class Pass:
    """One block of a layer on its way through the columns; `rows` are its weights so far."""

    def __init__(self, refit: Refit) -> None:
        self.block, self.outputs, self.rows = refit.block, refit.block.outputs, refit.full.copy()
        self._upper = inverse_factor(refit.damped[::-1, ::-1])[::-1, ::-1]

    def costs(self, start: int) -> Array:
        """What the removal of each weight from a column on costs, when those before are settled."""
        left = self._upper[start:, start:]
        found: Array = np.square(self.rows[:, start:]) / np.einsum("ij,ij->j", left, left)
        return found

    def settle(self, mask: Array, start: int, stop: int) -> None:
        """Apply a mask to some columns; those behind make up for it."""
        rows, upper = self.rows, self._upper
        errors = np.zeros((len(rows), stop - start))
        for column in range(start, stop):
            error = np.where(mask[:, column], 0.0, rows[:, column] / upper[column, column])
            rows[:, column:stop] -= error[:, None] * upper[column, column:stop]
            rows[:, column] = np.where(mask[:, column], rows[:, column], 0.0)
            errors[:, column - start] = error
        rows[:, stop:] -= errors @ upper[start:stop, stop:]


__all__ = ["Blocked"]
