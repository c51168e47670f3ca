"""Regression metrics: mean errors, explained variance, and the distance to the dense model.

1. An output that is named is taken. Otherwise it is the first float output of the labels' shape.
2. Axes of length 1 do not count: [N, 1] are as many numbers as [N].
3. Columns lie along the axis of the classes (see `onnxsparse.losses`); a single number for each sample is one.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse.data.field import LABELS
from onnxsparse.errors import OptionError
from onnxsparse.losses import class_axis
from onnxsparse.math.values import Array
from onnxsparse.metrics.classes import named_output
from onnxsparse.metrics.metric import DENSE, Arrays, Meter, Metric


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


@dataclass(frozen=True)
class MSE(OfNumbers):
    """The mean square of the differences from labels that are numbers."""

    name: ClassVar[str] = "mse"

    def meter(self) -> Meter:
        return _Squares(self)


class _Squares(MeanOver):
    def of(self, differences: Array) -> Array:
        return differences * differences


@dataclass(frozen=True)
class MAE(OfNumbers):
    """The mean size of the differences from labels that are numbers."""

    name: ClassVar[str] = "mae"

    def meter(self) -> Meter:
        return _Sizes(self)


class _Sizes(MeanOver):
    def of(self, differences: Array) -> Array:
        return np.abs(differences)


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


@dataclass(frozen=True)
class Distance(Metric):
    """The distance of each float output from the dense model's, relative to its size; the largest of them first."""

    name: ClassVar[str] = "distance"
    needs: ClassVar[tuple[str, ...]] = (DENSE,)
    output: str = ""

    @property
    def text(self) -> str:
        return self.name + (f":output={self.output}" if self.output else "")

    def meter(self) -> Meter:
        return _Far(self.output)


class _Far(Meter):
    def __init__(self, output: str) -> None:
        self._output = output
        self._sums: dict[str, tuple[float, float]] = {}

    def add(self, outputs: Arrays, dense: Arrays, batch: Arrays) -> None:
        for name, array in self._floats(outputs).items():
            other = named_output(dense, name)
            if other.shape != array.shape:
                raise OptionError(
                    f"output '{name}' has shape {list(array.shape)}, in the dense model {list(other.shape)}"
                )
            far, size = self._sums.get(name, (0.0, 0.0))
            self._sums[name] = (far + _squares(array, other), size + _squares(other))

    def _floats(self, outputs: Arrays) -> Arrays:
        if self._output:
            return {self._output: named_output(outputs, self._output)}
        return {name: array for name, array in outputs.items() if array.dtype.kind == "f"}

    def result(self) -> dict[str, float]:
        """`distance` is the largest; where there are several outputs, each has its own as well."""
        each = {name: _relative(*sums) for name, sums in self._sums.items()}
        if not each:
            return {}
        largest = float(np.max(list(each.values())))  # of which NaN is one, unlike for `max`
        return {"distance": largest, **({f"distance:{n}": far for n, far in each.items()} if len(each) > 1 else {})}


def _squares(array: Array, less: Array | None = None) -> float:
    with np.errstate(all="ignore"):  # a model that overflows is far away, not an error
        wide = array.astype(np.float64)
        wide -= 0 if less is None else less
        return float(np.sum(wide * wide))


def _relative(far: float, size: float) -> float:
    return (far / size) ** 0.5 if size else float("nan") if far != far else float(far > 0)
