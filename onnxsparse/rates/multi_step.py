"""The rate that drops at some epochs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.errors import OptionError
from onnxsparse.rates.rate import Rate, checked_drop, in_steps


@dataclass(frozen=True)
class MultiStep(Rate):
    """Multiplied with `by` at each epoch of a list such as `at=30+60+80`."""

    name: ClassVar[str] = "multi-step"
    at: str = "30+60+80"
    by: float = 0.1

    def __post_init__(self) -> None:
        checked_drop(self.by)
        if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?(\+\d{1,9}(\.\d{1,9})?){0,999}", self.at, re.ASCII):
            raise OptionError(f"at is a list of epochs such as 30+60+80, not {self.at[:60]!r}")

    @property
    def epochs(self) -> tuple[float, ...]:
        """When the rate drops."""
        return tuple(float(part) for part in self.at.split("+"))

    def factor(self, step: int, total: int, per_epoch: int) -> float:
        return float(self.by ** sum(step >= in_steps(epoch, per_epoch) for epoch in self.epochs))
