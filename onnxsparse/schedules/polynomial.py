"""The polynomial schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.errors import OptionError
from onnxsparse.schedules.schedule import Ramp

LARGEST = 100.0


@dataclass(frozen=True)
class Polynomial(Ramp):
    """1 - (1 - p)^power: the larger the power, the earlier most of it is done."""

    name: ClassVar[str] = "polynomial"
    power: float = 3.0

    def __post_init__(self) -> None:
        if not 0.0 < self.power <= LARGEST:
            raise OptionError(
                f"the power of a polynomial schedule lies above 0 and up to {LARGEST:g}, not {self.power}"
            )

    def _inside(self, progress: float) -> float:
        return float(1.0 - (1.0 - progress) ** self.power)
