"""What Adam and its kin share: means of the gradient and of its square, and the step made of both.

    mean = beta1 * mean + (1 - beta1) * g        square = beta2 * square + (1 - beta2) * g^2
    direction = mean / (1 - beta1^t) / (sqrt(square / (1 - beta2^t)) + eps)

The corrections are numbers, so they are taken out of the arrays: with c = sqrt(1 - beta2^t) the direction is
c / (1 - beta1^t) * mean / (sqrt(square) + c * eps).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse.errors import OptionError
from onnxsparse.optimizers.optimizer import Optimizer, checked_share
from onnxsparse.values import Array


@dataclass(frozen=True)
class Adaptive(Optimizer):
    """Steps by the mean of the gradient over the root of its mean square."""

    moments: ClassVar[tuple[str, ...]] = ("mean", "square")
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        checked_share("beta1", self.beta1)
        checked_share("beta2", self.beta2)
        if not 0.0 < self.eps < math.inf:
            raise OptionError(f"eps is a number above 0, not {self.eps}")

    def _remember(self, gradient: Array, mean: Array, square: Array, spare: Array, scale: float) -> None:
        """Take a gradient, times `scale`, into the means."""
        np.multiply(mean, np.float32(self.beta1), mean)
        np.add(mean, np.multiply(gradient, np.float32((1 - self.beta1) * scale), spare), mean)
        np.multiply(gradient, np.float32(math.sqrt(1 - self.beta2) * scale), spare)
        np.multiply(spare, spare, spare)
        np.multiply(square, np.float32(self.beta2), square)
        np.add(square, spare, square)

    def _corrections(self, count: int) -> tuple[float, float]:
        """What the direction is multiplied with, and what `eps` is."""
        root = math.sqrt(1 - self.beta2**count)
        return root / (1 - self.beta1**count), root

    def _move(self, weight: Array, mean: Array, square: Array, spare: Array, factor: float, floor: float) -> None:
        """weight -= factor * mean / (sqrt(square) + floor)"""
        np.add(np.sqrt(square, spare), np.float32(floor), spare)
        np.multiply(np.divide(mean, spare, spare), np.float32(factor), spare)
        np.subtract(weight, spare, weight)
