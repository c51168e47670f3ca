"""Loss functions and their gradients, as definitions in numpy. `parse` makes one of a word.

These are definitions, in float64, to measure with and to hold engines against; engines write the same in their own
operators. With several outputs a loss is the mean over the outputs.
"""

from __future__ import annotations

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Union, cast

import numpy as np

from onnxsparse import plugins
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array
from onnxsparse.plugins import Plugin


class Loss(Plugin, ABC):
    """How far outputs are from their targets."""

    kind: ClassVar[str] = "losses"
    target: ClassVar[str]
    """What the targets are: `classes` (whole numbers), `numbers`, or `dense` (what the dense model puts out)."""

    def value(self, student: Sequence[Array], target: Sequence[Array]) -> float:
        """The loss of outputs, beside their targets."""
        pairs = self._pairs(student, target)
        return sum(self._value(one, other, place) for place, (one, other) in enumerate(pairs)) / len(pairs)

    def gradient(self, student: Sequence[Array], target: Sequence[Array]) -> list[Array]:
        """How the loss changes with every element of the outputs."""
        pairs = self._pairs(student, target)
        return [self._gradient(one, other, place) / len(pairs) for place, (one, other) in enumerate(pairs)]

    def check(self, shape: tuple[int, ...], target: Array) -> None:
        """Targets that do not fit outputs of a shape are an OptionError. No engine sees it: some go on with garbage."""
        if target.shape != shape:
            raise OptionError(
                f"{self.name} compares outputs of shape {shape} with targets of the same, not {target.shape}"
            )

    def _pairs(self, student: Sequence[Array], target: Sequence[Array]) -> list[tuple[Array, Array]]:
        if not student or len(student) != len(target):
            raise OptionError(
                f"{self.name} needs a target for each output: {len(student)} outputs, {len(target)} targets"
            )
        for one, other in zip(student, target):
            self.check(one.shape, other)
        return [(np.asarray(one, np.float64), other) for one, other in zip(student, target)]

    @abstractmethod
    def _value(self, student: Array, target: Array, place: int) -> float:
        """The loss of one output, the one at `place`."""

    @abstractmethod
    def _gradient(self, student: Array, target: Array, place: int) -> Array: ...


def labels_unlike(task: str, output: str, given: Sequence[int], wanted: Sequence[Sequence[int]], more: str = "") -> str:
    """What is said of labels whose shape, that of a sample, is none of the wanted ones."""
    taken = " or ".join(
        dict.fromkeys(str(list(shape)) if len(shape) else "one number for each sample" for shape in wanted)
    )
    had = f"have shape {list(given)}" if len(given) else "are one number"
    return (
        f"a sample's labels {had}, but --loss {task} on '{output}' takes {taken}; "
        f"{more or 'reshape them'}, or name another output with --loss-output"
    )


def log_softmax(logits: Array, axis: int) -> Array:
    """The logarithm of the softmax; the largest logit is taken off first, so that nothing overflows."""
    rest = logits - logits.max(axis=axis, keepdims=True)
    logs: Array = rest - np.log(np.exp(rest).sum(axis=axis, keepdims=True))
    return logs


# Where a tensor's classes, or the columns of a regression, lie: the one rule that losses and metrics go by.
#
# 1. What the user says counts first, then what the graph says (see `onnxsparse.graph.class_axis`).
# 2. Otherwise it is the last axis up to rank 3 (rows of scores; a row for each token), and axis 1 beyond it (images).


def class_axis(rank: int, said: int | None = None) -> int:
    """The axis, counted from 0; 0 where there is no other."""
    if said is not None and -rank <= said < rank:
        return said % rank
    return 1 if rank > 3 else max(rank - 1, 0)


def chosen_axis(what: str, name: str, shape: Sequence[int], wanted: int | None, said: int | None) -> int:
    """The axis of an output, by the user's word or else the graph's; `what` asks for it."""
    if wanted is not None and not -len(shape) <= wanted < len(shape):
        raise OptionError(f"{what} along axis {wanted}: '{name}' has the shape {list(shape)}, and no such axis")
    return class_axis(len(shape), said if wanted is None else wanted)


def parse(text: str) -> Loss:
    """Return the loss that a text such as `cross-entropy` or `kl:temperature=4` stands for."""
    return cast(Loss, plugins.parse("losses", text))


def available() -> list[plugins.Entry]:
    """Describe every loss."""
    return plugins.available("losses")


def mixed(task: float, distillation: float, hardness: float) -> float:
    """Both terms together: `hardness` is the share of the distillation."""
    return (1.0 - hardness) * task + hardness * distillation


@dataclass(frozen=True)
class MSE(Loss):
    """The mean square of the differences."""

    name: ClassVar[str] = "mse"
    target: ClassVar[str] = "numbers"

    def _value(self, student: Array, target: Array, place: int) -> float:
        return float(np.mean((student - target) ** 2))

    def _gradient(self, student: Array, target: Array, place: int) -> Array:
        return (student - target) * (2.0 / student.size)


@dataclass(frozen=True)
class L1(Loss):
    """The mean size of the differences."""

    name: ClassVar[str] = "l1"
    target: ClassVar[str] = "numbers"

    def _value(self, student: Array, target: Array, place: int) -> float:
        return float(np.mean(np.abs(student - target)))

    def _gradient(self, student: Array, target: Array, place: int) -> Array:
        signs: Array = np.sign(student - target)
        return signs / student.size


@dataclass(frozen=True)
class BCE(Loss):
    """The cross-entropy of yes and no, element by element: outputs are logits, targets lie in 0 to 1."""

    name: ClassVar[str] = "bce"
    target: ClassVar[str] = "numbers"

    def check(self, shape: tuple[int, ...], target: Array) -> None:
        super().check(shape, target)
        if not ((target >= 0) & (target <= 1)).all():
            raise OptionError("bce needs targets from 0 to 1")

    def _value(self, student: Array, target: Array, place: int) -> float:
        rest = np.log1p(np.exp(-np.abs(student)))
        return float(np.mean(np.maximum(student, 0.0) - student * target + rest))

    def _gradient(self, student: Array, target: Array, place: int) -> Array:
        small = np.exp(-np.abs(student))
        sigmoid = np.where(student >= 0, 1.0, small) / (1.0 + small)
        gradient: Array = (sigmoid - target) / student.size
        return gradient


CLASSES = 1
"""The axis of the classes, unless only the last one can be."""


def axis_of_labels(shape: Sequence[int | None], labels: Sequence[int | None]) -> int | None:
    """Along which axis of logits of a shape the classes of labels of a shape lie: the second one, or, where the others
    are not those of the labels, the last one; None where neither can be. A size that is not known may be any.
    """
    return next(iter(axes_of_labels(shape, labels)), None)


def axes_of_labels(shape: Sequence[int | None], labels: Sequence[int | None]) -> list[int]:
    """The axes that the classes may lie along, the likelier one first."""
    if len(shape) < 2 or len(labels) != len(shape) - 1:
        return []
    return [axis for axis in dict.fromkeys((CLASSES, len(shape) - 1)) if _fits(shape, axis, labels)]


def _fits(shape: Sequence[int | None], axis: int, labels: Sequence[int | None]) -> bool:
    rest = [size for place, size in enumerate(shape) if place != axis]
    return all(one is None or other is None or one == other for one, other in zip(rest, labels))


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """Minus the logarithm of the softmax at the right class (axis 1); the label `ignore` counts for nothing.

    Where the shape of the labels says so, the classes lie along the last axis. With label smoothing the target is
    `1 - smoothing` for the right class and `smoothing / classes` more for every class, the right one too.
    """

    name: ClassVar[str] = "cross-entropy"
    target: ClassVar[str] = "classes"
    ignore: int = -100
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.smoothing < 1.0:
            raise OptionError(
                "smoothing, the share of a label that goes to all classes, is a number from 0 to below 1, not "
                f"{self.smoothing:g}"
            )

    def check(self, shape: tuple[int, ...], target: Array) -> None:
        if len(shape) < 2:
            raise OptionError(f"{self.name} needs logits with a class axis behind the first, not of shape {shape}")
        axis = axis_of_labels(shape, target.shape)
        if axis is None or target.dtype.kind not in "iu":
            wanted = shape[:CLASSES] + shape[CLASSES + 1 :]
            raise OptionError(
                f"{self.name} of logits {shape} needs whole numbers of shape {wanted} as labels, "
                f"not {target.dtype} of shape {target.shape}"
            )
        wrong = target[(target != self.ignore) & ((target < 0) | (target >= shape[axis]))]
        if wrong.size:
            raise OptionError(f"the label {wrong[0]} is none of the {shape[axis]} classes 0 to {shape[axis] - 1}")

    def _value(self, student: Array, target: Array, place: int) -> float:
        hot, count, axis = self._hot(student, target)
        return float(-(hot * log_softmax(student, axis)).sum() / count)

    def _gradient(self, student: Array, target: Array, place: int) -> Array:
        hot, count, axis = self._hot(student, target)
        softmax = np.exp(log_softmax(student, axis))
        gradient: Array = (softmax * hot.sum(axis=axis, keepdims=True) - hot) / count
        return gradient

    def _hot(self, student: Array, target: Array) -> tuple[Array, int, int]:
        """The target distribution, zeros where the label is ignored; how many count, at least 1; along which axis."""
        axis = axis_of_labels(student.shape, target.shape) or CLASSES
        used = np.expand_dims(target != self.ignore, axis)
        hot = np.zeros_like(student)
        np.put_along_axis(hot, np.where(used, np.expand_dims(target, axis), 0), used.astype(hot.dtype), axis)
        hot = (1.0 - self.smoothing) * hot + used * (self.smoothing / student.shape[axis])
        return hot, max(int(np.count_nonzero(used)), 1), axis


@dataclass(frozen=True)
class KL(Loss):
    """The divergence from the dense model's softmax along `axis`, both softened by `temperature`, times its square.

    Without an axis it is that of the classes (see `class_axis`).
    """

    name: ClassVar[str] = "kl"
    target: ClassVar[str] = "dense"
    temperature: float = 2.0
    axis: int | None = field(default=None, metadata={"default": "that of the classes"})

    def __post_init__(self) -> None:
        if not 0.0 < self.temperature < math.inf:
            raise OptionError(f"a temperature is a number above 0, not {self.temperature}")

    def check(self, shape: tuple[int, ...], target: Array) -> None:
        super().check(shape, target)
        if not shape or (self.axis is not None and not -len(shape) <= self.axis < len(shape)):
            raise OptionError(
                f"kl along axis {-1 if self.axis is None else self.axis}: an output of shape {shape} has no such axis"
            )

    def _value(self, student: Array, target: Array, place: int) -> float:
        ours, theirs = self._logs(student), self._logs(target)
        lanes = student.size // student.shape[class_axis(student.ndim, self.axis)]
        return float((np.exp(theirs) * (theirs - ours)).sum() * self.temperature**2 / lanes)

    def _gradient(self, student: Array, target: Array, place: int) -> Array:
        lanes = student.size // student.shape[class_axis(student.ndim, self.axis)]
        difference = np.exp(self._logs(student)) - np.exp(self._logs(target))
        gradient: Array = difference * (self.temperature / lanes)
        return gradient

    def _logs(self, logits: Array) -> Array:
        return log_softmax(np.asarray(logits, np.float64) / self.temperature, class_axis(logits.ndim, self.axis))


# The distance to the dense model, in units of what its outputs vary by. This is the definition: both engines are held
# to it, and take their units from these functions.
#
#     loss = mean over tensors of mean((student - dense)^2 / unit)
#
# 1. The unit of a tensor is the variance of all of it: logits of one classifier are of one kind. Columns that stand
#    still beside others have no part in it: a class may be ruled out by -1e9.
# 2. Columns of a tensor that vary by very different amounts are of different kinds, such as a temperature beside a
#    share: each has the unit of its own, or the larger ones would be all that counts. A column that does not vary
#    counts in the unit of the tensor.
# 3. Shares, from 0 to 1 behind a squashing function, are of one kind, however rare some of them are: those among the
#    columns of a tensor have one unit, the variance of all of them.
# 4. Columns lie along the axis of the classes (see `class_axis`) of a tensor of rank 2 or 3. Where the graph does not
#    say which one that is, it is the other one of rank 3 if the variances along that are far more unlike.
# 5. What hardly varies over the samples but moves with the weights (a probability of 1e-9) would be all that counts:
#    its unit is at least a part of what it moves by when all weights are moved a little.
# 6. Of outputs that are class scores the divergence of the classes counts beside the distance, where that is asked
#    for: an error is worse where two classes are close. Where a softmax follows in the graph, its shares count anyway.

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
TOGETHER = 0.1
"""Scores of classes move together by less than that share of what independent numbers do. Networks that were trained by
cross-entropy are at 0.005 to 0.27, regressions at 0.5 and more."""
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


DistanceScale = Union[float, Columns]


@dataclass(frozen=True)
class Scores:
    """The scale of class scores, before a softmax: beside the distance in it counts their divergence (`KL` at
    temperature 1) along the last axis."""

    distance: DistanceScale


Scale = Union[DistanceScale, Scores]


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
        scale = self._scale(place)
        found = in_units((student - target) ** 2, distance_scale(scale))
        return found + DIVERGENCE.value([student], [target]) if isinstance(scale, Scores) else found

    def _gradient(self, student: Array, target: Array, place: int) -> Array:
        scale = self._scale(place)
        found: Array = (student - target) * (2.0 / student.size / _divisor(distance_scale(scale)))
        return found + DIVERGENCE.gradient([student], [target])[0] if isinstance(scale, Scores) else found

    def _scale(self, place: int) -> Scale:
        return self.scales[place] if self.scales else 1.0


DIVERGENCE = KL(temperature=1.0, axis=-1)


def in_units(squares: Array, scale: DistanceScale) -> float:
    """The mean of squares in units of a scale."""
    if isinstance(scale, Columns):
        return float(np.mean(squares / scale.array))
    return float(np.mean(squares) / scale)


def _divisor(scale: DistanceScale) -> Array | float:
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


def scale_along(samples: Array, rank: int, said: int | None = None, squashed: bool = False) -> DistanceScale:
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
    rows = _rows(wide, axes[best])
    if spreads[best] >= WIDELY:
        return _by_columns(rows, whole, axes[best], squashed)
    lively = _variances(rows, squashed)[1] if len(rows) >= ENOUGH else np.ones(1, bool)
    return whole if lively.all() or not lively.any() else scale_of(rows[:, lively])


def heard(scale: DistanceScale, steady: Array, moved: Array) -> DistanceScale:
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


def said_of(called: str, plain: DistanceScale, scale: DistanceScale) -> list[str]:
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


def _each(scale: DistanceScale) -> tuple[float, ...]:
    return scale.each if isinstance(scale, Columns) else (scale,)


def distance_scale(scale: Scale) -> DistanceScale:
    """The scale of the distance, whatever counts beside it."""
    return scale.distance if isinstance(scale, Scores) else scale


def unit_in_words(scales: Iterable[Scale]) -> str:
    """What the loss over tensors of these scales is, and in which unit."""
    known = list(scales)
    found = BY_COLUMN if any(isinstance(distance_scale(scale), Columns) for scale in known) else IN_VARIANCES
    return (
        f"{found}, and the divergence of the classes, in nats"
        if any(isinstance(one, Scores) for one in known)
        else found
    )


def scored(scale: DistanceScale, samples: Array, rank: int) -> Scale:
    """The scale of an output: `Scores` where all of it has one unit and looks like the scores of classes."""
    return Scores(scale) if isinstance(scale, float) and are_scores(samples, rank) else scale


def are_scores(samples: Array, rank: int) -> bool:
    """Whether a tensor of that rank looks like the scores of classes, before a softmax, for many samples.

    1. One class is likely for most samples, and not always the same one.
    2. The mean of a sample's scores hardly varies: a softmax does not see it, so training leaves it where it was.
       That of other numbers varies by as much as their variance over how many there are.
    """
    if rank != 2 or samples.shape[-1] < 2 or all_shares(samples):
        return False
    rows = np.asarray(samples, np.float64).reshape(-1, samples.shape[-1])
    if len(rows) < ENOUGH or not np.isfinite(rows).all() or len(np.unique(rows.argmax(axis=1))) < 2:
        return False
    together = rows.mean(axis=1).var() * rows.shape[1]
    likely = np.exp(log_softmax(rows, 1)).max(axis=1).mean()
    return bool(together < TOGETHER * rows.var(axis=0).mean() and likely > (1 + 1 / rows.shape[1]) / 2)


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
