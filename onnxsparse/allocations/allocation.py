"""Allocations: how many units each weight loses so that all together reach a sparsity."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from onnxsparse.errors import OptionError
from onnxsparse.math import rank
from onnxsparse.math.values import Array
from onnxsparse.patterns.pattern import Pattern, Shape4, checked_sparsity
from onnxsparse.plugins import Plugin


class Candidate(Protocol):
    """A weight as an allocation sees it. `unit_scores` may be called several times; `Pattern.unit_chunks` makes it."""

    @property
    def name(self) -> str: ...

    @property
    def shape4(self) -> Shape4: ...

    def unit_scores(self) -> Iterator[Array]: ...

    def sample_scores(self) -> Array | None:
        """Scores of some units from all over the weight, in proportion to its size; None when that saves nothing."""
        ...


class Shares(dict[str, int]):
    """The units to drop from each weight, by name; and where that is known, at which score that is.

    `cuts` has the bits of the score at which the dropped end, and how many of those equal to it go. They save another
    look at the numbers and never change the result.
    """

    def __init__(self, counts: Mapping[str, int], cuts: Mapping[str, tuple[int, int]] | None = None) -> None:
        super().__init__(counts)
        self.cuts = dict(cuts or {})


class Allocation(Plugin, ABC):
    """How many units of each weight go."""

    kind: ClassVar[str] = "allocations"
    patterns_supported: ClassVar[tuple[str, ...]] = ()
    """Names of the patterns it works with; empty means all."""
    needs_places: ClassVar[bool] = False
    """Whether it asks where a layer is: candidates then have a `place`, and dense layers are among them."""

    def allocate(self, weights: Sequence[Candidate], sparsity: float | None, pattern: Pattern) -> Shares:
        """The units to drop from each weight, by name."""
        if not self.supports(pattern):
            known = " and ".join(self.patterns_supported)
            raise OptionError(f"allocation {self.name} works with {known}, not with {pattern.text}")
        counts = self._counts(weights, sparsity, pattern)
        return counts if isinstance(counts, Shares) else Shares(counts)

    def supports(self, pattern: Pattern) -> bool:
        """Whether this allocation can distribute the units of a pattern."""
        return not self.patterns_supported or pattern.name in self.patterns_supported

    @abstractmethod
    def _counts(self, weights: Sequence[Candidate], sparsity: float | None, pattern: Pattern) -> dict[str, int]: ...


@dataclass(frozen=True)
class Uniform(Allocation):
    """The same sparsity for every weight."""

    name: ClassVar[str] = "uniform"

    def _counts(self, weights: Sequence[Candidate], sparsity: float | None, pattern: Pattern) -> dict[str, int]:
        return {weight.name: pattern.drop_count(weight.shape4, sparsity) for weight in weights}


RUN = 256
"""How many neighbours in a row a sample of scores is taken to have, at most."""


@dataclass(frozen=True)
class Global(Allocation):
    """The least important units of all weights together, wherever they are; every weight keeps its largest unit."""

    name: ClassVar[str] = "global"
    patterns_supported: ClassVar[tuple[str, ...]] = ("unstructured", "block")

    def _counts(self, weights: Sequence[Candidate], sparsity: float | None, pattern: Pattern) -> dict[str, int]:
        units = [pattern.units(weight.shape4) for weight in weights]
        drop = math.floor(checked_sparsity(sparsity, pattern.text) * sum(units) + 0.5)
        streams = [weight.unit_scores for weight in weights]
        names = [weight.name for weight in weights]
        cut = rank.cut(streams, drop, _sampled(weights, sum(units)))
        if all(count < size for count, size in zip(cut.counts, units)):
            return Shares(dict(zip(names, cut.counts)), {name: (cut.key, ties) for name, ties in zip(names, cut.ties)})
        # Only here it matters that a weight's largest unit is no candidate.
        return Shares(dict(zip(names, rank.cut([_but_the_largest(stream) for stream in streams], drop).counts)))


def _sampled(weights: Sequence[Candidate], units: int) -> rank.Sample | None:
    """A sample of all scores, where the weights can be sampled without being read."""
    parts = [weight.sample_scores() for weight in weights]
    given = [part for part in parts if part is not None]
    return rank.Sample(np.concatenate(given), units, RUN) if given and len(given) == len(parts) else None


def _but_the_largest(stream: rank.Stream) -> rank.Stream:
    """A stream without one key: its largest, which is no candidate."""
    largest = max((chunk.max() for chunk in stream() if chunk.size), default=np.uint32(0))

    def rest() -> Iterator[Array]:
        found = False
        for chunk in stream():
            if found or chunk.size == 0 or chunk.max() != largest:
                yield chunk
                continue
            found, place = True, int(np.argmax(chunk))
            yield chunk[:place]
            yield chunk[place + 1 :]

    return rest


# The Erdős–Rényi-kernel allocation: Evci et al., Rigging the Lottery, 2020.
#
# The density of a weight goes with (sum of its dimensions) / (product of its dimensions), where the dimensions are
# inputs, outputs and those of the kernel. A weight whose density would exceed 1 is dense, and the others are solved for
# again.


@dataclass(frozen=True)
class ErdosRenyiKernel(Allocation):
    """Erdős–Rényi-kernel: the larger a weight, the sparser."""

    name: ClassVar[str] = "erk"
    patterns_supported: ClassVar[tuple[str, ...]] = ("unstructured", "block")

    def _counts(self, weights: Sequence[Candidate], sparsity: float | None, pattern: Pattern) -> dict[str, int]:
        units = [pattern.units(weight.shape4) for weight in weights]
        total = sum(units)
        keep = total - math.floor(checked_sparsity(sparsity, pattern.text) * total + 0.5)
        kept = _rounded(kept_by_density(units, [_raw_density(weight) for weight in weights], keep), units, keep)
        return {weight.name: count - stays for weight, count, stays in zip(weights, units, kept)}


def _raw_density(weight: Candidate) -> float:
    groups, outputs, inputs, taps = weight.shape4
    kernel = getattr(weight, "kernel_shape", None) or ((taps,) if taps > 1 else ())
    product = groups * outputs * inputs * taps
    return (groups * outputs + inputs + sum(kernel)) / product if product else 0.0


def kept_by_density(units: list[int], raw: list[float], keep: int) -> list[float]:
    """How many units of each weight to keep, as real numbers: in proportion to raw densities, at most all of it."""
    dense: set[int] = set()
    while True:
        free = [place for place in range(len(units)) if place not in dense]
        room = keep - sum(units[place] for place in dense)
        share = math.fsum(raw[place] * units[place] for place in free)
        factor = room / share if share else 0.0
        over = {place for place in free if factor * raw[place] > 1}
        if not over:
            return [float(n) if place in dense else factor * raw[place] * n for place, n in enumerate(units)]
        dense |= over


def _rounded(ideal: list[float], units: list[int], keep: int) -> list[int]:
    """Whole numbers of the same sum by largest remainder; the earlier of equals gets more."""
    # A hair below, so that rounding errors cannot make the sum of the floors too large.
    floors = [min(count, math.floor(number * (1 - 1e-12))) for number, count in zip(ideal, units)]
    by_remainder = sorted(range(len(units)), key=lambda place: floors[place] - ideal[place])
    for place in [place for place in by_remainder if floors[place] < units[place]][: keep - sum(floors)]:
        floors[place] += 1
    return floors


def pooled(scores: Mapping[str, Array], sizes: Mapping[str, int], sparsity: float) -> dict[str, int]:
    """How many of the smallest units each layer drops; `sizes` are the elements of a unit. No layer loses its largest.

    As many go as come nearest to the sparsity. Among equals those of earlier layers go first.
    """
    names = [name for name, units in scores.items() if units.size]
    ordered = [np.sort(scores[name], kind="stable")[:-1] for name in names]
    layer, size = _repeated(range(len(names)), ordered), _repeated([sizes[name] for name in names], ordered)
    order = np.argsort(np.concatenate([*ordered, np.zeros(0)]), kind="stable")
    total = sum(sizes[name] * scores[name].size for name in names)
    goal = np.floor(checked_sparsity(sparsity, "a network") * total + 0.5)
    middle = np.cumsum(size[order]) - size[order] / 2
    counts = np.bincount(layer[order[middle <= goal]], minlength=len(names))
    return {**dict.fromkeys(scores, 0), **{name: int(count) for name, count in zip(names, counts)}}


def _repeated(values: Sequence[int], units: Sequence[Array]) -> Array:
    return np.repeat(np.asarray(values, np.int64), [len(one) for one in units])
