"""Sparsers with trained thresholds: soft (STR) and hard (FCPTS)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array
from onnxsparse.sparsers.mask_updates import Choice
from onnxsparse.sparsers.sparser import Arrays, Moment, Sparser, chosen, sigmoid


@dataclass(frozen=True)
class Threshold(Sparser):
    """A threshold sigmoid(s) with a trained s for each weight: what lies below it is zero."""

    chooses: ClassVar[bool] = False
    start: float = -5.0

    def __post_init__(self) -> None:
        if not np.isfinite(self.start):
            raise OptionError(f"{self.name} starts at a finite number, not at {self.start}")

    @property
    def text(self) -> str:
        return f"{self.name}:start={self.start}"

    def trained(self, weight: Array) -> dict[str, Array]:
        return {"threshold": np.full(1, self.start, weight.dtype)}

    def feed(self, weight: Array, trained: Arrays, mask: Array, moment: Moment) -> dict[str, Array]:
        return {}

    def keep(self, weight: Array, trained: Arrays, mask: Array, choice: Choice | None = None) -> Array:
        seen = self.effective(weight, trained, {})
        return seen != 0 if choice is None else chosen(choice, seen)

    def bake(self, weight: Array, trained: Arrays, mask: Array) -> Array:
        return super().bake(self.effective(weight, trained, {}), trained, mask)


@dataclass(frozen=True)
class SoftThreshold(Threshold):
    """Weights move towards zero by a trained threshold, sigmoid(s), and stay there; weight decay on s raises it."""

    name: ClassVar[str] = "soft-threshold"

    def effective(self, weight: Array, trained: Arrays, frozen: Arrays) -> Array:
        above = np.maximum(np.abs(weight) - sigmoid(trained["threshold"]), 0)
        signed: Array = np.copysign(above, weight)
        signed += 0  # -0.0 becomes +0.0
        return signed

    def gradient(
        self, weight: Array, trained: Arrays, frozen: Arrays, upstream: Array
    ) -> tuple[Array, dict[str, Array]]:
        threshold = sigmoid(trained["threshold"])
        through = np.where(np.abs(weight) > threshold, upstream, weight.dtype.type(0))
        total = np.sum(through * np.sign(weight), dtype=np.float64).astype(weight.dtype)
        return through, {"threshold": -total * threshold * sigmoid(-trained["threshold"])}


@dataclass(frozen=True)
class HardThreshold(Threshold):
    """Weights below a trained threshold, sigmoid(s), are zero, the others as they are; the step counts as a slope.

    The mask is (sign(x) + 1) / 2 of x = |w| - sigmoid(s); its gradient is taken as 1/2 where x lies within -1 and 1.
    """

    name: ClassVar[str] = "hard-threshold"

    def effective(self, weight: Array, trained: Arrays, frozen: Arrays) -> Array:
        above = np.clip(_above(weight, trained), -1, 1) * weight.dtype.type(0.5)
        return np.where(above + weight.dtype.type(0.5) > 0.5, weight, weight.dtype.type(0))

    def gradient(
        self, weight: Array, trained: Arrays, frozen: Arrays, upstream: Array
    ) -> tuple[Array, dict[str, Array]]:
        through = np.where(self.effective(weight, trained, frozen) != 0, upstream, weight.dtype.type(0))
        slope = np.where(np.abs(_above(weight, trained)) < 1, upstream * weight * weight.dtype.type(0.5), 0)
        total = np.sum(slope, dtype=np.float64).astype(weight.dtype)
        threshold = trained["threshold"]
        moved = -total * sigmoid(threshold) * sigmoid(-threshold)
        return (through + slope * np.sign(weight)).astype(weight.dtype), {"threshold": moved}


def _above(weight: Array, trained: Arrays) -> Array:
    above: Array = np.abs(weight) - sigmoid(trained["threshold"])
    return above
