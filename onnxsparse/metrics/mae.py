"""The mean absolute error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse.metrics.metric import Meter
from onnxsparse.metrics.regression import MeanOver, OfNumbers
from onnxsparse.values import Array


@dataclass(frozen=True)
class MAE(OfNumbers):
    """The mean size of the differences from labels that are numbers."""

    name: ClassVar[str] = "mae"
    higher_is_better: ClassVar[bool] = False

    def meter(self) -> Meter:
        return _Sizes(self)


class _Sizes(MeanOver):
    def of(self, differences: Array) -> Array:
        return np.abs(differences)
