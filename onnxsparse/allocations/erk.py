"""The Erdős–Rényi-kernel allocation: Evci et al., Rigging the Lottery, 2020.

The density of a weight goes with (sum of its dimensions) / (product of its dimensions), where the dimensions are
inputs, outputs and those of the kernel. A weight whose density would exceed 1 is dense, and the others are solved for
again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.allocations.allocation import Allocation, Candidate
from onnxsparse.patterns.pattern import Pattern, checked_sparsity


@dataclass(frozen=True)
class ErdosRenyiKernel(Allocation):
    """Erdős–Rényi-kernel: the larger a weight, the sparser."""

    name: ClassVar[str] = "erk"
    patterns_supported: ClassVar[tuple[str, ...]] = ("unstructured", "block")

    def _counts(self, weights: Sequence[Candidate], sparsity: float | None, pattern: Pattern) -> dict[str, int]:
        units = [pattern.units(weight.shape4) for weight in weights]
        total = sum(units)
        keep = total - math.floor(checked_sparsity(sparsity, pattern.text) * total + 0.5)
        kept = _rounded(_solved(units, [_raw_density(weight) for weight in weights], keep), units, keep)
        return {weight.name: count - stays for weight, count, stays in zip(weights, units, kept)}


def _raw_density(weight: Candidate) -> float:
    groups, outputs, inputs, taps = weight.shape4
    kernel = getattr(weight, "kernel_shape", None) or ((taps,) if taps > 1 else ())
    product = groups * outputs * inputs * taps
    return (groups * outputs + inputs + sum(kernel)) / product if product else 0.0


def _solved(units: list[int], raw: list[float], keep: int) -> list[float]:
    """How many units of each weight to keep, as real numbers."""
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
