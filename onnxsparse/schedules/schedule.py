"""What a schedule is: how much of the way from a start to a goal is done by when.

1. Progress is the share of the time: 0 at the start, 1 at the end; what lies outside counts as the nearer end.
2. A share lies in 0..1 and never falls.
3. At the end it is exactly 1, so the goal is met to the last digit; a ramp is exactly 0 at the start.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from onnxsparse.plugins import Plugin


class Schedule(Plugin, ABC):
    """The way from start to goal."""

    kind: ClassVar[str] = "schedules"

    @abstractmethod
    def share(self, progress: float) -> float:
        """The share of the way, 0 to 1, that is done at a share of the time."""

    def level(self, start: float, goal: float, progress: float) -> float:
        """What stands at a share of the time between two levels; exactly `goal` at the end."""
        share = self.share(progress)
        return goal if share == 1.0 else start + share * (goal - start)


class Ramp(Schedule):
    """A schedule that rises from 0: it has to say what lies strictly between the ends."""

    def share(self, progress: float) -> float:
        if not progress > 0.0:
            return 0.0
        return 1.0 if progress >= 1.0 else min(max(self._inside(progress), 0.0), 1.0)

    @abstractmethod
    def _inside(self, progress: float) -> float: ...
