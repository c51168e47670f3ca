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
        return values.magnitude_keys()

    def value(self, values: Values) -> Array:
        return np.abs(values.real())
