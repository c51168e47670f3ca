"""The mean square error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.metrics.metric import Meter
from onnxsparse.metrics.regression import MeanOver, OfNumbers
from onnxsparse.values import Array


@dataclass(frozen=True)
class MSE(OfNumbers):
    """The mean square of the differences from labels that are numbers."""

    name: ClassVar[str] = "mse"
    higher_is_better: ClassVar[bool] = False

    def meter(self) -> Meter:
        return _Squares(self)


class _Squares(MeanOver):
    def of(self, differences: Array) -> Array:
        return differences * differences
