"""The score of filter pruning via geometric median: what is near to all others can be spared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse.errors import OptionError, nearest
from onnxsparse.patterns.cells import halved
from onnxsparse.scores.outputs import rows_of, spread
from onnxsparse.scores.score import Score
from onnxsparse.values import BLOCK, Array, Values

DISTANCES = ("l1", "l2", "cosine")
BITS, DEPTH = 20, 1 << 12
"""Products of whole numbers of so many bits, so many of them added up, are exact in double precision."""


@dataclass(frozen=True)
class Fpgm(Score):
    """Mean distance (l1, l2, cosine) of an output to all others: the most redundant go first. For whole outputs."""

    name: ClassVar[str] = "fpgm"
    patterns_supported: ClassVar[tuple[str, ...]] = ("filter",)
    distance: str = "l2"

    def __post_init__(self) -> None:
        if self.distance not in DISTANCES:
            hint = nearest(self.distance, DISTANCES)
            raise OptionError(f"a distance of fpgm is {', '.join(DISTANCES)}, not {self.distance[:40]!r}{hint}")

    @property
    def text(self) -> str:
        return f"{self.name}:distance={self.distance}"

    def value(self, values: Values) -> Array:
        rows = rows_of(values)
        total = _sums_of_l1(rows) if self.distance == "l1" else halved(_distances(rows, self.distance), 1)
        return spread(values, rows, total / max(len(rows) - 1, 1))


def _sums_of_l1(rows: Array) -> Array:
    """The sum of |a - b| over all other rows b, for each row a: without a square of all rows times their length."""
    count, step = len(rows), max(1, BLOCK // max(1, rows.shape[1]))
    pairs = np.zeros((count, count))
    for first in range(count):
        for start in range(first + 1, count, step):
            others = rows[start : start + step]
            pairs[first, start : start + step] = halved(np.abs(others - rows[first]), 1)
    return halved(pairs + pairs.T, 1)


def _distances(rows: Array, kind: str) -> Array:
    """All distances, of products that are the same on every machine."""
    products = _products(rows)
    squares = np.diagonal(products)
    if kind == "l2":
        found = np.sqrt(np.maximum(squares[:, None] + squares[None, :] - 2 * products, 0))
    else:
        lengths = np.sqrt(squares)
        both = np.outer(lengths, lengths)
        found = 1 - np.divide(products, both, out=np.zeros_like(products), where=both > 0)
    np.fill_diagonal(found, 0)
    return np.asarray(found)


def _products(rows: Array) -> Array:
    """rows @ rows.T in whole numbers: two parts of 20 bits each, so that no order of summing decides anything."""
    largest = np.abs(rows).max(initial=0)
    scale = 2.0 ** (BITS - np.frexp(largest)[1]) if largest else 1.0
    high = np.rint(rows * scale)
    low = np.rint((rows * scale - high) * 2.0**BITS)
    total = np.zeros((len(rows), len(rows)))
    for start in range(0, rows.shape[1], DEPTH):
        large, small = high[:, start : start + DEPTH], low[:, start : start + DEPTH]
        cross = large @ small.T
        total += large @ large.T + (cross + cross.T) * 2.0**-BITS
    return np.asarray(total / scale**2)
