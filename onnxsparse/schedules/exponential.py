"""The exponential schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.errors import OptionError
from onnxsparse.schedules.schedule import Ramp

LARGEST = 100.0


@dataclass(frozen=True)
class Exponential(Ramp):
    """The rest shrinks by the same factor every time: 1 - exp(-rate p), stretched to end at 1; slow first below 0."""

    name: ClassVar[str] = "exponential"
    rate: float = 5.0

    def __post_init__(self) -> None:
        if not 0.0 < abs(self.rate) <= LARGEST:
            raise OptionError(
                f"the rate of an exponential schedule lies between -{LARGEST:g} and {LARGEST:g} and is not 0, "
                f"not {self.rate}"
            )

    def _inside(self, progress: float) -> float:
        return math.expm1(-self.rate * progress) / math.expm1(-self.rate)
