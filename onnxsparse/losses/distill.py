"""The distance to the dense model, in units of what its outputs vary by.

1. The unit of a tensor is the variance of all of it: logits of one classifier are of one kind.
2. Columns of a tensor that vary by very different amounts are of different kinds, such as a temperature beside a share:
   each has the unit of its own, or the larger ones would be all that counts. A column that does not vary counts in the
   unit of the tensor.
3. Columns lie along the axis of the classes (see `axes`) of a tensor of rank 2 or 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Union

import numpy as np

from onnxsparse.errors import OptionError
from onnxsparse.losses.axes import class_axis
from onnxsparse.losses.loss import Loss
from onnxsparse.values import Array

SHARE_OF_SIZE = 1e-4
"""What hardly varies is measured against a little of its mean square instead."""
SMALLEST = 1e-60
"""Below this a scale is as good as 0: the reciprocal of its root would leave float32."""
WIDELY = 50.0
"""From that ratio of the largest and the smallest variance on columns are of different kinds."""
STILL, STILL_BESIDE = 1e-6, 1e-12
"""A variance of less than so much of its own mean square, or of the largest variance, is none."""
ENOUGH = 32
"""Rows, below which the variance of a column says little."""


@dataclass(frozen=True)
class Columns:
    """A scale for each place along an axis, which counts from the end."""

    axis: int
    each: tuple[float, ...]

    @property
    def array(self) -> Array:
        """As it is divided by."""
        return np.array(self.each).reshape(-1, *[1] * (-self.axis - 1))

    @property
    def ratio(self) -> float:
        """How many times the smallest goes into the largest."""
        return max(self.each) / min(self.each)

    def told(self, called: str) -> str:
        """What is said of a tensor with such columns."""
        return (
            f"the columns of {called} vary by unlike amounts (one variance is {self.ratio:.2g} times another): each "
            "counts in its own unit"
        )

    def grown(self, factor: float) -> Columns:
        return Columns(self.axis, tuple(scale * factor for scale in self.each))


Scale = Union[float, Columns]


@dataclass(frozen=True)
class Distill(Loss):
    """The mean square difference to the dense model over the variance of each tensor, or of each of its columns."""

    name: ClassVar[str] = "distill"
    target: ClassVar[str] = "dense"
    scales: tuple[Scale, ...] = field(default=(), metadata={"option": False})

    def bind(self, scales: Sequence[Scale]) -> Distill:
        """The loss of tensors of these scales, one for each; without, they count as 1."""
        return replace(self, scales=tuple(scales))

    def _value(self, student: Array, target: Array, place: int) -> float:
        return in_units((student - target) ** 2, self._scale(place))

    def _gradient(self, student: Array, target: Array, place: int) -> Array:
        scale = self._scale(place)
        gradient: Array = (student - target) * (2.0 / student.size / _divisor(scale))
        return gradient

    def _scale(self, place: int) -> Scale:
        return self.scales[place] if self.scales else 1.0


def in_units(squares: Array, scale: Scale) -> float:
    """The mean of squares in units of a scale."""
    if isinstance(scale, Columns):
        return float(np.mean(squares / scale.array))
    return float(np.mean(squares) / scale)


def _divisor(scale: Scale) -> Array | float:
    return scale.array if isinstance(scale, Columns) else scale


def scale_of(samples: Array) -> float:
    """The variance of a tensor of the dense model, over 8 samples or more, and a little of its mean square.

    A tensor of zeros has the scale 1: any difference to it then counts as it is.
    """
    wide = np.asarray(samples, np.float64)
    scale = float(np.var(wide) + SHARE_OF_SIZE * np.mean(wide * wide)) if wide.size else 0.0
    if not np.isfinite(scale):
        raise OptionError("the dense model puts out numbers that are not finite: it cannot be a target")
    return scale if scale > SMALLEST else 1.0


def scale_along(samples: Array, rank: int, said: int | None = None) -> Scale:
    """The scale of a tensor of that rank, or of its columns where these are of different kinds.

    `samples` are many of it, along further axes in front; `said` is what the graph says of its columns' axis.
    """
    whole = scale_of(samples)
    if rank not in (2, 3):
        return whole
    axis = class_axis(rank, said) - rank
    rows = np.moveaxis(np.asarray(samples, np.float64), axis, -1).reshape(-1, samples.shape[axis])
    return _by_columns(rows, whole, axis) if len(rows) >= ENOUGH and rows.shape[1] > 1 else whole


def _by_columns(rows: Array, whole: float, axis: int) -> Scale:
    variances = rows.var(axis=0)
    lively = variances > np.maximum(STILL * np.mean(rows * rows, axis=0), STILL_BESIDE * variances.max())
    lively &= variances > SMALLEST
    if not lively.any() or variances[lively].max() < WIDELY * variances[lively].min():
        return whole
    return Columns(axis, tuple(float(one) for one in np.where(lively, variances, whole)))


def all_shares(samples: Array) -> bool:
    """Whether all are from 0 to 1, as behind a softmax or sigmoid: those are of one kind, however rare some are."""
    return bool(samples.size and samples.min() >= 0 and samples.max() <= 1)
