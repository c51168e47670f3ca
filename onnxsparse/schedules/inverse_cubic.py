"""The inverse cubic schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.schedules.schedule import Ramp


@dataclass(frozen=True)
class InverseCubic(Ramp):
    """Slow first, fast at the end: 1 - (1 - p)^(1/3)."""

    name: ClassVar[str] = "inverse-cubic"

    def _inside(self, progress: float) -> float:
        return float(1.0 - (1.0 - progress) ** (1 / 3))
