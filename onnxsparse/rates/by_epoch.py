"""Learning rates in absolute numbers that begin at an epoch: drops, restarts, and functions between two rates.

1. What drops does so after whole steps: times in epochs are rounded to steps from the start on.
2. Each function goes from a first to a last rate; at the end it is exactly the last.
3. `cyclic_linear` falls from the first to the last rate in each cycle; a last cycle that is cut short falls faster.
4. A rate is no larger than a float of 32 bits can be, which is what trains.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onnxsparse.errors import OptionError
from onnxsparse.rates.rate import in_steps

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
    first = first_step(way.start, per_epoch)
    step, total = in_steps(epoch, per_epoch) - first, first_step(way.end, per_epoch) - first
    cycle = max(1, in_steps(way.cycle_epochs, per_epoch))
    begun = step // cycle * cycle
    length = min(cycle, total - begun)
    return way.first - (step - begun) / max(1, length - 1) * (way.first - way.last)


FUNCTIONS: dict[str, Callable[[Way, float, int], float]] = {
    "linear": linear,
    "cosine": cosine,
    "cyclic_linear": cyclic_linear,
}


def on_the_way(function: str, way: Way, epoch: float, per_epoch: int) -> float:
    """The rate at an epoch; before the way begins the first, from its end on the last."""
    if epoch >= way.end:
        return way.last
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
