"""The mean absolute error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse.losses.loss import Loss
from onnxsparse.values import Array


@dataclass(frozen=True)
class L1(Loss):
    """The mean size of the differences."""

    name: ClassVar[str] = "l1"
    target: ClassVar[str] = "numbers"

    def _value(self, student: Array, target: Array, place: int) -> float:
        return float(np.mean(np.abs(student - target)))

    def _gradient(self, student: Array, target: Array, place: int) -> Array:
        signs: Array = np.sign(student - target)
        return signs / student.size
