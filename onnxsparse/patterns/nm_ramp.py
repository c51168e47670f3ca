"""N:M on its way: only some groups keep N of M, and more and more do.

1. A level counts zeros: at a sparsity s of n elements floor(s * n / (M - N) + 0.5) groups have M - N zeros each, and
   at 1 - N/M every whole group has. The others stay dense, and so does what fills no group.
2. First come the groups that lose the least score, the sum of their M - N smallest elements; among equals the earlier.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from onnxsparse import rank
from onnxsparse.patterns.cells import CellPattern, halved
from onnxsparse.patterns.nm import NM, REDUCTION
from onnxsparse.patterns.pattern import Shape4, checked_sparsity
from onnxsparse.scores.score import Score
from onnxsparse.values import Array, Values, storage_axes


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
