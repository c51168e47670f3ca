"""The squared score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse.scores.score import Score
from onnxsparse.values import Array, Values


@dataclass(frozen=True)
class Squared(Score):
    """The square: whole filters and blocks go by their 2-norm, single elements as by magnitude."""

    name: ClassVar[str] = "squared"
    elementwise: ClassVar[bool] = True

    def rank(self, values: Values) -> Array:
        return values.magnitude_keys()

    def value(self, values: Values) -> Array:
        return np.square(values.real(), dtype=np.float64)
