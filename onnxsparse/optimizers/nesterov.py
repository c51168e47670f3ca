"""Gradient descent with Nesterov's momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse.optimizers.sgd import SGD
from onnxsparse.values import Array


@dataclass(frozen=True)
class Nesterov(SGD):
    """Gradient descent with Nesterov's momentum, which looks one step ahead; decay is part of the gradient."""

    name: ClassVar[str] = "nesterov"

    def _direction(self, velocity: Array, pull: Array, out: Array) -> Array:
        np.multiply(velocity, np.float32(self.momentum), out)
        return np.add(out, pull, out)
