"""The unstructured pattern."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse import rank
from onnxsparse.patterns.pattern import Pattern, Shape4, Violations
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
        for block in values.blocks(rank.CHUNK):
            yield self.unit_scores(block, score)

    def select(self, values: Values, score: Score, drop: int) -> Array:
        keep = np.empty_like(values.stored, dtype=bool)
        in_order = stored_order(keep)
        keys = np.empty_like(values.stored, dtype=score.rank(values).dtype)
        keys[...] = score.rank(values)
        in_order[...] = ~rank.smallest(stored_order(keys).reshape(-1), drop).reshape(in_order.shape)
        return keep

    def violations(self, zero: Array, drop: int) -> Violations:
        return Violations(max(0, drop - int(np.count_nonzero(zero))), (), zero.size)
