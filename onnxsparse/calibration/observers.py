"""Observers: which range of a value is quantized, from statistics of it. `parse` makes one of a word.

    minmax             all of it
    moving-average     the ranges of the batches, averaged
    percentile         all but a share of the numbers
    entropy            the range whose integers are distributed most like the numbers (as in TensorRT)
    mse                the range with the least mean square of the rounding error

All need one pass over the samples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
from onnx import ModelProto

from onnxsparse import plugins
from onnxsparse.calibration.collecting import collect
from onnxsparse.calibration.statistics import BatchRanges, Histogram, Range, Statistics
from onnxsparse.errors import ModelError, OptionError
from onnxsparse.math.quantization import Grid, QParams, from_range
from onnxsparse.math.values import Array
from onnxsparse.planning.quantization import Quantization
from onnxsparse.plugins import Plugin


class Observer(Plugin, ABC):
    """Which range of a value is quantized."""

    kind: ClassVar[str] = "observers"

    @abstractmethod
    def statistics(self) -> Statistics:
        """What it has to know of a value, of no samples yet."""

    @abstractmethod
    def range(self, seen: Statistics, grid: Grid) -> tuple[float, float]:
        """The least and the greatest number that keep their place on a grid; what lies outside is clipped."""


def parse(text: str) -> Observer:
    """Return the observer that a text such as `minmax` or `percentile:99.9` stands for."""
    return cast(Observer, plugins.parse("observers", text))


def available() -> list[plugins.Entry]:
    """Describe every observer."""
    return plugins.available("observers")


def observed(
    proto: ModelProto, quantization: Quantization, feeds: Iterable[Mapping[str, Array]], observer: str = "minmax"
) -> dict[str, QParams]:
    """Scale and zero point of every quantized value of a float graph, from samples; values that share them are observed
    together."""
    chosen = parse(observer)
    own = {value.name: value.like or value.name for value in quantization.values}
    seen = collect(proto, own, feeds, lambda _: chosen.statistics())
    together: dict[str, Statistics] = {}
    for name, statistics in seen.items():
        first = together.setdefault(_root(own, name), statistics)
        if first is not statistics:
            first.merge(statistics)
    grids = {value.name: value.grid for value in quantization.values}
    found = {name: _params(chosen, name, statistics, grids[name]) for name, statistics in together.items()}
    return {name: found[_root(own, name)] for name in own}


def _root(own: Mapping[str, str], name: str) -> str:
    """The value at the end of a chain of values that are like each other."""
    while own.get(name, name) != name:
        name = own[name]
    return name


def _params(observer: Observer, name: str, statistics: Statistics, grid: Grid) -> QParams:
    if not getattr(statistics, "count", 1):
        raise ModelError(f"value '{name}' has no finite number on these samples, so it has no range to quantize")
    low, high = observer.range(statistics, grid)
    # a value that is always zero: the bias of the layer behind it has steps of its scale
    return from_range(low, high, grid) if low or high else from_range(0.0, 1.0, grid)


# -- our own


@dataclass(frozen=True)
class MinMax(Observer):
    """The least and the greatest number."""

    name: ClassVar[str] = "minmax"

    def statistics(self) -> Statistics:
        return Range()

    def range(self, seen: Statistics, grid: Grid) -> tuple[float, float]:
        assert isinstance(seen, Range)
        return seen.low, seen.high


@dataclass(frozen=True)
class MovingAverage(Observer):
    """The ranges of the batches, averaged in their order: each moves the average by `constant` of the difference."""

    name: ClassVar[str] = "moving-average"
    constant: float = 0.1

    def __post_init__(self) -> None:
        if not 0.0 < self.constant <= 1.0:
            raise OptionError(f"constant, the weight of a new batch, lies above 0 and up to 1, not {self.constant}")

    def statistics(self) -> Statistics:
        return BatchRanges()

    def range(self, seen: Statistics, grid: Grid) -> tuple[float, float]:
        assert isinstance(seen, BatchRanges)
        low, high = seen.ranges[0]
        for bottom, top in seen.ranges[1:]:
            low, high = low + self.constant * (bottom - low), high + self.constant * (top - high)
        return low, high


@dataclass(frozen=True)
class Percentile(Observer):
    """All but a share of the numbers: `percent` of them lie inside, as many outside on either side."""

    name: ClassVar[str] = "percentile"
    syntax: ClassVar[str] = "percentile[:P]"
    percent: float = 99.99

    def __post_init__(self) -> None:
        if not 50.0 <= self.percent <= 100.0:
            raise OptionError(f"a percentile lies between 50 and 100, not at {self.percent}")

    @classmethod
    def read(cls, text: str) -> Plugin | None:
        word, _, rest = text.partition(":")
        if word != cls.name or not rest or "=" in rest:
            return super().read(text)
        return super().read(f"{cls.name}:percent={rest}")

    def statistics(self) -> Statistics:
        return Histogram()

    def range(self, seen: Statistics, grid: Grid) -> tuple[float, float]:
        assert isinstance(seen, Histogram)
        outside = (1.0 - self.percent / 100.0) * seen.counts.sum()
        if grid.symmetric:
            side = _quantile(_magnitudes(seen), outside) * seen.width
            return max(seen.range.low, -side), min(seen.range.high, side)
        low = -_quantile(_side(seen, below=True), outside / 2) * seen.width
        high = _quantile(_side(seen, below=False), outside / 2) * seen.width
        return max(seen.range.low, low), min(seen.range.high, high)


@dataclass(frozen=True)
class Entropy(Observer):
    """The range whose integers are distributed most like the numbers, by the Kullback-Leibler divergence."""

    name: ClassVar[str] = "entropy"

    def statistics(self) -> Statistics:
        return Histogram()

    def range(self, seen: Statistics, grid: Grid) -> tuple[float, float]:
        assert isinstance(seen, Histogram)
        one_sided = not grid.symmetric and (seen.range.low >= 0 or seen.range.high <= 0)
        levels = grid.high - grid.low + 1 if one_sided else (grid.high - grid.low + 1) // 2
        side = _least_divergence(_magnitudes(seen), levels) * seen.width
        return max(seen.range.low, -side), min(seen.range.high, side)


@dataclass(frozen=True)
class MSE(Observer):
    """The range with the least mean square of the rounding error, among a hundred shares of either side."""

    name: ClassVar[str] = "mse"

    def statistics(self) -> Statistics:
        return Histogram()

    def range(self, seen: Statistics, grid: Grid) -> tuple[float, float]:
        assert isinstance(seen, Histogram)
        filled = np.flatnonzero(seen.counts)
        numbers, counts = seen.centres[filled], seen.counts[filled]
        low, high = min(seen.range.low, 0.0), max(seen.range.high, 0.0)
        shares = np.geomspace(1.0, 0.03, 100)
        if grid.symmetric:
            side = max(-low, high)
            best = min(shares, key=lambda share: _squares(numbers, counts, -share * side, share * side, grid))
            return max(low, -best * side), min(high, best * side)
        for _ in range(2):  # one side after the other, and again: they hardly depend on each other
            best = min(shares, key=lambda share: _squares(numbers, counts, low, share * seen.range.high, grid))
            high = max(best * seen.range.high, 0.0)
            best = min(shares, key=lambda share: _squares(numbers, counts, share * seen.range.low, high, grid))
            low = min(best * seen.range.low, 0.0)
        return low, high


def _squares(numbers: Array, counts: Array, low: float, high: float, grid: Grid) -> float:
    """The sum of the squared errors of rounding."""
    return float(counts @ np.square(from_range(low, high, grid).fake(numbers) - numbers))


def _side(seen: Histogram, below: bool) -> Array:
    """Counts of the numbers on one side of zero, from there outwards."""
    return seen.counts[: seen.SIDE][::-1] if below else seen.counts[seen.SIDE :]


def _magnitudes(seen: Histogram) -> Array:
    counts = _side(seen, below=True) + _side(seen, below=False)
    return counts[: int(np.flatnonzero(counts)[-1]) + 1]


def _quantile(counts: Array, outside: float) -> float:
    """The place, in bins from zero, beyond which so many numbers lie; between bins in proportion."""
    beyond = np.cumsum(counts[::-1])[::-1]  # those in a bin and outwards of it
    last = int(np.searchsorted(-beyond, -outside, side="left")) - 1
    if last < 0:
        return 0.0
    return float(last + (beyond[last] - outside) / max(int(counts[last]), 1))


def _least_divergence(counts: Array, levels: int) -> float:
    """The threshold, in bins from zero, of the least divergence."""
    if len(counts) <= levels:
        return float(len(counts))
    counts = counts.astype(np.float64)
    counts[0] = counts[1]  # the zeros behind a ReLU say nothing about the range
    ends = np.unique(np.linspace(levels, len(counts), 200).astype(int))
    return float(min(ends[::-1], key=lambda end: _divergence(counts, end, levels)))


def _divergence(counts: Array, end: int, levels: int) -> float:
    """Of the clipped distribution from the one that is left of it in so many integers."""
    inside = counts[:end]
    clipped = inside.copy()
    clipped[-1] += counts[end:].sum()
    starts = np.arange(levels) * end // levels
    filled = inside > 0
    sums, members = np.add.reduceat(inside, starts), np.add.reduceat(filled.astype(np.float64), starts)
    shares = np.repeat(sums / np.maximum(members, 1.0), np.diff(np.append(starts, end)))
    rounded = np.where(filled, shares, 0.0)
    total, kept = clipped.sum(), rounded.sum()
    if not total or not kept:
        return np.inf
    there = clipped > 0
    given = np.maximum(rounded[there] / kept, 1e-9)
    return float((clipped[there] / total * np.log(clipped[there] / total / given)).sum())
