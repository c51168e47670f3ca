"""Gradient descent with momentum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse.optimizers.blocks import blocks
from onnxsparse.optimizers.optimizer import Optimizer, checked_share
from onnxsparse.values import Array


@dataclass(frozen=True)
class SGD(Optimizer):
    """Gradient descent with momentum; decay is part of the gradient."""

    name: ClassVar[str] = "sgd"
    moments: ClassVar[tuple[str, ...]] = ("velocity",)
    momentum: float = 0.9

    def __post_init__(self) -> None:
        checked_share("momentum", self.momentum)

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
        for w, g, velocity, pull, move in blocks(weight, gradient, moments["velocity"], scratch=2):
            np.multiply(g, np.float32(scale), pull)
            if decay:
                np.add(pull, np.multiply(w, np.float32(decay), move), pull)
            np.multiply(velocity, np.float32(self.momentum), velocity)
            np.add(velocity, pull, velocity)
            direction = self._direction(velocity, pull, move)
            np.subtract(w, np.multiply(direction, np.float32(rate), move), w)

    def _direction(self, velocity: Array, pull: Array, out: Array) -> Array:
        return velocity
