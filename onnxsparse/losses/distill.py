"""The distance to the dense model, in units of what its outputs vary by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from onnxsparse.errors import OptionError
from onnxsparse.losses.loss import Loss
from onnxsparse.values import Array

SHARE_OF_SIZE = 1e-4
"""What hardly varies is measured against a little of its mean square instead."""
SMALLEST = 1e-60
"""Below this a scale is as good as 0: the reciprocal of its root would leave float32."""


@dataclass(frozen=True)
class Distill(Loss):
    """The mean square difference to the dense model over the variance of each tensor."""

    name: ClassVar[str] = "distill"
    target: ClassVar[str] = "dense"
    scales: tuple[float, ...] = field(default=(), metadata={"option": False})

    def bind(self, scales: Sequence[float]) -> Distill:
        """The loss of tensors of these scales, one for each; without, they count as 1."""
        return replace(self, scales=tuple(scales))

    def _value(self, student: Array, target: Array, place: int) -> float:
        return float(np.mean((student - target) ** 2) / self._scale(place))

    def _gradient(self, student: Array, target: Array, place: int) -> Array:
        return (student - target) * (2.0 / student.size / self._scale(place))

    def _scale(self, place: int) -> float:
        return self.scales[place] if self.scales else 1.0


def scale_of(samples: Array) -> float:
    """The variance of a tensor of the dense model, over 8 samples or more, and a little of its mean square.

    A tensor of zeros has the scale 1: any difference to it then counts as it is.
    """
    wide = np.asarray(samples, np.float64)
    scale = float(np.var(wide) + SHARE_OF_SIZE * np.mean(wide * wide)) if wide.size else 0.0
    if not np.isfinite(scale):
        raise OptionError("the dense model puts out numbers that are not finite: it cannot be a target")
    return scale if scale > SMALLEST else 1.0
