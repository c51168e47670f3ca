"""The constant schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.schedules.schedule import Schedule


@dataclass(frozen=True)
class Constant(Schedule):
    """The goal holds all the time."""

    name: ClassVar[str] = "constant"

    def share(self, progress: float) -> float:
        return 1.0
