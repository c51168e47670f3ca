"""What an optimizer is: how one tensor and its moments change by one gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from onnxsparse.errors import OptionError
from onnxsparse.plugins import Plugin
from onnxsparse.values import Array


class Optimizer(Plugin, ABC):
    """A rule that turns gradients into steps. It holds options alone; what it remembers is handed to it."""

    kind: ClassVar[str] = "optimizers"
    moments: ClassVar[tuple[str, ...]] = ()
    """Names of the arrays kept for each tensor, of its size; they start as zeros."""

    @abstractmethod
    def step(
        self,
        weight: Array,
        gradient: Array,
        moments: Mapping[str, Array],
        count: int,
        rate: float,
        decay: float,
        scale: float = 1.0,
    ) -> None:
        """Change weight and moments in place; all arrays are flat, contiguous and float32.

        `count` is the number of this step of the tensor, from 1. `scale` multiplies the gradient, which stays as it is:
        so clipping, and the average over several batches, cost nothing.
        """


def checked_share(name: str, value: float) -> None:
    """Moments are averages that forget: they keep a share from 0 to less than 1."""
    if not 0.0 <= value < 1.0:
        raise OptionError(f"{name} lies between 0 and less than 1, not {value}")
