"""The one-shot schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.schedules.schedule import Schedule


@dataclass(frozen=True)
class OneShot(Schedule):
    """One jump to the goal at the start."""

    name: ClassVar[str] = "one-shot"

    def share(self, progress: float) -> float:
        return 1.0
