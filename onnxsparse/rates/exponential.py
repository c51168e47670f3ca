"""The exponential rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.rates.rate import Rate, checked_drop


@dataclass(frozen=True)
class Exponential(Rate):
    """Multiplied with `by` after every epoch."""

    name: ClassVar[str] = "exponential"
    by: float = 0.9

    def __post_init__(self) -> None:
        checked_drop(self.by)

    def factor(self, step: int, total: int, per_epoch: int) -> float:
        return float(self.by ** (max(step, 0) // per_epoch))
