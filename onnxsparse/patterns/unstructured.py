"""The unstructured pattern."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse import rank
from onnxsparse.patterns.erasing import erase_block
from onnxsparse.patterns.pattern import Pattern, Shape4, Violations
from onnxsparse.patterns.ranked import Index, RankedBlocks
from onnxsparse.scores.score import Score
from onnxsparse.values import Array, Values, stored_order


@dataclass(frozen=True)
class Unstructured(Pattern):
    """Any element may be zero; exactly floor(sparsity * elements + 0.5) are."""

    name: ClassVar[str] = "unstructured"

    @property
    def text(self) -> str:
        return "unstructured"

    def units(self, shape: Shape4) -> int:
        return int(np.prod(shape, dtype=np.int64))

    def unit_size(self, shape: Shape4) -> int:
        return 1

    def unit_scores(self, values: Values, score: Score) -> Array:
        return stored_order(score.value(values)).reshape(-1)

    def unit_chunks(self, values: Values, score: Score) -> Iterator[Array]:
        if not score.elementwise:
            yield self.unit_scores(values, score)
            return
        for block in values.blocks():
            yield self.unit_scores(block, score)

    def select(self, values: Values, score: Score, drop: int) -> Array:
        mask = np.empty_like(values.stored, dtype=bool)
        for index, keep in self._kept(values, score, drop):
            mask[index] = keep
        return mask

    def prune(self, values: Values, score: Score, drop: int, out: Array) -> None:
        for index, keep in self._kept(values, score, drop):
            erase_block(values[index], keep, out[index])

    def violations(self, zero: Array, drop: int) -> Violations:
        return Violations(self.missing(int(np.count_nonzero(zero)), drop), (), zero.size)

    def check(self, values: Values, drop: int) -> Violations:
        zeros = sum(int(np.count_nonzero(block.is_zero())) for block in values.blocks())
        return Violations(self.missing(zeros, drop), (), values.stored.size)

    def missing(self, zeros: int, drop: int) -> int:
        """How many zeros there are too few."""
        return max(0, drop - zeros)

    def _kept(self, values: Values, score: Score, drop: int) -> Iterator[tuple[Index, Array]]:
        """Pieces, each with its mask."""
        blocks = RankedBlocks(values, score)
        key, _, ties = rank.threshold(blocks.ranks, drop)
        for index, keep in zip(blocks.indices(), rank.kept(blocks.ranks(), key, ties)):
            yield index, blocks.unflatten(keep, index)
