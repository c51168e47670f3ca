"""Adam."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse.optimizers.adaptive import Adaptive
from onnxsparse.optimizers.blocks import blocks
from onnxsparse.values import Array


@dataclass(frozen=True)
class Adam(Adaptive):
    """Steps of about one size for every element, whatever its gradient's; decay is part of the gradient."""

    name: ClassVar[str] = "adam"

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
        for w, g, mean, square, spare, pull in blocks(weight, gradient, moments["mean"], moments["square"], scratch=2):
            np.multiply(g, np.float32(scale), pull)
            if decay:
                np.add(pull, np.multiply(w, np.float32(decay), spare), pull)
            self._remember(pull, mean, square, spare, 1.0)
            self._move(w, mean, square, spare, rate * factor, root * self.eps)
