"""The distance to the dense model, in units of what its outputs vary by. This is the definition: both engines are held
to it, and take their units from these functions.

    loss = mean over tensors of mean((student - dense)^2 / unit)

1. The unit of a tensor is the variance of all of it: logits of one classifier are of one kind.
2. Columns of a tensor that vary by very different amounts are of different kinds, such as a temperature beside a share:
   each has the unit of its own, or the larger ones would be all that counts. A column that does not vary counts in the
   unit of the tensor.
3. Shares, from 0 to 1 behind a squashing function, are of one kind, however rare some of them are: those among the
   columns of a tensor have one unit, the variance of all of them.
4. Columns lie along the axis of the classes (see `axes`) of a tensor of rank 2 or 3. Where the graph does not say which
   one that is, it is the other one of rank 3 if the variances along that are far more unlike.
5. What hardly varies over the samples but moves with the weights (a probability of 1e-9) would be all that counts: its
   unit is at least a part of what it moves by when all weights are moved a little.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
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
NOISE, LOUDEST = 0.1, 30.0
"""Weights moved by that share of their size move nothing by more than so many of its units, in the square."""
MANY = 10.0
"""Times that a unit has to be the variance to be worth a word."""
IN_VARIANCES = "mean squared distance to the dense model, in variances of each output"
BY_COLUMN = f"{IN_VARIANCES} column"


@dataclass(frozen=True)
class Columns:
    """A scale for each place along an axis, which counts from the end; those of `shares` are one kind."""

    axis: int
    each: tuple[float, ...]
    shares: tuple[int, ...] = ()

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

    def rows(self, values: Array) -> Array:
        """Values with the columns along the last of two axes."""
        return _rows(values, self.axis)


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


def scale_along(samples: Array, rank: int, said: int | None = None, squashed: bool = False) -> Scale:
    """The scale of a tensor of that rank, or of its columns where these are of different kinds.

    `samples` are many of it, along further axes in front; `said` is what the graph says of its columns' axis, and
    `squashed` that it comes from a squashing function.
    """
    whole = scale_of(samples)
    if rank not in (2, 3) or samples.ndim < rank or (squashed and all_shares(samples)):
        return whole
    wide = np.asarray(samples, np.float64)
    known = said is not None and -rank <= said < rank
    axes = [class_axis(rank, said) - rank] if known or rank == 2 else [-1, -2]
    spreads = [_spread(_rows(wide, axis), squashed) for axis in axes]
    best = 1 if len(axes) == 2 and spreads[1] >= WIDELY * spreads[0] else 0
    return _by_columns(_rows(wide, axes[best]), whole, axes[best], squashed) if spreads[best] >= WIDELY else whole


def heard(scale: Scale, steady: Array, moved: Array) -> Scale:
    """A scale that is at least a part of what the tensor moves by: `moved` are its values with weights moved by
    `NOISE`, and `steady` those without."""
    with np.errstate(all="ignore"):
        far = (np.asarray(moved, np.float64) - np.asarray(steady, np.float64)) ** 2
    far = np.where(np.isfinite(far), far, 0.0)
    if not isinstance(scale, Columns):
        return max(scale, float(np.mean(far)) / LOUDEST) if far.size else scale
    least = scale.rows(far).mean(axis=0) / LOUDEST
    shares = list(scale.shares)
    if shares:
        least[shares] = least[shares].mean()
    return replace(scale, each=tuple(float(one) for one in np.maximum(scale.each, least)))


def shaken(array: Array, key: str, noise: float = NOISE) -> Array:
    """A weight that is moved a little: the same noise on every machine, relative to the tensor's size."""
    random = np.random.Generator(np.random.Philox(key=zlib.crc32(key.encode())))
    return np.asarray(array + np.float32(noise * size_of(array)) * random.standard_normal(array.shape, np.float32))


def size_of(array: Array) -> float:
    """The root of the mean square."""
    return float(np.sqrt(np.mean(np.square(array, dtype=np.float64)))) if array.size else 0.0


def said_of(called: str, plain: Scale, scale: Scale) -> list[str]:
    """What is to be known of the unit of a tensor, before and after it was `heard`."""
    notes = [plain.told(called)] if isinstance(plain, Columns) else []
    times = [new / old for new, old in zip(_each(scale), _each(plain))]
    if max(times) > MANY:
        many = f"{sum(one > MANY for one in times)} columns of " if times[1:] else ""
        notes.append(
            f"{many}{called} hardly {'vary' if many else 'varies'} over the samples, next to what moving the weights "
            f"does: in the loss the unit there is up to {max(times):.2g} times the variance"
        )
    return notes


def _each(scale: Scale) -> tuple[float, ...]:
    return scale.each if isinstance(scale, Columns) else (scale,)


def unit_in_words(scales: Iterable[Scale]) -> str:
    """What the loss over tensors of these scales is, and in which unit."""
    return BY_COLUMN if any(isinstance(scale, Columns) for scale in scales) else IN_VARIANCES


def _rows(values: Array, axis: int) -> Array:
    return np.moveaxis(values, axis, -1).reshape(-1, values.shape[axis])


def _variances(rows: Array, squashed: bool) -> tuple[Array, Array, list[int]]:
    """The variance of each column; which of them vary; and those that are shares, which have one variance."""
    variances = rows.var(axis=0)
    squares = np.mean(rows * rows, axis=0)
    shares = np.flatnonzero((rows.min(axis=0) >= 0) & (rows.max(axis=0) <= 1)).tolist() if squashed else []
    if shares:
        variances[shares], squares[shares] = rows[:, shares].var(), np.mean(rows[:, shares] ** 2)
    lively = variances > np.maximum(STILL * squares, STILL_BESIDE * variances.max())
    return variances, lively & (variances > SMALLEST), shares


def _spread(rows: Array, squashed: bool) -> float:
    """How many times the smallest variance of a column that varies goes into the largest; 1 where nothing says it."""
    if len(rows) < ENOUGH or rows.shape[1] < 2:
        return 1.0
    variances, lively, _ = _variances(rows, squashed)
    return float(variances[lively].max() / variances[lively].min()) if lively.any() else 1.0


def _by_columns(rows: Array, whole: float, axis: int, squashed: bool) -> Columns:
    variances, lively, shares = _variances(rows, squashed)
    return Columns(axis, tuple(float(one) for one in np.where(lively, variances, whole)), tuple(shares))


def all_shares(samples: Array) -> bool:
    """Whether all are from 0 to 1, as behind a softmax or sigmoid: those are of one kind, however rare some are."""
    return bool(samples.size and samples.min() >= 0 and samples.max() <= 1)
