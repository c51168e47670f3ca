"""Stages of a run of so many steps, one after the other: stage k of n begins at step k * total // n."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from onnxsparse.errors import OptionError


@dataclass(frozen=True)
class Stages:
    """`count` stages of `total` steps together."""

    total: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.count <= self.total:
            raise OptionError(f"{self.count} stages need at least {self.count} steps, not {self.total}")

    def begin(self, stage: int) -> int:
        """The first step of a stage; for the one behind the last, the number of all steps."""
        return stage * self.total // self.count

    def length(self, stage: int) -> int:
        return self.begin(stage + 1) - self.begin(stage)

    def at(self, step: int) -> int:
        """The stage of a step; behind the end it is the last one."""
        begins = [self.begin(stage) for stage in range(self.count)]
        return max(0, bisect_right(begins, step) - 1)

    def begins(self, step: int) -> bool:
        return step < self.total and self.begin(self.at(step)) == step

    def ends(self, step: int) -> bool:
        """Whether a step is the last one of its stage."""
        return step < self.total and self.begin(self.at(step) + 1) == step + 1
