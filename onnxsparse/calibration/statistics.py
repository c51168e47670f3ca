"""Statistics of values: what is kept of all samples, additive, so that batches, processes and resumed runs agree.

`add` takes one batch; `merge` takes what another process found; `state` is what a checkpoint holds.

    Range, ChannelRange, Histogram    the same state, bit for bit, whatever the order and the split of the batches
    Moments, Gram, LayerMoments       sums in float64: the same but for the last bits of a sum
    BatchRanges                       in the order of the batches: what is merged comes behind

Numbers that are not finite are left out of ranges and histograms: attention masks hold minus infinity. Where sums had
some they are not finite either.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onnxsparse.math.values import Array


class Additive(ABC):
    """What is known of some values, batch after batch."""

    @abstractmethod
    def merge(self, other: Any) -> None:
        """Take what was found elsewhere, as if its batches had come here."""

    @abstractmethod
    def state(self) -> dict[str, Array]:
        """All that is known, as arrays."""

    @abstractmethod
    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on from a state."""


class Statistics(Additive):
    """What is known of one value."""

    @abstractmethod
    def add(self, batch: Array) -> None:
        """Take one batch of it."""


class Range(Statistics):
    """The least and the greatest number."""

    def __init__(self) -> None:
        self.low, self.high, self.count = np.inf, -np.inf, 0

    def add(self, batch: Array) -> None:
        low, high, count = _extremes(batch)
        self.low, self.high, self.count = min(self.low, low), max(self.high, high), self.count + count

    def merge(self, other: Statistics) -> None:
        assert isinstance(other, Range)
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.count += other.count

    def state(self) -> dict[str, Array]:
        return {"range": np.array([self.low, self.high]), "count": np.array(self.count)}

    def restore(self, state: Mapping[str, Array]) -> None:
        self.low, self.high = (float(one) for one in state["range"])
        self.count = int(state["count"])


def _extremes(batch: Array) -> tuple[float, float, int]:
    """The least and the greatest finite number, and how many there are."""
    if not batch.size:
        return np.inf, -np.inf, 0
    low, high = float(batch.min()), float(batch.max())
    if np.isfinite(low) and np.isfinite(high):
        return low, high, batch.size
    return _extremes(batch[np.isfinite(batch)])


class BatchRanges(Statistics):
    """The range of every batch, in their order: what moving averages are made of."""

    def __init__(self) -> None:
        self.ranges: list[tuple[float, float]] = []

    @property
    def count(self) -> int:
        return len(self.ranges)

    def add(self, batch: Array) -> None:
        low, high, count = _extremes(batch)
        if count:
            self.ranges.append((low, high))

    def merge(self, other: Statistics) -> None:
        assert isinstance(other, BatchRanges)
        self.ranges += other.ranges

    def state(self) -> dict[str, Array]:
        return {"ranges": np.array(self.ranges, np.float64).reshape(-1, 2)}

    def restore(self, state: Mapping[str, Array]) -> None:
        self.ranges = [(float(low), float(high)) for low, high in state["ranges"]]


class ChannelRange(Statistics):
    """The least and the greatest number of every channel."""

    def __init__(self, axis: int = 1) -> None:
        self.axis = axis
        self.low: Array = np.array(np.inf)
        self.high: Array = np.array(-np.inf)

    def add(self, batch: Array) -> None:
        others = _other_axes(batch, self.axis)
        finite = np.isfinite(batch)
        self.low = np.minimum(self.low, batch.min(axis=others, initial=np.inf, where=finite))
        self.high = np.maximum(self.high, batch.max(axis=others, initial=-np.inf, where=finite))

    @property
    def largest(self) -> Array:
        """The greatest magnitude of every channel."""
        return np.maximum(np.maximum(-self.low, self.high), 0.0)

    def merge(self, other: Statistics) -> None:
        assert isinstance(other, ChannelRange)
        self.low, self.high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)

    def state(self) -> dict[str, Array]:
        return {"low": self.low, "high": self.high}

    def restore(self, state: Mapping[str, Array]) -> None:
        self.low, self.high = state["low"], state["high"]


def _other_axes(batch: Array, axis: int) -> tuple[int, ...]:
    return tuple(one for one in range(batch.ndim) if one != axis % batch.ndim)


class Moments(Statistics):
    """The mean and the variance of every channel."""

    def __init__(self, axis: int = 1) -> None:
        self.axis, self.count = axis, 0
        self.total: Array = np.array(0.0)
        self.squares: Array = np.array(0.0)

    def add(self, batch: Array) -> None:
        others = _other_axes(batch, self.axis)
        with np.errstate(over="ignore", invalid="ignore"):
            self.total = self.total + batch.sum(axis=others, dtype=np.float64)
            self.squares = self.squares + np.square(batch, dtype=np.float64).sum(axis=others)
        self.count += batch.size // max(batch.shape[self.axis], 1)

    @property
    def mean(self) -> Array:
        mean: Array = self.total / max(self.count, 1)
        return mean

    @property
    def variance(self) -> Array:
        return np.maximum(self.squares / max(self.count, 1) - np.square(self.mean), 0.0)

    def merge(self, other: Statistics) -> None:
        assert isinstance(other, Moments)
        self.total, self.squares = self.total + other.total, self.squares + other.squares
        self.count += other.count

    def state(self) -> dict[str, Array]:
        return {"total": self.total, "squares": self.squares, "count": np.array(self.count)}

    def restore(self, state: Mapping[str, Array]) -> None:
        self.total, self.squares, self.count = state["total"], state["squares"], int(state["count"])


class Histogram(Statistics):
    """How often numbers fall into bins of one width, a power of two, which doubles when a number lies outside.

    Bin i holds i * width <= x < (i + 1) * width. Two neighbours are one bin of the double width, exactly, so the counts
    follow from the numbers alone and not from the order in which they came.
    """

    SIDE = 4096
    """Bins below and above zero; the larger side of the range fills at least half of its own."""
    FINEST = -161
    """The exponent of the narrowest bins: float32 has no smaller numbers to tell apart."""

    def __init__(self) -> None:
        self.range, self.exponent = Range(), self.FINEST
        self.counts = np.zeros(2 * self.SIDE, np.int64)

    @property
    def count(self) -> int:
        return self.range.count

    @property
    def width(self) -> float:
        return float(np.ldexp(1.0, self.exponent))

    @property
    def centres(self) -> Array:
        """The middles of the bins; those at the ends of the range do not lie outside of it."""
        middles = (np.arange(-self.SIDE, self.SIDE) + 0.5) * self.width
        clipped: Array = np.clip(middles, self.range.low, self.range.high)
        return clipped

    def add(self, batch: Array) -> None:
        self.range.add(batch)
        if self.range.count:
            self._widen(self._needed())
            flat = batch.reshape(-1)
            self.counts += np.bincount(self._bins(flat), minlength=2 * self.SIDE)

    def _needed(self) -> int:
        """The exponent of the least width that covers the range."""
        largest = max(-self.range.low, self.range.high, 0.0)
        return max(int(np.frexp(largest)[1]) - (self.SIDE.bit_length() - 1), self.FINEST) if largest else self.FINEST

    def _bins(self, flat: Array) -> Array:
        # float32 is exact as long as it does not shrink numbers into the subnormal ones
        exact = flat.dtype.itemsize <= 4 and -100 < self.exponent <= 0
        kind = np.dtype(np.float32 if exact else np.float64)
        with np.errstate(invalid="ignore"):
            steps = np.floor(flat.astype(kind, copy=False) * np.array(1 / self.width, kind))
        finite = np.isfinite(steps)
        steps = steps if finite.all() else steps[finite]
        bins: Array = steps.astype(np.intp) + self.SIDE
        return bins

    def _widen(self, exponent: int) -> None:
        """Let so many neighbours be one bin."""
        times = exponent - self.exponent
        if times <= 0:
            return
        filled = np.flatnonzero(self.counts)
        bins = ((filled - self.SIDE) >> min(times, 62)) + self.SIDE
        counts = np.zeros_like(self.counts)
        np.add.at(counts, bins, self.counts[filled])
        self.counts, self.exponent = counts, exponent

    def merge(self, other: Statistics) -> None:
        assert isinstance(other, Histogram)
        wider = Histogram()
        wider.restore(other.state())
        wider._widen(self.exponent)
        self._widen(wider.exponent)
        self.range.merge(wider.range)
        self.counts = self.counts + wider.counts

    def state(self) -> dict[str, Array]:
        return {**self.range.state(), "exponent": np.array(self.exponent), "counts": self.counts.copy()}

    def restore(self, state: Mapping[str, Array]) -> None:
        self.range.restore(state)
        self.exponent, self.counts = int(state["exponent"]), state["counts"].copy()


class Gram(Additive):
    """The products of a layer's inputs with each other, X^T X, for each block of its matrix: with them the square of an
    error that a change of its weight makes in its outputs is known.
    """

    MOST = 128
    """Positions of each sample, evenly spread: neighbours in an image say nearly the same."""

    def __init__(self) -> None:
        self.count = 0
        self.products: Array = np.array(0.0)

    def add(self, rows: Sequence[Array]) -> None:
        """Take the rows of each block."""
        with np.errstate(over="ignore", invalid="ignore"):
            self.products = self.products + np.stack([_product(block, block) for block in rows])
        self.count += len(rows[0])

    def merge(self, other: Additive) -> None:
        assert isinstance(other, Gram)
        self.products, self.count = self.products + other.products, self.count + other.count

    def state(self) -> dict[str, Array]:
        return {"products": self.products, "count": np.array(self.count)}

    def restore(self, state: Mapping[str, Array]) -> None:
        self.products, self.count = state["products"], int(state["count"])


class LayerMoments(Additive):
    """What least squares has to know of one block of a layer: its inputs x, and the outputs y that are wanted of it.

    Rows with numbers that are not finite are left out, and counted. Rows may come times the root of what they count,
    with the 1 that a bias is multiplied with.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        self.count = self.left_out = 0
        self.weight = 0.0
        self.gram, self.cross = np.zeros((inputs, inputs)), np.zeros((inputs, outputs))
        self.sum_x, self.sum_y, self.square_y = np.zeros(inputs), np.zeros(outputs), np.zeros(outputs)

    def add(self, rows: Array, targets: Array, ones: Array | None = None) -> None:
        """Take inputs (positions, K) and what is to come of them (positions, outputs)."""
        if not (_all_finite(rows) and _all_finite(targets)):
            finite = np.flatnonzero(np.isfinite(rows).all(axis=1) & np.isfinite(targets).all(axis=1))
            self.left_out += len(rows) - len(finite)
            rows, targets = rows[finite], targets[finite]
            ones = None if ones is None else ones[finite]
        with np.errstate(over="ignore", invalid="ignore"):
            self.gram += _product(rows, rows)
            self.cross += _product(rows, targets)
        self.square_y += np.square(targets, dtype=np.float64).sum(axis=0)
        if ones is None:
            self.sum_x += rows.sum(axis=0, dtype=np.float64)
            self.sum_y += targets.sum(axis=0, dtype=np.float64)
            self.count += len(rows)
            self.weight += len(rows)
        else:
            self.sum_x += np.einsum("p,pk->k", ones, rows, dtype=np.float64)
            self.sum_y += np.einsum("p,po->o", ones, targets, dtype=np.float64)
            self.count += int(np.count_nonzero(ones))
            self.weight += float(np.square(ones, dtype=np.float64).sum())

    def merge(self, other: Additive) -> None:
        assert isinstance(other, LayerMoments)
        for name in self.__dict__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def state(self) -> dict[str, Array]:
        return {name: np.array(value) for name, value in self.__dict__.items()}

    def restore(self, state: Mapping[str, Array]) -> None:
        self.count, self.left_out = int(state["count"]), int(state["left_out"])
        self.weight = float(state["weight"])
        self.gram, self.cross = state["gram"].copy(), state["cross"].copy()
        self.sum_x, self.sum_y = state["sum_x"].copy(), state["sum_y"].copy()
        self.square_y = state["square_y"].copy()


def _all_finite(numbers: Array) -> bool:
    """Whether all are: a sum of them says it at once, unless it is too large."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(numbers.sum()) or np.isfinite(numbers).all())


def _product(left: Array, right: Array) -> Array:
    """left^T right in float64; sums of float32 stay short. What overflows is infinite."""
    found = np.zeros((left.shape[1], right.shape[1]))
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(left), 4096):
            found += left[start : start + 4096].T @ right[start : start + 4096]
    return found
