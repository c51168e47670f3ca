"""Sparsity schedules: which share of the way from start to goal is done by when. `parse` makes one of a word.

1. Progress is the share of the time: 0 at the start, 1 at the end; what lies outside counts as the nearer end.
2. A share lies in 0..1 and never falls.
3. At the end it is exactly 1, so the goal is met to the last digit; a ramp is exactly 0 at the start.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, cast

from onnxsparse import plugins
from onnxsparse.errors import OptionError
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


def parse(text: str) -> Schedule:
    """Return the schedule that a text such as `cubic` or `polynomial:power=2` stands for."""
    return cast(Schedule, plugins.parse("schedules", text))


def available() -> list[plugins.Entry]:
    """Describe every schedule."""
    return plugins.available("schedules")


@dataclass(frozen=True)
class Constant(Schedule):
    """The goal holds all the time."""

    name: ClassVar[str] = "constant"

    def share(self, progress: float) -> float:
        return 1.0


@dataclass(frozen=True)
class OneShot(Schedule):
    """One jump to the goal at the start."""

    name: ClassVar[str] = "one-shot"

    def share(self, progress: float) -> float:
        return 1.0


@dataclass(frozen=True)
class Linear(Ramp):
    """The same step every time."""

    name: ClassVar[str] = "linear"

    def _inside(self, progress: float) -> float:
        return progress


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


@dataclass(frozen=True)
class Cubic(Ramp):
    """Fast first, slow at the end: 1 - (1 - p)^3."""

    name: ClassVar[str] = "cubic"

    def _inside(self, progress: float) -> float:
        rest = 1.0 - progress
        return 1.0 - rest * rest * rest


@dataclass(frozen=True)
class InverseCubic(Ramp):
    """Slow first, fast at the end: 1 - (1 - p)^(1/3)."""

    name: ClassVar[str] = "inverse-cubic"

    def _inside(self, progress: float) -> float:
        return float(1.0 - (1.0 - progress) ** (1 / 3))


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


MOST = 1000
CLOSE = 1e-9
"""A stage begins this little early: progress is a quotient of counts, and may be rounded to just below."""


@dataclass(frozen=True)
class Steps(Schedule):
    """Equal stages, each at a share of its own: `steps:4` is `steps:0.25,0.5,0.75,1`; the last stage holds the goal."""

    name: ClassVar[str] = "steps"
    syntax: ClassVar[str] = "steps:COUNT or steps:SHARE,...,1"
    shares: tuple[float, ...] = field(default=(0.25, 0.5, 0.75, 1.0), metadata={"option": False})

    def __post_init__(self) -> None:
        rising = all(earlier <= later for earlier, later in zip(self.shares, self.shares[1:]))
        if not (0 < len(self.shares) <= MOST and self.shares[-1] == 1.0 and self.shares[0] >= 0.0 and rising):
            raise OptionError(
                f"the shares of a schedule in steps rise from 0 or more to exactly 1 (up to {MOST} of them)"
            )

    @classmethod
    def read(cls, text: str) -> Steps | None:
        word, colon, rest = text.partition(":")
        if word != cls.name:
            return None
        if not colon:
            return cls()
        return cls(equal(int(rest)) if re.fullmatch("[0-9]{1,9}", rest) else _numbers(rest))

    @property
    def text(self) -> str:
        return f"{self.name}:{','.join(map(repr, self.shares))}"

    def share(self, progress: float) -> float:
        if progress >= 1.0:
            return 1.0
        if not progress > 0.0:
            return self.shares[0]
        stage = int(progress * len(self.shares) + CLOSE)
        return self.shares[min(stage, len(self.shares) - 1)]


def equal(count: int) -> tuple[float, ...]:
    """The shares of `count` equal steps."""
    if not 1 <= count <= MOST:
        raise OptionError(f"a schedule has 1 to {MOST} steps, not {count}")
    return tuple((stage + 1) / count for stage in range(count))


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise OptionError(f"steps: {text[:60]!r} is neither a number of steps nor shares such as 0.5,0.8,1") from None


@dataclass(frozen=True)
class Stages:
    """`count` stages of `total` steps together."""

    total: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.count <= self.total:
            raise OptionError(f"{self.count} stages need at least {self.count} steps, not {self.total}")

    def begin(self, stage: int) -> int:
        """The first step of a stage; for the one behind the last, the number of all steps."""
        return stage * self.total // self.count

    def length(self, stage: int) -> int:
        return self.begin(stage + 1) - self.begin(stage)

    def at(self, step: int) -> int:
        """The stage of a step; behind the end it is the last one."""
        begins = [self.begin(stage) for stage in range(self.count)]
        return max(0, bisect_right(begins, step) - 1)

    def begins(self, step: int) -> bool:
        return step < self.total and self.begin(self.at(step)) == step

    def ends(self, step: int) -> bool:
        """Whether a step is the last one of its stage."""
        return step < self.total and self.begin(self.at(step) + 1) == step + 1


# The clock of epochs: when something that has a start, an end and a frequency is to be done.
#
# 1. Before a step the epoch is `step // per_epoch + (step % per_epoch) / per_epoch`: the first step sees 0.
# 2. It begins at the first step whose epoch is not before its start (-1: before anything), and ends at the first one
#    whose epoch is not before its end (-1: never). Both are acted on, whatever the frequency.
# 3. Between them it acts when the epoch is not before the last time plus the frequency (-1: at every step). The last
#    time is that of the step itself: a frequency that is no multiple of a step's length drifts.

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
        """Whether it has begun and not ended, for acts of other packages."""
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
