"""The mean square error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse.losses.loss import Loss
from onnxsparse.values import Array


@dataclass(frozen=True)
class MSE(Loss):
    """The mean square of the differences."""

    name: ClassVar[str] = "mse"
    target: ClassVar[str] = "numbers"

    def _value(self, student: Array, target: Array, place: int) -> float:
        return float(np.mean((student - target) ** 2))

    def _gradient(self, student: Array, target: Array, place: int) -> Array:
        return (student - target) * (2.0 / student.size)
