"""The constant rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.rates.rate import Rate


@dataclass(frozen=True)
class Constant(Rate):
    """The base rate all the time."""

    name: ClassVar[str] = "constant"

    def factor(self, step: int, total: int, per_epoch: int) -> float:
        return 1.0
