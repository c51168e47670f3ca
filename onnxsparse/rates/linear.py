"""The linear rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.rates.rate import Rate, checked_cycles, checked_factor, place


@dataclass(frozen=True)
class Linear(Rate):
    """From one multiple to another in a straight line, in one cycle or several."""

    name: ClassVar[str] = "linear"
    start: float = 1.0
    end: float = 0.0
    cycles: int = 1

    def __post_init__(self) -> None:
        checked_factor("start", self.start)
        checked_factor("end", self.end)
        checked_cycles(self.cycles)

    def factor(self, step: int, total: int, per_epoch: int) -> float:
        done = place(step, total, self.cycles)
        return (1.0 - done) * self.start + done * self.end
