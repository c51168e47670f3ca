"""The coefficient of determination."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse.data.field import LABELS
from onnxsparse.metrics.metric import Arrays, Meter
from onnxsparse.metrics.regression import OfNumbers, beside
from onnxsparse.values import Array


@dataclass(frozen=True)
class R2(OfNumbers):
    """The share of the labels' variance that the output explains: the mean over its columns, as far as these vary."""

    name: ClassVar[str] = "r2"

    def meter(self) -> Meter:
        return _Explained(self)


class _Explained(Meter):
    """Sums of every column; labels are counted from the mean of the first batch, so that nothing cancels out."""

    def __init__(self, metric: OfNumbers) -> None:
        self._metric, self._count = metric, 0
        self._origin: Array | float = 0.0
        self._missed: Array | float = 0.0
        self._sum: Array | float = 0.0
        self._squares: Array | float = 0.0

    def add(self, outputs: Arrays, dense: Arrays, batch: Arrays) -> None:
        found, wanted = beside(outputs, self._metric.output, batch[LABELS])
        if not self._count and len(wanted):
            self._origin = wanted.mean(axis=0)
        with np.errstate(all="ignore"):  # a model that overflows is far away, not an error
            self._missed = self._missed + ((found - wanted) ** 2).sum(axis=0)
        moved = wanted - self._origin
        self._sum, self._squares = self._sum + moved.sum(axis=0), self._squares + (moved * moved).sum(axis=0)
        self._count += len(wanted)

    def result(self) -> dict[str, float]:
        if not self._count:
            return {}
        spread = np.asarray(self._squares - self._sum * self._sum / self._count)
        vary = spread > 0
        if not vary.any():
            return {}
        return {self._metric.name: float(np.mean(1 - np.asarray(self._missed)[vary] / spread[vary]))}
