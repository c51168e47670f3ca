"""The cubic schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.schedules.schedule import Ramp


@dataclass(frozen=True)
class Cubic(Ramp):
    """Fast first, slow at the end: 1 - (1 - p)^3."""

    name: ClassVar[str] = "cubic"

    def _inside(self, progress: float) -> float:
        rest = 1.0 - progress
        return 1.0 - rest * rest * rest
