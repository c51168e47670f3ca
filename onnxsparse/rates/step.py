"""The rate that drops every few epochs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.errors import OptionError
from onnxsparse.rates.rate import Rate, checked_drop, in_steps


@dataclass(frozen=True)
class Step(Rate):
    """Multiplied with `by` every so many epochs."""

    name: ClassVar[str] = "step"
    every: float = 10.0
    by: float = 0.1

    def __post_init__(self) -> None:
        checked_drop(self.by)
        if not 0.0 < self.every < math.inf:
            raise OptionError(f"every is a number of epochs above 0, not {self.every}")

    def factor(self, step: int, total: int, per_epoch: int) -> float:
        return float(self.by ** (max(step, 0) // max(in_steps(self.every, per_epoch), 1)))
