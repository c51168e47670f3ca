"""Steps relative to the scale of each tensor.

    W -= rate * rms(W) * m / (sqrt(v) + eps * max(sqrt(v)))

1. m and v are the corrected means of the gradient and of its square. The scales of the weights of one network span
   several decades, so no absolute rate fits all; a rate of 0.01 here moves every tensor by about one per cent.
2. The maximum is over the tensor: elements whose gradient is far below it move little, instead of by noise.
3. rms is over the elements that are not 0, so zeros put there by a mask do not shrink it, and is at least `floor`, so
   that a tensor of zeros can leave them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse.errors import OptionError
from onnxsparse.optimizers.adaptive import Adaptive
from onnxsparse.optimizers.blocks import blocks, count_non_zero, sum_of_squares
from onnxsparse.values import Array


@dataclass(frozen=True)
class Relative(Adaptive):
    """Adam's directions, with steps relative to the scale of each tensor; decay as in AdamW."""

    name: ClassVar[str] = "relative"
    beta2: float = 0.99
    eps: float = 1e-3
    floor: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.floor < math.inf:
            raise OptionError(f"floor is a number above 0, not {self.floor}")

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
        mean, square, peak = moments["mean"], moments["square"], 0.0
        for g, m, v, spare in blocks(gradient, mean, square, scratch=1):
            self._remember(g, m, v, spare, scale)
            peak = max(peak, float(v.max()))
        factor = rate * self._scale(weight) * self._corrections(count)[0]
        for w, m, v, spare in blocks(weight, mean, square, scratch=1):
            if decay:
                np.multiply(w, np.float32(1 - rate * decay), w)
            if peak > 0.0:
                self._move(w, m, v, spare, factor, self.eps * math.sqrt(peak))

    def _scale(self, weight: Array) -> float:
        used = count_non_zero(weight)
        return max(math.sqrt(sum_of_squares(weight) / used), self.floor) if used else self.floor
