"""Layer sparsities by energy: how sparse each layer becomes so that all together reach a network sparsity.

1. A layer's numbers are sorted by size, once; the squares of the smallest, added up, are the energy that goes with
   them, as a share of the layer's own.
2. Given an energy share E_l, a layer's sparsity is the largest share of its numbers whose energy stays within E_l,
   rounded to whole per cents, at most 99 %.
3. One E is looked for, for the whole network: E_l = E * (1 - tuning)**((G - g) / max(G, 1)), halved for depthwise
   convolutions. g is the layer's stride group, from 0, and G the last one: early layers lose less.
4. A layer's sparsity changes at 99 values of E and nowhere else, so there is no search by halving: of all of them, the
   one that comes closest to the level counts; of two as close, the smaller.
5. Limits cut a layer off: what its device can use (`cap`), `most` times the level, 1 - `least` * (1 - level), or 0 for
   depthwise convolutions that stay dense. The other layers make up for it as far as they can.
With `even` every layer has the level itself, within its limits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse.allocations.allocation import Allocation, Candidate, Shares
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array
from onnxsparse.patterns.pattern import Pattern, checked_sparsity

HIGHEST = 99
"""No layer is sparser than that, in per cent."""
BLOCK = 1 << 20


@dataclass(frozen=True)
class Place:
    """Where a layer is in its network: what the rule knows of it besides its numbers."""

    group: int = 0
    depthwise: bool = False
    cap: float = 1.0  # the sparsity beyond which nothing is gained; 0 for a layer that stays dense


@dataclass(frozen=True)
class Energy(Allocation):
    """By energy, sparser the deeper a layer is, in whole per cents, for a network sparsity."""

    name: ClassVar[str] = "energy"
    patterns_supported: ClassVar[tuple[str, ...]] = ("unstructured", "alive")
    needs_places: ClassVar[bool] = True
    tuning: float = 0.5
    most: float = 1.0
    least: float = 1.0
    dense_depthwise: bool = False
    even: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.tuning < 1:
            raise OptionError(f"energy: tuning lies from 0 to below 1, not at {self.tuning}")
        for name in ("most", "least"):
            if not 0 <= getattr(self, name) < math.inf:
                raise OptionError(f"energy: {name} is a number from 0, not {getattr(self, name)}")

    def _counts(self, weights: Sequence[Candidate], sparsity: float | None, pattern: Pattern) -> dict[str, int]:
        return self.allocate_levels(weights, [checked_sparsity(sparsity, pattern.text)], pattern)[0]

    def allocate_levels(self, weights: Sequence[Candidate], levels: Sequence[float], pattern: Pattern) -> list[Shares]:
        """The same for several levels; each weight is sorted once."""
        if not self.supports(pattern):
            raise OptionError(f"allocation energy works with unstructured and alive, not with {pattern.text}")
        places = [self._place(weight) for weight in weights]
        curves = [_no_curve() if self.even or place.cap <= 0 else curve(w) for w, place in zip(weights, places)]
        return [self._at(level, weights, places, curves, pattern) for level in levels]

    def _place(self, weight: Candidate) -> Place:
        place: Place = getattr(weight, "place", None) or Place()
        return Place(place.group, True, 0.0) if self.dense_depthwise and place.depthwise else place

    def _at(
        self,
        level: float,
        weights: Sequence[Candidate],
        places: Sequence[Place],
        curves: Sequence[Array],
        pattern: Pattern,
    ) -> Shares:
        tops = [self._top(level, weight, place, pattern) for weight, place in zip(weights, places)]
        if self.even:
            found = [min(top, _rounded(100 * level)) for top in tops]
        else:
            sizes = [math.prod(weight.shape4) for weight in weights]
            found = shares(level, sizes, curves, factors(places, self.tuning), tops)
        return Shares({w.name: pattern.drop_count(w.shape4, share / 100) for w, share in zip(weights, found)})

    def _top(self, level: float, weight: Candidate, place: Place, pattern: Pattern) -> int:
        """The highest sparsity of a layer, in whole per cents."""
        size = math.prod(weight.shape4)
        caps = [HIGHEST / 100, place.cap, pattern.drop_count(weight.shape4, 1.0) / max(size, 1)]
        caps += [level * self.most] if self.most > 1 else []
        caps += [1 - (1 - level) * self.least] if self.least < 1 else []
        return max(0, math.floor(100 * min(caps) + 1e-9))


def stride_groups(sizes: Sequence[float | None]) -> list[int]:
    """How often the input was halved before each layer, from the first layer's on, without gaps.

    A size is that of the layer's input in space; None for a fully connected layer, which is of the last group.
    """
    first = next((size for size in sizes if size), 1.0)
    halved = [None if not size else max(0, math.ceil(math.log2(first / size) - 1e-9)) for size in sizes]
    known = sorted({count for count in halved if count is not None})
    last = max(len(known) - 1, 0)
    return [last if count is None else known.index(count) for count in halved]


def factors(places: Sequence[Place], tuning: float) -> list[float]:
    """What the network's energy share is multiplied with for each layer."""
    last = max((place.group for place in places), default=0)
    found = [(1 - tuning) ** ((last - place.group) / max(last, 1)) for place in places]
    # No machine's power function decides: the last digits are cut off.
    return [round(factor / 2 if place.depthwise else factor, 12) for factor, place in zip(found, places)]


def curve(weight: Candidate) -> Array:
    """The energy, in per cent, from which on a layer loses 1, 2, ... 99 % of its numbers."""
    return energies(weight.unit_scores())


def energies(chunks: Iterable[Array]) -> Array:
    pieces = list(chunks)
    sizes = np.concatenate(pieces) if pieces else np.zeros(0)
    if not sizes.size:
        return _no_curve()
    sizes = np.sort(np.abs(sizes))
    wanted = np.array([-(-(2 * share - 1) * sizes.size // 200) for share in range(1, HIGHEST + 1)])
    found, total = _summed(sizes, wanted)
    return 100 * found / total if total > 0 else np.zeros(HIGHEST)


def _summed(ordered: Array, counts: Array) -> tuple[Array, float]:
    """The sums of the first so-many squares, and of all, one after the other."""
    found, total = np.zeros(counts.size), 0.0
    for start in range(0, ordered.size, BLOCK):
        part = ordered[start : start + BLOCK].astype(np.float64)
        part *= part
        part[0] += total
        sums = np.cumsum(part)
        here = (counts > start) & (counts <= start + part.size)
        found[here] = sums[counts[here] - 1 - start]
        total = float(sums[-1])
    return found, total


def _no_curve() -> Array:
    return np.zeros(0)


def shares(
    level: float, sizes: Sequence[int], curves: Sequence[Array], factor: Sequence[float], tops: Sequence[int]
) -> list[int]:
    """The sparsity of every layer in whole per cents, that of the network as near to the level as one E brings it."""
    at, owner, gain = _steps(sizes, curves, factor, tops)
    order = np.argsort(at, kind="stable")
    gone = np.concatenate([[0], np.cumsum(gain[order])])
    ends = np.concatenate([[0], np.flatnonzero(np.diff(at[order], append=np.inf)) + 1]).astype(int)
    off = np.abs(gone[ends] - level * sum(sizes))
    best = ends[int(np.argmin(off))] if ends.size else 0
    taken = np.bincount(owner[order[:best]], minlength=len(sizes))
    return [int(count) for count in taken]


def _steps(
    sizes: Sequence[int], curves: Sequence[Array], factor: Sequence[float], tops: Sequence[int]
) -> tuple[Array, Array, Array]:
    """Every E at which a layer loses one more per cent: the E, the layer, and how many numbers that is."""
    at, owner, gain = [np.zeros(0)], [np.zeros(0, int)], [np.zeros(0, np.int64)]
    for number, (size, found, part, top) in enumerate(zip(sizes, curves, factor, tops)):
        count = min(found.size, top)
        lost = np.floor(np.arange(count + 1) / 100 * size + 0.5).astype(np.int64)
        at.append(found[:count] / part)
        owner.append(np.full(count, number))
        gain.append(np.diff(lost))
    return np.concatenate(at), np.concatenate(owner), np.concatenate(gain)


def _rounded(number: float) -> int:
    return math.floor(number + 0.5)
