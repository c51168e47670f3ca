"""The N:M pattern."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse.errors import OptionError
from onnxsparse.patterns.cells import CELL_AXES, CellPattern, split
from onnxsparse.patterns.pattern import PLACES, Shape4, Violations
from onnxsparse.scores.score import Score
from onnxsparse.values import Array, Values

LARGEST_GROUP = 1024


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

    def cell(self, shape: Shape4) -> Shape4:  # noqa: ARG002 - the same for every shape
        return (1, 1, self.m, 1)

    def drop_count(self, shape: Shape4, sparsity: float | None) -> int:  # noqa: ARG002 - N:M leaves no choice
        """The elements that go; N:M leaves no choice."""
        return self.units(shape) * (self.m - self.n)

    def select(self, values: Values, score: Score, drop: int) -> Array:  # noqa: ARG002 - N:M leaves no choice
        keep = np.empty_like(values.stored, dtype=bool)
        keep[...] = True
        groups = split(score.rank(values), self.cell(values.shape))
        order = np.argsort(groups, axis=5, kind="stable")[:, :, :, :, :, : self.m - self.n]
        kept_groups = split(keep, self.cell(values.shape))
        np.put_along_axis(kept_groups, order, False, axis=5)
        return keep

    def violations(self, zero: Array, drop: int) -> Violations:  # noqa: ARG002 - N:M leaves no choice
        kept = self.m - np.count_nonzero(split(zero, self.cell(zero.shape)), axis=CELL_AXES)
        bad = np.argwhere(kept > self.n)
        places = tuple((int(g), int(o), int(i) * self.m, int(t)) for g, o, i, t in bad[:PLACES])
        return Violations(len(bad), places, kept.size)
