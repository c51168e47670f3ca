"""The linear schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.schedules.schedule import Ramp


@dataclass(frozen=True)
class Linear(Ramp):
    """The same step every time."""

    name: ClassVar[str] = "linear"

    def _inside(self, progress: float) -> float:
        return progress
