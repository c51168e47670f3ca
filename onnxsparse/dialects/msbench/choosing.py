"""Which numbers of each layer go: how many, each layer by itself or all layers together, and where.

1. `uniform`: every layer drops the same share. Otherwise the units of all layers are put in one order, and what is
   smallest goes, wherever it is; no layer loses its largest unit.
2. Single numbers of different layers compare by magnitude, or relative to the l1 or l2 norm of their layer
   (L1Normalized, L2Normalized). Whole outputs compare by the mean of their numbers' scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from onnxsparse import patterns, scores
from onnxsparse.allocations.allocation import Global, pooled
from onnxsparse.dialects.msbench.generators import Generator
from onnxsparse.loops.network import Site
from onnxsparse.math.values import Array, Reading, Values, halved
from onnxsparse.patterns import Pattern
from onnxsparse.patterns.unstructured import Unstructured
from onnxsparse.sparsers.mask_updates import Choice, corrected


def pattern_of(generator: Generator, singles: str = "unstructured") -> Pattern:
    """The zeros of a generator; `singles` is the pattern of single numbers."""
    return patterns.parse(singles if generator.pattern == "unstructured" else generator.pattern)


def drops_of(
    sites: Sequence[Site], numbers: Mapping[str, Array], generator: Generator, target: float | None, uniform: bool
) -> dict[str, int]:
    """How many units each layer drops."""
    pattern = pattern_of(generator)
    if uniform or target is None or not pattern.takes_sparsity:
        return {site.key: pattern.drop_count(site.shape4, target) for site in sites}
    units = {site.key: _units(site, numbers[site.key], pattern, generator) for site in sites}
    if isinstance(pattern, Unstructured):  # as many as there are numbers: chosen without sorting them
        return Global().allocate([_Scored(site.key, site.shape4, units[site.key]) for site in sites], target, pattern)
    return pooled(units, {site.key: pattern.unit_size(site.shape4) for site in sites}, target)


@dataclass(frozen=True, eq=False)
class _Scored:
    """A layer as an allocation sees it."""

    name: str
    shape4: tuple[int, ...]
    units: Array

    def unit_scores(self) -> Iterator[Array]:
        yield self.units

    def sample_scores(self) -> Array | None:
        return None


def _units(site: Site, numbers: Array, pattern: Pattern, generator: Generator) -> Array:
    """Scores that compare between layers."""
    flat = np.ascontiguousarray(numbers).reshape(-1)
    found = pattern.unit_scores(
        Values(site.matrix(flat), Reading(flat.dtype.name)), scores.parse(generator.score)
    ).astype(np.float64)
    if generator.func == "Magnitude":
        return found
    norm = halved(found, 0) if generator.func == "L1Normalized" else np.sqrt(halved(np.square(found), 0))
    return found / norm if norm else found


def chosen(site: Site, pattern: Pattern, generator: Generator, numbers: Array, drop: int) -> Array:
    """True where a number stays, in the shape of the weight."""
    choice = Choice(pattern, scores.parse(generator.score), drop, site.matrix, site.restore)
    return choice.keep(np.ascontiguousarray(numbers).reshape(-1)).reshape(site.shape)


def corrected_weight(site: Site, numbers: Array, keep: Array) -> Array:
    """What is kept of a weight, so that each output keeps its mean and deviation."""
    rows = [site.matrix(np.ascontiguousarray(one).reshape(-1)) for one in (numbers, keep)]
    flat = [one.reshape(one.shape[0] * one.shape[1], -1) for one in rows]
    return site.restore(corrected(flat[0], flat[1]).reshape(rows[0].shape)).reshape(site.shape)


def threshold_of(numbers: Array, drop: int) -> float:
    """s, so that sigmoid(s) lies between the numbers that are dropped and those that are kept."""
    sizes = np.sort(np.abs(numbers).reshape(-1).astype(np.float64))
    if drop <= 0 or not sizes.size:
        return -LARGEST
    level = (sizes[min(drop, sizes.size) - 1] + sizes[min(drop, sizes.size - 1)]) / 2
    level = min(max(level, np.exp(-LARGEST)), 1 - 1e-7)
    return float(np.log(level / (1 - level)))


LARGEST = 60.0
