"""Choosing the kept weights of a layer's matrix by their importance: the patterns of its weights, and how much goes.

A layer's matrix is (outputs of all groups, K), K taps outer and inputs inner; a pattern sees (group, out, in, tap). A
layer may have several weights side by side in K, as the input and hidden weights of a recurrent layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from onnxsparse.math import rank
from onnxsparse.math.values import Array, Reading, Values
from onnxsparse.patterns import Pattern
from onnxsparse.patterns.cells import CellPattern, Tile
from onnxsparse.patterns.nm import NOfM
from onnxsparse.patterns.pattern import Shape4
from onnxsparse.patterns.unstructured import Unstructured
from onnxsparse.scores import Score
from onnxsparse.solvers.rounds import Choose

ROUNDS, MORE = 5, 8
"""Rounds in which a layer gets to its share, and a large one. Small layers gain nothing by more."""
LARGE = 400
"""From so many inputs on a layer is large. N:M takes one step there: enough weights make up for what goes."""


class Given(Score):
    """Importance that is known already, in the place of the numbers."""

    name: ClassVar[str] = "given"

    def rank(self, values: Values) -> Array:
        return values.stored

    def value(self, values: Values) -> Array:
        return values.stored


@dataclass(frozen=True, eq=False)
class Part:
    """A weight of a layer: its columns in the layer's matrix, its axes, and the pattern of its zeros.

    A part without a pattern stays as it is.
    """

    name: str
    columns: slice
    shape4: Shape4
    pattern: Pattern | None

    def as_axes(self, matrix: Array) -> Array:
        """Its columns of a layer's matrix as (group, out, in, tap)."""
        group, out, inputs, taps = self.shape4
        return matrix[:, self.columns].reshape(group, out, taps, inputs).transpose(0, 1, 3, 2)

    def as_rows(self, axes: Array) -> Array:
        """The inverse: (outputs of all groups, its columns)."""
        group, out, inputs, taps = self.shape4
        return np.ascontiguousarray(axes.transpose(0, 1, 3, 2)).reshape(group * out, taps * inputs)

    def keep(self, importance: Array, pattern: Pattern, drop: int) -> Array:
        values = Values(np.ascontiguousarray(self.as_axes(importance)), Reading("float64"))
        return self.as_rows(pattern.select(values, Given(), drop))

    def together(self) -> Array:
        """Its columns, by number of the set that goes together in a row: the inputs and taps of a block."""
        _, _, inputs, taps = self.shape4
        pattern, places = self.pattern, np.arange(taps * inputs).reshape(taps, inputs)
        if not isinstance(pattern, CellPattern) or isinstance(pattern, NOfM):
            return places.reshape(-1)
        _, _, wide, deep = pattern.cell(self.shape4)
        tap, place = np.divmod(places, inputs)
        found: Array = tap // deep * inputs + place // wide
        ragged = (place >= inputs // wide * wide) & (not isinstance(pattern, Tile))
        return np.where(ragged, places + inputs * taps, found).reshape(-1)


def groups_of(parts: Sequence[Part]) -> Array | None:
    """The columns of a layer by number of the set that goes together; None where each goes by itself."""
    found, start = np.arange(max((part.columns.stop for part in parts), default=0)), 0
    for part in parts:
        own = part.together()
        found[part.columns] = start + own
        start += int(own.max(initial=0)) + 1
    return found if len(np.unique(found)) < len(found) else None


Stage = tuple[Pattern, int]
"""A pattern, and how many of its units are dropped."""


def keep_shares(parts: Sequence[Part], shares: Sequence[float], joint: bool = False) -> list[Choose]:
    """Rounds that each keep such a share of the units of every part; `joint`: of all parts together."""
    return [_choose(parts, [_kept(part, share) for part in parts], joint) for share in shares]


def _kept(part: Part, share: float) -> Stage | None:
    if part.pattern is None:
        return None
    units = part.pattern.units(part.shape4)
    return part.pattern, units - max(1, round(units * share))


def goals(parts: Sequence[Part], drops: Sequence[int], count: int | None = None, joint: bool = False) -> list[Choose]:
    """The rounds that end with so many units of each part dropped; `joint`: with so many of all parts together."""
    large = max((part.columns.stop for part in parts), default=0) > LARGE
    count = (MORE if large else ROUNDS) if count is None else count
    stages = [_stages(part, drop, count, large) for part, drop in zip(parts, drops)]
    longest = max(map(len, stages), default=0)
    aligned = [own + own[-1:] * (longest - len(own)) for own in stages]
    return [_choose(parts, [own[place] for own in aligned], joint) for place in range(longest)]


def _stages(part: Part, drop: int, count: int, large: bool) -> list[Stage | None]:
    if part.pattern is None:
        return [None]
    if isinstance(part.pattern, NOfM):
        n, m = part.pattern.n, part.pattern.m
        return [(replace(part.pattern, n=kept), 0) for kept in _between(n, m, 1 if large else count)]
    units = part.pattern.units(part.shape4)
    kept = max(1 - drop / units if units else 1.0, 0.5 / max(units, 1))
    shares = [kept ** (step / count) for step in range(1, count)]
    return [*((part.pattern, min(drop, round(units * (1 - share)))) for share in shares), (part.pattern, drop)]


def _between(n: int, m: int, count: int) -> list[int]:
    """From M - 1 kept down to N, in at most so many steps."""
    steps = range(m - 1, n - 1, -1)
    if len(steps) <= count:
        return list(steps)
    return [round(m * (n / m) ** (step / count)) for step in range(1, count)] + [n]


def _choose(parts: Sequence[Part], stages: Sequence[Stage | None], joint: bool) -> Choose:
    """Each part by itself; or the elements of all unstructured parts in one row, where their costs are comparable."""
    alone = [not (joint and isinstance(part.pattern, Unstructured)) for part in parts]
    together = sum(stage[1] for stage, own in zip(stages, alone) if stage is not None and not own)

    def choose(importance: Array) -> Array:
        mask = np.ones(importance.shape, bool)
        others = np.zeros(importance.shape[1], bool)
        for part, stage, own in zip(parts, stages, alone):
            if own and stage is not None:
                mask[:, part.columns] = part.keep(importance, *stage)
            others[part.columns] = not own
        kept = importance[:, others]
        mask[:, others] = ~rank.smallest(kept.reshape(-1), together).reshape(kept.shape)
        return mask

    return choose


__all__ = ["Given", "Part", "goals", "groups_of", "keep_shares"]
