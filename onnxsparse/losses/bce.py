"""The binary cross-entropy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse.errors import OptionError
from onnxsparse.losses.loss import Loss
from onnxsparse.values import Array


@dataclass(frozen=True)
class BCE(Loss):
    """The cross-entropy of yes and no, element by element: outputs are logits, targets lie in 0 to 1."""

    name: ClassVar[str] = "bce"
    target: ClassVar[str] = "numbers"

    def check(self, shape: tuple[int, ...], target: Array) -> None:
        super().check(shape, target)
        if not ((target >= 0) & (target <= 1)).all():
            raise OptionError("bce needs targets from 0 to 1")

    def _value(self, student: Array, target: Array, place: int) -> float:
        rest = np.log1p(np.exp(-np.abs(student)))
        return float(np.mean(np.maximum(student, 0.0) - student * target + rest))

    def _gradient(self, student: Array, target: Array, place: int) -> Array:
        small = np.exp(-np.abs(student))
        sigmoid = np.where(student >= 0, 1.0, small) / (1.0 + small)
        gradient: Array = (sigmoid - target) / student.size
        return gradient
