"""The magnitude score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse.scores.score import Score
from onnxsparse.values import Array, Values


@dataclass(frozen=True)
class Magnitude(Score):
    """The absolute value: the smallest weights go first."""

    name: ClassVar[str] = "magnitude"
    elementwise: ClassVar[bool] = True

    def rank(self, values: Values) -> Array:
        wide = values.reading.kind in ("float32", "float64")  # these are compared faster as they are than as bits
        return np.abs(values.stored) if wide else values.magnitude_keys()

    def value(self, values: Values) -> Array:
        return np.abs(values.real())
