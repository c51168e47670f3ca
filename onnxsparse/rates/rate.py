"""What a rate is: the multiple of the base learning rate at every step of a run."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

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
