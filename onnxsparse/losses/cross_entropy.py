"""The cross-entropy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse.errors import OptionError
from onnxsparse.losses.loss import Loss, log_softmax
from onnxsparse.values import Array

CLASSES = 1
"""The axis of the classes."""


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """Minus the logarithm of the softmax at the right class (axis 1); the label `ignore` counts for nothing."""

    name: ClassVar[str] = "cross-entropy"
    target: ClassVar[str] = "classes"
    ignore: int = -100

    def check(self, shape: tuple[int, ...], target: Array) -> None:
        if len(shape) < 2:
            raise OptionError(f"{self.name} needs logits with a class axis behind the first, not of shape {shape}")
        wanted = shape[:CLASSES] + shape[CLASSES + 1 :]
        if target.shape != wanted or target.dtype.kind not in "iu":
            raise OptionError(
                f"{self.name} of logits {shape} needs whole numbers of shape {wanted} as labels, "
                f"not {target.dtype} of shape {target.shape}"
            )
        wrong = target[(target != self.ignore) & ((target < 0) | (target >= shape[CLASSES]))]
        if wrong.size:
            raise OptionError(f"the label {wrong[0]} is none of the {shape[CLASSES]} classes 0 to {shape[CLASSES] - 1}")

    def _value(self, student: Array, target: Array, place: int) -> float:
        hot, count = self._hot(student, target)
        return float(-(hot * log_softmax(student, CLASSES)).sum() / count)

    def _gradient(self, student: Array, target: Array, place: int) -> Array:
        hot, count = self._hot(student, target)
        softmax = np.exp(log_softmax(student, CLASSES))
        gradient: Array = (softmax * hot.sum(axis=CLASSES, keepdims=True) - hot) / count
        return gradient

    def _hot(self, student: Array, target: Array) -> tuple[Array, int]:
        """Ones at the right classes, none where the label is ignored; and how many there are, at least 1."""
        used = np.expand_dims(target != self.ignore, CLASSES)
        hot = np.zeros_like(student)
        np.put_along_axis(hot, np.where(used, np.expand_dims(target, CLASSES), 0), used.astype(hot.dtype), CLASSES)
        return hot, max(int(np.count_nonzero(used)), 1)
