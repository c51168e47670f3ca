"""Importance scores: how important every element of a weight is. `parse` makes one of a word."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar, cast

import numpy as np

from onnxsparse import plugins
from onnxsparse.errors import OptionError, nearest
from onnxsparse.math.values import BLOCK, Array, Values, halved, stored_order
from onnxsparse.plugins import Plugin


class Score(Plugin, ABC):
    """The importance of every element; the least important go first."""

    kind: ClassVar[str] = "scores"
    needs: ClassVar[tuple[str, ...]] = ()
    elementwise: ClassVar[bool] = False
    """True when the importance of an element depends on its value alone: pieces can then be ranked alone."""
    patterns_supported: ClassVar[tuple[str, ...]] = ()
    """Names of the patterns it says something about; empty means all."""

    @property
    def text(self) -> str:
        """The canonical text: `parse(score.text)` gives the same score."""
        return self.name

    def supports(self, pattern: str) -> bool:
        """Whether the units of a pattern, by its name, can be told apart by this score."""
        return not self.patterns_supported or pattern in self.patterns_supported

    def bind(self, tensor: str) -> Score:
        """The score of one named tensor."""
        return self

    def rank(self, values: Values) -> Array:
        """Numbers >= 0 that order the elements of one weight: the cheapest that do."""
        return self.value(values)

    @abstractmethod
    def value(self, values: Values) -> Array:
        """Importance as float32 or float64 >= 0, in the order of `rank`: can be summed and compared between weights."""


def parse(text: str) -> Score:
    """Return the score that a text such as `magnitude` or `random:seed=3` stands for."""
    return cast(Score, plugins.parse("scores", text))


def available() -> list[plugins.Entry]:
    """Describe every score."""
    return plugins.available("scores")


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


@dataclass(frozen=True)
class Squared(Score):
    """The square: whole filters and blocks go by their 2-norm, single elements as by magnitude."""

    name: ClassVar[str] = "squared"
    elementwise: ClassVar[bool] = True

    def rank(self, values: Values) -> Array:
        return values.magnitude_keys()

    def value(self, values: Values) -> Array:
        return np.square(values.real(), dtype=np.float64)


@dataclass(frozen=True)
class Random(Score):
    """A random order that depends on the seed and the tensor's name alone; existing zeros still go first."""

    name: ClassVar[str] = "random"
    seed: int = 0
    tensor: str = field(default="", metadata={"option": False})

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 1 << 64:
            raise OptionError(f"a seed is a whole number from 0 to 2**64 - 1, not {self.seed}")

    @property
    def text(self) -> str:
        return f"{self.name}:seed={self.seed}"

    def bind(self, tensor: str) -> Random:
        return replace(self, tensor=tensor)

    def rank(self, values: Values) -> Array:
        keys = np.empty_like(values.stored, dtype=np.uint32)
        in_order = stored_order(keys)
        in_order[...] = self._numbers(keys.size).reshape(in_order.shape)
        keys[values.is_zero()] = 0
        return keys

    def value(self, values: Values) -> Array:
        return self.rank(values) / np.float64(1 << 32)

    def _numbers(self, count: int) -> Array:
        name = np.frombuffer(hashlib.sha256(self.tensor.encode()).digest()[:16], dtype="<u8")
        counter = [0, 0, int(name[0]), int(name[1])]
        raw = np.random.Philox(key=self.seed, counter=np.array(counter, np.uint64)).random_raw(count)
        # Never 0, which is left to the existing zeros.
        return (raw >> np.uint64(32)).astype(np.uint32) | np.uint32(1)


# Scores that weigh by what comes in. They compare a weight with others of its output, so that the scale of an output,
# which a folded normalization changes, decides nothing.


@dataclass(frozen=True)
class InputScore(Score):
    """A score that needs to know how large the input of every weight is."""

    needs: ClassVar[tuple[str, ...]] = ("samples",)
    inputs: Array | None = field(default=None, compare=False, metadata={"option": False})

    def of_inputs(self, norms: Array) -> InputScore:
        """The score of one weight; the root mean square of the input of each element."""
        return replace(self, inputs=norms)

    def value(self, values: Values) -> Array:
        demand_samples(self, self.inputs is not None)
        assert self.inputs is not None
        return self.weighed(np.abs(np.asarray(values.real(), np.float64)), self.inputs)

    @abstractmethod
    def weighed(self, magnitudes: Array, norms: Array) -> Array:
        """The importance, of absolute values and the size of their inputs."""


def demand_samples(score: Score, given: bool = False) -> None:
    """Refuse a score that knows nothing without samples."""
    if score.needs and not given:
        raise OptionError(f"score {score.name} weighs by what comes into a layer: give samples with --data")


@dataclass(frozen=True)
class Wanda(InputScore):
    """The absolute value times the norm of its input, over that of its whole output."""

    name: ClassVar[str] = "wanda"

    def weighed(self, magnitudes: Array, norms: Array) -> Array:
        return _shares(magnitudes * norms, 2)


@dataclass(frozen=True)
class Ria(InputScore):
    """The share of its output plus its share of its input, times a power of the norm of its input."""

    name: ClassVar[str] = "ria"
    power: float = 0.5

    def weighed(self, magnitudes: Array, norms: Array) -> Array:
        of_output = _shares(magnitudes, 1)
        total = of_output.sum(axis=1, keepdims=True)
        of_input = np.divide(of_output, total, out=np.zeros_like(of_output), where=total > 0)
        found: Array = (of_output + of_input) * norms**self.power
        return found


def _shares(numbers: Array, power: int) -> Array:
    """Numbers over the norm of their output."""
    total = np.sum(numbers**power, axis=(2, 3), keepdims=True) ** (1 / power)
    found: Array = np.divide(numbers, total, out=np.zeros_like(numbers), where=total > 0)
    return found


@dataclass(frozen=True)
class Obs(Score):
    """What the outputs of a layer lose without a weight when all others are refitted; the default with samples."""

    name: ClassVar[str] = "obs"
    needs: ClassVar[tuple[str, ...]] = ("samples",)

    def value(self, values: Values) -> Array:
        demand_samples(self)
        raise NotImplementedError("solvers find it")


def rows_of(values: Values) -> Array:
    """(outputs of all groups, inputs and taps)"""
    group, out, inputs, taps = values.shape
    rows: Array = np.asarray(values.real(), np.float64).reshape(group * out, inputs * taps)
    return rows


def spread(values: Values, rows: Array, importance: Array) -> Array:
    """The importance of each row for all its elements; rows that are zero already have none."""
    group, out, _, _ = values.shape
    alive = np.where(rows.any(axis=1), importance, 0.0)
    return np.broadcast_to(alive.reshape(group, out, 1, 1), values.shape)


DISTANCES = ("l1", "l2", "cosine")
BITS, DEPTH = 20, 1 << 12
"""Products of whole numbers of so many bits, so many of them added up, are exact in double precision."""


@dataclass(frozen=True)
class Fpgm(Score):
    """Mean distance (l1, l2, cosine) of an output to all others: the most redundant go first. For whole outputs."""

    name: ClassVar[str] = "fpgm"
    patterns_supported: ClassVar[tuple[str, ...]] = ("filter",)
    distance: str = "l2"

    def __post_init__(self) -> None:
        if self.distance not in DISTANCES:
            hint = nearest(self.distance, DISTANCES)
            raise OptionError(f"a distance of fpgm is {', '.join(DISTANCES)}, not {self.distance[:40]!r}{hint}")

    @property
    def text(self) -> str:
        return f"{self.name}:distance={self.distance}"

    def value(self, values: Values) -> Array:
        rows = rows_of(values)
        total = _sums_of_l1(rows) if self.distance == "l1" else halved(_distances(rows, self.distance), 1)
        return spread(values, rows, total / max(len(rows) - 1, 1))


def _sums_of_l1(rows: Array) -> Array:
    """The sum of |a - b| over all other rows b, for each row a: without a square of all rows times their length."""
    count, step = len(rows), max(1, BLOCK // max(1, rows.shape[1]))
    pairs = np.zeros((count, count))
    for first in range(count):
        for start in range(first + 1, count, step):
            others = rows[start : start + step]
            pairs[first, start : start + step] = halved(np.abs(others - rows[first]), 1)
    return halved(pairs + pairs.T, 1)


def _distances(rows: Array, kind: str) -> Array:
    """All distances, of products that are the same on every machine."""
    products = _products(rows)
    squares = np.diagonal(products)
    if kind == "l2":
        found = np.sqrt(np.maximum(squares[:, None] + squares[None, :] - 2 * products, 0))
    else:
        lengths = np.sqrt(squares)
        both = np.outer(lengths, lengths)
        found = 1 - np.divide(products, both, out=np.zeros_like(products), where=both > 0)
    np.fill_diagonal(found, 0)
    return np.asarray(found)


def _products(rows: Array) -> Array:
    """rows @ rows.T in whole numbers: two parts of 20 bits each, so that no order of summing decides anything."""
    largest = np.abs(rows).max(initial=0)
    scale = 2.0 ** (BITS - np.frexp(largest)[1]) if largest else 1.0
    high = np.rint(rows * scale)
    low = np.rint((rows * scale - high) * 2.0**BITS)
    total = np.zeros((len(rows), len(rows)))
    for start in range(0, rows.shape[1], DEPTH):
        large, small = high[:, start : start + DEPTH], low[:, start : start + DEPTH]
        cross = large @ small.T
        total += large @ large.T + (cross + cross.T) * 2.0**-BITS
    return np.asarray(total / scale**2)


# The nuclear score: how much of the sum of all singular values an output is worth.
#
# With the singular values s and the left singular vectors u of the weight as a matrix (a row for each output), removing
# row i takes from their sum
#
#     1 / pi * integral over t > 0 of -log(1 - sum_k s_k^2 u_ik^2 / (s_k^2 + t^2))
#
# because the determinant of M - a a^T + t^2 is that of M + t^2 times 1 - a^T (M + t^2)^-1 a. So one decomposition
# serves all rows. In log(t) the trapezoid rule is exact to the last digits from four points a unit on.

STEP, REACH = 0.25, 40.0
SMALLEST = 1e-300
DIGITS = 2.0**36
"""Parts of the whole sum in which a score is said: what a library rounds otherwise decides nothing."""


@dataclass(frozen=True)
class Nuclear(Score):
    """How much the nuclear norm drops without an output: those that add least go first. For whole outputs."""

    name: ClassVar[str] = "nuclear"
    patterns_supported: ClassVar[tuple[str, ...]] = ("filter",)

    def value(self, values: Values) -> Array:
        rows = rows_of(values)
        return spread(values, rows, drops(rows))


def drops(rows: Array) -> Array:
    """By how much the sum of the singular values drops without each row."""
    if rows.size == 0 or not rows.any():
        return np.zeros(len(rows))
    left, singular, _ = np.linalg.svd(rows, full_matrices=False)
    shares = np.square(left)
    outside = np.maximum(1 - shares.sum(axis=1), 0)
    times = np.exp(np.arange(-REACH, REACH + STEP, STEP)) * singular[0]
    whole = np.square(times) + np.square(singular)[:, None]
    taken = shares @ (np.square(singular)[:, None] / whole)
    remaining = outside[:, None] + shares @ (np.square(times) / whole)
    logs = np.where(taken < 0.5, np.log1p(-np.minimum(taken, 0.5)), np.log(np.maximum(remaining, SMALLEST)))
    found = -logs @ times * (STEP / np.pi)
    unit = singular.sum() / DIGITS
    rounded: Array = np.rint(found / unit) * unit
    return rounded
