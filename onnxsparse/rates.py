"""Learning rate schedules: the multiple of the base learning rate at every step. `parse` makes one of a word."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

from onnxsparse import plugins
from onnxsparse.errors import OptionError
from onnxsparse.plugins import Plugin

MOST_CYCLES = 10_000


class Rate(Plugin, ABC):
    """The multiple of the base learning rate."""

    kind: ClassVar[str] = "rates"

    @abstractmethod
    def factor(self, step: int, total: int, per_epoch: int) -> float:
        """The multiple at a step, counted from 0, of `total` steps, of which `per_epoch` make an epoch."""


def place(step: int, total: int, cycles: int = 1) -> float:
    """How much of the run, or of the cycle it is in, is over before a step: 0 to 1, and 1 behind the last step."""
    if step >= total:
        return 1.0
    return max(step, 0) * cycles % total / total


def in_steps(epochs: float, per_epoch: int) -> int:
    """A time in epochs as the nearest number of steps."""
    return math.floor(epochs * per_epoch + 0.5)


def checked_factor(name: str, value: float) -> None:
    if not 0.0 <= value < math.inf:
        raise OptionError(f"{name} is a number from 0 up, not {value}")


def checked_drop(by: float) -> None:
    if not 0.0 < by <= 1.0:
        raise OptionError(f"by, what the rate is multiplied with, lies above 0 and up to 1, not {by}")


def checked_cycles(cycles: int) -> None:
    if not 1 <= cycles <= MOST_CYCLES:
        raise OptionError(f"cycles is a whole number from 1 to {MOST_CYCLES}, not {cycles}")


def parse(text: str) -> Rate:
    """Return the rate that a text such as `cosine` or `step:every=10,factor=0.5` stands for."""
    return cast(Rate, plugins.parse("rates", text))


def available() -> list[plugins.Entry]:
    """Describe every rate."""
    return plugins.available("rates")


@dataclass(frozen=True)
class Constant(Rate):
    """The base rate all the time."""

    name: ClassVar[str] = "constant"

    def factor(self, step: int, total: int, per_epoch: int) -> float:
        return 1.0


@dataclass(frozen=True)
class Linear(Rate):
    """From one multiple to another in a straight line, in one cycle or several."""

    name: ClassVar[str] = "linear"
    start: float = 1.0
    end: float = 0.0
    cycles: int = 1

    def __post_init__(self) -> None:
        checked_factor("start", self.start)
        checked_factor("end", self.end)
        checked_cycles(self.cycles)

    def factor(self, step: int, total: int, per_epoch: int) -> float:
        done = place(step, total, self.cycles)
        return (1.0 - done) * self.start + done * self.end


@dataclass(frozen=True)
class Cosine(Rate):
    """Half a cosine wave from the base rate down to a share of it, in one cycle or several."""

    name: ClassVar[str] = "cosine"
    end: float = 0.0
    cycles: int = 1

    def __post_init__(self) -> None:
        checked_factor("end", self.end)
        checked_cycles(self.cycles)

    def factor(self, step: int, total: int, per_epoch: int) -> float:
        height = (1.0 + math.cos(math.pi * place(step, total, self.cycles))) / 2
        return self.end + (1.0 - self.end) * height


@dataclass(frozen=True)
class Exponential(Rate):
    """Multiplied with `by` after every epoch."""

    name: ClassVar[str] = "exponential"
    by: float = 0.9

    def __post_init__(self) -> None:
        checked_drop(self.by)

    def factor(self, step: int, total: int, per_epoch: int) -> float:
        return float(self.by ** (max(step, 0) // per_epoch))


@dataclass(frozen=True)
class Step(Rate):
    """Multiplied with `by` every so many epochs."""

    name: ClassVar[str] = "step"
    every: float = 10.0
    by: float = 0.1

    def __post_init__(self) -> None:
        checked_drop(self.by)
        if not 0.0 < self.every < math.inf:
            raise OptionError(f"every is a number of epochs above 0, not {self.every}")

    def factor(self, step: int, total: int, per_epoch: int) -> float:
        return float(self.by ** (max(step, 0) // max(in_steps(self.every, per_epoch), 1)))


@dataclass(frozen=True)
class MultiStep(Rate):
    """Multiplied with `by` at each epoch of a list such as `at=30+60+80`."""

    name: ClassVar[str] = "multi-step"
    at: str = "30+60+80"
    by: float = 0.1

    def __post_init__(self) -> None:
        checked_drop(self.by)
        if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?(\+\d{1,9}(\.\d{1,9})?){0,999}", self.at, re.ASCII):
            raise OptionError(f"at is a list of epochs such as 30+60+80, not {self.at[:60]!r}")

    @property
    def epochs(self) -> tuple[float, ...]:
        """When the rate drops."""
        return tuple(float(part) for part in self.at.split("+"))

    def factor(self, step: int, total: int, per_epoch: int) -> float:
        return float(self.by ** sum(step >= in_steps(epoch, per_epoch) for epoch in self.epochs))


# The first steps of a run, at less than the full rate: moments know little yet, and large steps would do harm.
#
# The rate itself starts behind them: its factor is that of the remaining steps.


def warm_up_steps(total: int, share_or_steps: float) -> int:
    """How many steps of a run are warm-up: a share of all below 1, a number of steps from 1 on."""
    if not 0.0 <= share_or_steps < math.inf:
        raise OptionError(f"a warm-up is a share below 1 or a number of steps, not {share_or_steps}")
    steps = share_or_steps * total if share_or_steps < 1.0 else share_or_steps
    return min(math.floor(steps + 0.5), total)


def warm_up(step: int, total: int, share_or_steps: float) -> float:
    """What the rate is multiplied with at a step, from 0: rises in equal parts and is 1 behind the warm-up."""
    steps = warm_up_steps(total, share_or_steps)
    return 1.0 if step >= steps else (step + 1) / (steps + 1)


def factor_at(rate: Rate, step: int, total: int, per_epoch: int, share_or_steps: float = 0.0) -> float:
    """The multiple of the base rate at a step of a run that begins with a warm-up."""
    steps = warm_up_steps(total, share_or_steps)
    behind = rate.factor(max(step - steps, 0), max(total - steps, 1), per_epoch)
    return warm_up(step, total, share_or_steps) * behind


# Learning rates in absolute numbers that begin at an epoch: drops, restarts, and functions between two rates.
#
# 1. What drops does so after whole steps: times in epochs are rounded to steps from the start on.
# 2. Each function goes from a first to a last rate; at the end it is exactly the last.
# 3. `cyclic_linear` falls from the first to the last rate in each cycle; a last cycle that is cut short falls faster.
# 4. A rate is no larger than a float of 32 bits can be, which is what trains.

LARGEST, MANY = 3.4028234663852886e38, 1e15


class Drops(ABC):
    """The multiple of the first rate, by steps since it was set."""

    @abstractmethod
    def rate(self, first: float, steps: int, per_epoch: int) -> float: ...

    @abstractmethod
    def highest(self, first: float, start: float, end: float) -> float:
        """The largest rate between two epochs, by the times as they are written; infinity beyond all numbers."""

    def check(self, start: float, end: float) -> None:  # noqa: B027 - most have nothing to refuse
        """Refuse what cannot happen between two epochs."""


@dataclass(frozen=True)
class EveryFew(Drops):
    """Times `gamma` after every so many epochs."""

    gamma: float
    epochs: float = 1.0

    def rate(self, first: float, steps: int, per_epoch: int) -> float:
        return _times(first, self.gamma, steps // max(1, in_steps(self.epochs, per_epoch)))

    def highest(self, first: float, start: float, end: float) -> float:
        count = (end - max(start, 0.0)) / self.epochs
        return max(first, _power(first, self.gamma, math.ceil(min(count, MANY)) - 1) if count > 0 else first)


@dataclass(frozen=True)
class AtMilestones(Drops):
    """Times `gamma` at each of some epochs, which are counted from `start` on."""

    gamma: float
    milestones: tuple[float, ...]
    start: float = 0.0

    def rate(self, first: float, steps: int, per_epoch: int) -> float:
        passed = sum(steps >= in_steps(epoch - max(self.start, 0.0), per_epoch) for epoch in self.milestones)
        return _times(first, self.gamma, passed)

    def highest(self, first: float, start: float, end: float) -> float:
        return max(first, _power(first, self.gamma, sum(epoch < end for epoch in self.milestones)))

    def check(self, start: float, end: float) -> None:
        for epoch in self.milestones:
            if epoch <= start or (end >= 0 and epoch >= end):
                raise OptionError(f"the milestone {epoch:g} does not lie between the epochs {start:g} and {end:g}")


@dataclass(frozen=True)
class Restarts(Drops):
    """Half a cosine from the first rate to `lowest`, again and again."""

    epochs: float
    lowest: float = 0.0

    def rate(self, first: float, steps: int, per_epoch: int) -> float:
        place = (steps / per_epoch) % self.epochs / self.epochs
        return self.lowest + (first - self.lowest) * (1 + math.cos(math.pi * place)) / 2

    def highest(self, first: float, start: float, end: float) -> float:
        return max(first, self.lowest)


@dataclass(frozen=True)
class Way:
    """From one rate to another between two epochs."""

    first: float
    last: float
    start: float
    end: float
    cycle_epochs: float = 1.0

    def place(self, epoch: float) -> float:
        return min(max((epoch - self.start) / (self.end - self.start), 0.0), 1.0)


def linear(way: Way, epoch: float, _: int) -> float:
    return way.first + way.place(epoch) * (way.last - way.first)


def cosine(way: Way, epoch: float, _: int) -> float:
    return way.last + (way.first - way.last) * (1 + math.cos(math.pi * way.place(epoch))) / 2


def cyclic_linear(way: Way, epoch: float, per_epoch: int) -> float:
    """As in SparseML: the last cycle is as long as what is left, and counts from the start; the end begins another."""
    step, total = (min(epoch, way.end) - way.start) * per_epoch, way.end * per_epoch - way.start * per_epoch
    cycle = way.cycle_epochs * per_epoch
    if step > int(total / cycle) * cycle:
        cycle = total % cycle
    place = step % cycle / (cycle - 1) if cycle > 1 else 0.0
    return way.first - min(place, 1.0) * (way.first - way.last)


FUNCTIONS: dict[str, Callable[[Way, float, int], float]] = {
    "linear": linear,
    "cosine": cosine,
    "cyclic_linear": cyclic_linear,
}


def on_the_way(function: str, way: Way, epoch: float, per_epoch: int) -> float:
    """The rate at an epoch; before the way begins the first, from its end on that of the end."""
    return way.first if epoch <= way.start else FUNCTIONS[function](way, epoch, per_epoch)


def first_step(epoch: float, per_epoch: int) -> int:
    """The first step that is not before an epoch; a product may be rounded to just above."""
    return math.ceil(max(epoch, 0.0) * per_epoch - 1e-9)


def drops(kind: str, options: dict[str, float | Sequence[float]], start: float) -> Drops:
    """The drops of a class by its name and options, as SparseML spells them."""
    if kind == "MultiStepLR":
        found = options["milestones"]
        epochs = (found,) if isinstance(found, (int, float)) else found
        return AtMilestones(_number(options, "gamma", 0.1), tuple(float(one) for one in epochs), start)
    if kind == "CosineAnnealingWarmRestarts":
        return Restarts(_positive(options, "cycle_epochs"), _number(options, "lr_min", 0.0))
    return EveryFew(_number(options, "gamma", 0.1), _positive(options, "step_size", 1.0))


def _times(first: float, gamma: float, count: int) -> float:
    rate = _power(first, gamma, count)
    if rate > LARGEST:
        raise OptionError(f"lr_kwargs: a gamma of {gamma:g} makes the learning rate larger than any number")
    return rate


def _power(first: float, gamma: float, count: int) -> float:
    try:
        return float(first * gamma**count)
    except OverflowError:
        return math.inf


def _number(options: dict[str, float | Sequence[float]], name: str, default: float) -> float:
    value = options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise OptionError(f"{name} is a number, not {value!r:.40}")
    return float(value)


def _positive(options: dict[str, float | Sequence[float]], name: str, default: float = 0.0) -> float:
    value = _number(options, name, default)
    if not value > 0:
        raise OptionError(f"{name} is a number above 0, not {value:g}")
    return value
