"""The nuclear score: how much of the sum of all singular values an output is worth.

With the singular values s and the left singular vectors u of the weight as a matrix (a row for each output), removing
row i takes from their sum

    1 / pi * integral over t > 0 of -log(1 - sum_k s_k^2 u_ik^2 / (s_k^2 + t^2))

because the determinant of M - a a^T + t^2 is that of M + t^2 times 1 - a^T (M + t^2)^-1 a. So one decomposition serves
all rows. In log(t) the trapezoid rule is exact to the last digits from four points a unit on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse.scores.outputs import rows_of, spread
from onnxsparse.scores.score import Score
from onnxsparse.values import Array, Values

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
