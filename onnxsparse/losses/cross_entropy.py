"""The cross-entropy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse.errors import OptionError
from onnxsparse.losses.loss import Loss, log_softmax
from onnxsparse.values import Array

CLASSES = 1
"""The axis of the classes, unless only the last one can be."""


def class_axis(shape: Sequence[int | None], labels: Sequence[int | None]) -> int | None:
    """Along which axis of logits of a shape the classes of labels of a shape lie: the second one, or, where the others
    are not those of the labels, the last one; None where neither can be. A size that is not known may be any.
    """
    return next(iter(class_axes(shape, labels)), None)


def class_axes(shape: Sequence[int | None], labels: Sequence[int | None]) -> list[int]:
    """The axes that the classes may lie along, the likelier one first."""
    if len(shape) < 2 or len(labels) != len(shape) - 1:
        return []
    return [axis for axis in dict.fromkeys((CLASSES, len(shape) - 1)) if _fits(shape, axis, labels)]


def _fits(shape: Sequence[int | None], axis: int, labels: Sequence[int | None]) -> bool:
    rest = [size for place, size in enumerate(shape) if place != axis]
    return all(one is None or other is None or one == other for one, other in zip(rest, labels))


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """Minus the logarithm of the softmax at the right class (axis 1); the label `ignore` counts for nothing.

    Where the shape of the labels says so, the classes lie along the last axis.
    """

    name: ClassVar[str] = "cross-entropy"
    target: ClassVar[str] = "classes"
    ignore: int = -100

    def check(self, shape: tuple[int, ...], target: Array) -> None:
        if len(shape) < 2:
            raise OptionError(f"{self.name} needs logits with a class axis behind the first, not of shape {shape}")
        axis = class_axis(shape, target.shape)
        if axis is None or target.dtype.kind not in "iu":
            wanted = shape[:CLASSES] + shape[CLASSES + 1 :]
            raise OptionError(
                f"{self.name} of logits {shape} needs whole numbers of shape {wanted} as labels, "
                f"not {target.dtype} of shape {target.shape}"
            )
        wrong = target[(target != self.ignore) & ((target < 0) | (target >= shape[axis]))]
        if wrong.size:
            raise OptionError(f"the label {wrong[0]} is none of the {shape[axis]} classes 0 to {shape[axis] - 1}")

    def _value(self, student: Array, target: Array, place: int) -> float:
        hot, count, axis = self._hot(student, target)
        return float(-(hot * log_softmax(student, axis)).sum() / count)

    def _gradient(self, student: Array, target: Array, place: int) -> Array:
        hot, count, axis = self._hot(student, target)
        softmax = np.exp(log_softmax(student, axis))
        gradient: Array = (softmax * hot.sum(axis=axis, keepdims=True) - hot) / count
        return gradient

    def _hot(self, student: Array, target: Array) -> tuple[Array, int, int]:
        """Ones at the right classes, none where the label is ignored; how many, at least 1; and along which axis."""
        axis = class_axis(student.shape, target.shape) or CLASSES
        used = np.expand_dims(target != self.ignore, axis)
        hot = np.zeros_like(student)
        np.put_along_axis(hot, np.where(used, np.expand_dims(target, axis), 0), used.astype(hot.dtype), axis)
        return hot, max(int(np.count_nonzero(used)), 1), axis
