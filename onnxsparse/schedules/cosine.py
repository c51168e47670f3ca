"""The cosine schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.schedules.schedule import Ramp


@dataclass(frozen=True)
class Cosine(Ramp):
    """Slow at both ends: half a cosine wave, (1 - cos(pi p)) / 2."""

    name: ClassVar[str] = "cosine"

    def _inside(self, progress: float) -> float:
        # By the sine of the half angle from the nearer end: the difference to 1 would cancel there.
        return _rise(progress) if progress <= 0.5 else 1.0 - _rise(1.0 - progress)


def _rise(progress: float) -> float:
    sine = math.sin(math.pi / 2 * progress)
    return sine * sine
