"""Sparsity allocation by sensitivity: the levels of all layers together that cost the least predicted error.

Each layer has a curve: the error of the model's outputs that it alone makes when a share of its weights is kept. The
errors of layers add up, so the best levels at a budget are those at which a little more of any layer costs the same.

1. Between two points of a curve the logarithm of the error is linear in the share; above the last point the error falls
   with the square of what goes, down to 0 where everything is kept.
2. A curve is replaced by the largest convex one below it: what lies above no mixture of levels would choose.
3. Steps of all curves, the cheapest first, are taken until the budget is met; the last one in part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse.allocations.allocation import Allocation, Candidate
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array
from onnxsparse.patterns.pattern import Pattern

GRID = 400
"""Steps of a curve."""
LEAST = 1e-12
"""Errors are at least such a part of the largest: their logarithm is taken."""


@dataclass(frozen=True)
class Sensitivity(Allocation):
    """The levels that together cost the outputs least, found from samples."""

    name: ClassVar[str] = "sensitivity"

    def _counts(self, weights: Sequence[Candidate], sparsity: float | None, pattern: Pattern) -> dict[str, int]:
        raise OptionError("allocation sensitivity is found from samples: pass --data to prune, plan or mask")


@dataclass(frozen=True, eq=False)
class Curve:
    """The error of one layer by the share of its weights that is kept, and what each of its weights costs.

    `least` and `most` bound the share that may be kept.
    """

    name: str
    size: int
    shares: tuple[float, ...]
    errors: tuple[float, ...]
    price: float = 1.0
    least: float = 0.0
    most: float = 1.0

    def at(self, kept: Array) -> Array:
        """The error where such shares are kept."""
        order = np.argsort(self.shares)
        shares, errors = np.array(self.shares)[order], np.array(self.errors)[order]
        largest = errors.max(initial=0.0)
        if largest <= 0:
            return np.zeros_like(kept)
        errors = np.maximum.accumulate(errors[::-1])[::-1]  # keeping more never costs more
        logs = np.log(np.maximum(errors / largest, LEAST))
        inside = np.exp(np.interp(kept, shares, logs))
        steep = (logs[1] - logs[0]) / (shares[1] - shares[0]) if len(shares) > 1 else 0.0
        below = np.exp(logs[0] + steep * (np.minimum(kept, shares[0]) - shares[0]))
        top = shares[-1]
        above = np.exp(logs[-1]) * np.square((1 - np.maximum(kept, top)) / max(1 - top, 1e-9))
        found: Array = largest * np.where(kept < shares[0], below, np.where(kept > top, above, inside))
        return found


def allocate(curves: Sequence[Curve], kept: float) -> list[float]:
    """The share of each layer that is kept, so that a share `kept` of all that they cost is."""
    budget = kept * sum(curve.size * curve.price for curve in curves)
    hulls = [_hull(curve) for curve in curves]
    shares = [float(points[0]) for points, _ in hulls]
    spent = sum(share * curve.size * curve.price for share, curve in zip(shares, curves))
    for _, which, step in sorted(_steps(curves, hulls)):
        points = hulls[which][0]
        cost = (points[step + 1] - points[step]) * curves[which].size * curves[which].price
        part = min(1.0, max(0.0, (budget - spent) / cost)) if cost > 0 else 1.0
        shares[which] = float(points[step] + part * (points[step + 1] - points[step]))
        spent += part * cost
        if part < 1:
            break
    return shares


def predicted(curves: Sequence[Curve], shares: Sequence[float]) -> float:
    """The error of all layers together."""
    return float(sum(curve.at(np.array([share]))[0] for curve, share in zip(curves, shares)))


def _hull(curve: Curve) -> tuple[Array, Array]:
    """The corners of the largest convex curve below: shares and errors."""
    grid = curve.least + (curve.most - curve.least) * np.linspace(0, 1, GRID + 1) ** 2
    errors = curve.at(grid)
    corners: list[int] = []
    for place in range(len(grid)):
        while len(corners) > 1 and _above(grid, errors, corners[-2], corners[-1], place):
            corners.pop()
        corners.append(place)
    return grid[corners], errors[corners]


def _above(grid: Array, errors: Array, first: int, middle: int, last: int) -> bool:
    ahead = (errors[middle] - errors[first]) * (grid[last] - grid[first])
    return bool(ahead >= (errors[last] - errors[first]) * (grid[middle] - grid[first]))


def _steps(curves: Sequence[Curve], hulls: Sequence[tuple[Array, Array]]) -> list[tuple[float, int, int]]:
    """What each step gains for each unit of the budget (negative: gains first), its curve and its place."""
    found = []
    for which, (curve, (shares, errors)) in enumerate(zip(curves, hulls)):
        cost = np.diff(shares) * curve.size * curve.price
        slopes = np.diff(errors) / np.where(cost > 0, cost, 1.0)
        found += [(float(slope), which, step) for step, slope in enumerate(slopes)]
    return found


__all__ = ["Curve", "allocate", "predicted"]
