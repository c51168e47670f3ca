"""The clock of epochs: when something that has a start, an end and a frequency is to be done.

1. Before a step the epoch is `step // per_epoch + (step % per_epoch) / per_epoch`: the first step sees 0.
2. It begins at the first step whose epoch is not before its start (-1: before anything), and ends at the first one
   whose epoch is not before its end (-1: never). Both are acted on, whatever the frequency.
3. Between them it acts when the epoch is not before the last time plus the frequency (-1: at every step). The last time
   is that of the step itself: a frequency that is no multiple of a step's length drifts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NEVER = -1.0


def epoch_at(step: int, per_epoch: int) -> float:
    """How many epochs are over before a step."""
    return step // per_epoch + (step % per_epoch) / per_epoch


@dataclass(frozen=True)
class Span:
    """From when to when, and how often, in epochs."""

    start: float = NEVER
    end: float = NEVER
    frequency: float = NEVER

    def progress(self, epoch: float) -> float:
        """How much of the span is over, from 0 to 1; one without length is over at once."""
        if self.end <= self.start:
            return 1.0
        return min(max((epoch - self.start) / (self.end - self.start), 0.0), 1.0)


@dataclass(frozen=True)
class Tick:
    """What a step is to a span: its first, its last, or one between them."""

    begins: bool = False
    ends: bool = False


_BETWEEN = Tick()


class Clock:
    """Where a span is."""

    def __init__(self, span: Span) -> None:
        self.span, self.started, self.ended, self.last = span, False, False, NEVER

    @property
    def active(self) -> bool:
        return self.started and not self.ended

    def tick(self, epoch: float) -> Tick | None:
        """Whether to act before a step; steps are asked for one after the other, each once."""
        if self.ended:
            return None
        span = self.span
        begins = not self.started and (span.start == NEVER or epoch >= span.start >= 0)
        if not (begins or self.started):
            return None
        ends = epoch >= span.end >= 0
        if not (begins or ends or self._again(epoch)):
            return None
        self.started, self.ended, self.last = True, ends, epoch
        return Tick(begins, ends) if begins or ends else _BETWEEN

    def _again(self, epoch: float) -> bool:
        if not epoch > self.span.start:
            return False
        return self.span.frequency == NEVER or (self.last >= 0 and epoch >= self.last + self.span.frequency)

    def state(self) -> list[float]:
        return [float(self.started), float(self.ended), self.last]

    def restore(self, state: Sequence[float]) -> None:
        self.started, self.ended, self.last = bool(state[0]), bool(state[1]), float(state[2])
