"""AdamW."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse.optimizers.adaptive import Adaptive
from onnxsparse.optimizers.blocks import blocks
from onnxsparse.values import Array


@dataclass(frozen=True)
class AdamW(Adaptive):
    """Adam with decay of its own, which the gradient's size does not change."""

    name: ClassVar[str] = "adamw"

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
        factor, root = self._corrections(count)
        for w, g, mean, square, spare in blocks(weight, gradient, moments["mean"], moments["square"], scratch=1):
            self._remember(g, mean, square, spare, scale)
            if decay:
                np.multiply(w, np.float32(1 - rate * decay), w)
            self._move(w, mean, square, spare, rate * factor, root * self.eps)
