"""Outputs that are numbers, beside the numbers that they should be.

1. An output that is named is taken. Otherwise it is the first float output of the labels' shape.
2. Axes of length 1 do not count: [N, 1] are as many numbers as [N].
3. Columns lie along the axis of the classes (see `onnxsparse.losses.axes`); a single number for each sample is one.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse.data.field import LABELS
from onnxsparse.errors import OptionError
from onnxsparse.losses.axes import class_axis
from onnxsparse.metrics.classes import named_output
from onnxsparse.metrics.metric import Arrays, Meter, Metric
from onnxsparse.values import Array


@dataclass(frozen=True)
class OfNumbers(Metric):
    """What has labels that are numbers, and perhaps an output of its own."""

    needs: ClassVar[tuple[str, ...]] = (LABELS,)
    output: str = ""

    @property
    def text(self) -> str:
        return self.name + (f":output={self.output}" if self.output else "")

    @abstractmethod
    def meter(self) -> Meter: ...


class MeanOver(Meter):
    """The mean of something over all numbers."""

    def __init__(self, metric: OfNumbers) -> None:
        self._metric, self._sum, self._count = metric, 0.0, 0

    def add(self, outputs: Arrays, dense: Arrays, batch: Arrays) -> None:
        found, wanted = beside(outputs, self._metric.output, batch[LABELS])
        with np.errstate(all="ignore"):  # a model that overflows is far away, not an error
            self._sum += float(self.of(found - wanted).sum())
        self._count += wanted.size

    @abstractmethod
    def of(self, differences: Array) -> Array:
        """What is averaged."""

    def result(self) -> dict[str, float]:
        return {self._metric.name: self._sum / self._count} if self._count else {}


def beside(outputs: Arrays, name: str, labels: Array) -> tuple[Array, Array]:
    """Rows of columns of an output, and of what they should be, in float64."""
    found = _fitting({name: named_output(outputs, name)} if name else outputs, labels)
    if found is None:
        shapes = ", ".join(f"'{key}' {list(one.shape)}" for key, one in outputs.items())
        raise OptionError(f"no output has a number for each label: labels {list(labels.shape)}, outputs {shapes}")
    shape = max(found.shape, labels.shape, key=len)
    return _rows(found.reshape(shape)), _rows(labels.reshape(shape))


def fits(outputs: Arrays, labels: Array) -> bool:
    """Whether an output has a number for each label."""
    return _fitting(outputs, labels) is not None


def _fitting(outputs: Arrays, labels: Array) -> Array | None:
    floats = (one for one in outputs.values() if one.dtype.kind == "f")
    return next((one for one in floats if _narrow(one.shape) == _narrow(labels.shape)), None)


def _narrow(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape[:1] + tuple(size for size in shape[1:] if size != 1)


def _rows(array: Array) -> Array:
    wide = np.asarray(array, np.float64)
    if wide.ndim < 2:
        return wide.reshape(-1, 1)
    axis = class_axis(wide.ndim)
    return np.moveaxis(wide, axis, -1).reshape(-1, wide.shape[axis])
