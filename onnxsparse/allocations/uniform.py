"""The uniform allocation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.allocations.allocation import Allocation, Candidate
from onnxsparse.patterns.pattern import Pattern


@dataclass(frozen=True)
class Uniform(Allocation):
    """The same sparsity for every weight."""

    name: ClassVar[str] = "uniform"

    def _counts(self, weights: Sequence[Candidate], sparsity: float | None, pattern: Pattern) -> dict[str, int]:
        return {weight.name: pattern.drop_count(weight.shape4, sparsity) for weight in weights}
