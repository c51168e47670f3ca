"""The cosine rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.rates.rate import Rate, checked_cycles, checked_factor, place


@dataclass(frozen=True)
class Cosine(Rate):
    """Half a cosine wave from the base rate down to a share of it, in one cycle or several."""

    name: ClassVar[str] = "cosine"
    end: float = 0.0
    cycles: int = 1

    def __post_init__(self) -> None:
        checked_factor("end", self.end)
        checked_cycles(self.cycles)

    def factor(self, step: int, total: int, per_epoch: int) -> float:
        height = (1.0 + math.cos(math.pi * place(step, total, self.cycles))) / 2
        return self.end + (1.0 - self.end) * height
