"""Choosing the kept weights of a layer's matrix by their importance: the patterns of its weights, and how much goes.

A layer's matrix is (outputs of all groups, K), K taps outer and inputs inner; a pattern sees (group, out, in, tap). A
layer may have several weights side by side in K, as the input and hidden weights of a recurrent layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse.math.values import Array, Reading, Values
from onnxsparse.patterns import Pattern
from onnxsparse.patterns.nm import NM
from onnxsparse.patterns.pattern import Shape4
from onnxsparse.scores import Score
from onnxsparse.solvers.rounds import Choose

ROUNDS = 5
"""Rounds in which a layer gets to its share; with more nothing came out better."""


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
        values = Values(np.ascontiguousarray(self.as_axes(importance)), Reading("float32"))
        return self.as_rows(pattern.select(values, Given(), drop))


def keep_shares(parts: Sequence[Part], shares: Sequence[float]) -> list[Choose]:
    """Rounds that each keep such a share of the units of every part."""
    return [_choose(parts, [_kept(part, share) for part in parts]) for share in shares]


def _kept(part: Part, share: float) -> tuple[Pattern, int] | None:
    if part.pattern is None:
        return None
    units = part.pattern.units(part.shape4)
    return part.pattern, units - max(1, round(units * share))


def goals(parts: Sequence[Part], drops: Sequence[int], count: int = ROUNDS) -> list[Choose]:
    """The rounds that end with so many units of each part dropped."""
    patterns = [_stages(part, drop, count) for part, drop in zip(parts, drops)]
    longest = max(map(len, patterns), default=0)
    aligned = [own + own[-1:] * (longest - len(own)) for own in patterns]
    return [_choose(parts, [own[stage] for own in aligned]) for stage in range(longest)]


def _stages(part: Part, drop: int, count: int) -> list[tuple[Pattern, int] | None]:
    if part.pattern is None:
        return [None]
    if isinstance(part.pattern, NM):
        n, m = part.pattern.n, part.pattern.m
        return [(NM(kept, m), 0) for kept in _between(n, m, count)]
    units = part.pattern.units(part.shape4)
    kept = 1 - drop / units if units else 1.0
    shares = [max(kept, 0.5 / max(units, 1)) ** (step / count) for step in range(1, count)]
    return [*((part.pattern, round(units * (1 - share))) for share in shares), (part.pattern, drop)]


def _between(n: int, m: int, count: int) -> list[int]:
    """From M - 1 kept down to N, in at most so many steps."""
    steps = range(m - 1, n - 1, -1)
    if len(steps) <= count:
        return list(steps)
    return [round(m * (n / m) ** (step / count)) for step in range(1, count)] + [n]


def _choose(parts: Sequence[Part], stages: Sequence[tuple[Pattern, int] | None]) -> Choose:
    def choose(importance: Array) -> Array:
        mask = np.ones(importance.shape, bool)
        for part, stage in zip(parts, stages):
            if stage is not None:
                mask[:, part.columns] = part.keep(importance, *stage)
        return mask

    return choose


__all__ = ["Given", "Part", "goals", "keep_shares"]
