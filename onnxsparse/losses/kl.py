"""The Kullback-Leibler divergence from the dense model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from onnxsparse.errors import OptionError
from onnxsparse.losses.axes import class_axis
from onnxsparse.losses.loss import Loss, log_softmax
from onnxsparse.values import Array


@dataclass(frozen=True)
class KL(Loss):
    """The divergence from the dense model's softmax along `axis`, both softened by `temperature`, times its square.

    Without an axis it is that of the classes (see `axes`).
    """

    name: ClassVar[str] = "kl"
    target: ClassVar[str] = "dense"
    temperature: float = 2.0
    axis: int | None = field(default=None, metadata={"default": "that of the classes"})

    def __post_init__(self) -> None:
        if not 0.0 < self.temperature < math.inf:
            raise OptionError(f"a temperature is a number above 0, not {self.temperature}")

    def check(self, shape: tuple[int, ...], target: Array) -> None:
        super().check(shape, target)
        if not shape or (self.axis is not None and not -len(shape) <= self.axis < len(shape)):
            raise OptionError(
                f"kl along axis {-1 if self.axis is None else self.axis}: an output of shape {shape} has no such axis"
            )

    def _value(self, student: Array, target: Array, place: int) -> float:
        ours, theirs = self._logs(student), self._logs(target)
        lanes = student.size // student.shape[class_axis(student.ndim, self.axis)]
        return float((np.exp(theirs) * (theirs - ours)).sum() * self.temperature**2 / lanes)

    def _gradient(self, student: Array, target: Array, place: int) -> Array:
        lanes = student.size // student.shape[class_axis(student.ndim, self.axis)]
        difference = np.exp(self._logs(student)) - np.exp(self._logs(target))
        gradient: Array = difference * (self.temperature / lanes)
        return gradient

    def _logs(self, logits: Array) -> Array:
        return log_softmax(np.asarray(logits, np.float64) / self.temperature, class_axis(logits.ndim, self.axis))
