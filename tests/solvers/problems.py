"""Layers as problems of numbers, with the samples they came of, and slow and simple answers. No tests."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from hypothesis import strategies as st

from onnxsparse.calibration.statistics import LayerMoments
from onnxsparse.math.values import Array
from onnxsparse.solvers.quadratic import Quadratic
from onnxsparse.solvers.rounds import Layer


@dataclass(frozen=True, eq=False)
class Problem:
    """One block: what comes into it, pruned so far, and the outputs that are wanted."""

    inputs: Array  # (positions, K)
    wanted: Array  # (positions, rows)
    dense: Array
    biased: bool

    @property
    def quadratic(self) -> Quadratic:
        moments = LayerMoments(self.inputs.shape[1], self.wanted.shape[1])
        half = len(self.inputs) // 2
        for part in (slice(0, half), slice(half, None)):
            moments.add(self.inputs[part], self.wanted[part])
        return Quadratic.of(np.arange(len(self.dense)), moments, self.biased)

    def layer(self, sensitivity: Array | None = None, ridge: float = 1e-2) -> Layer:
        ones = np.ones(len(self.dense))
        return Layer(self.dense, [self.quadratic], ones if sensitivity is None else sensitivity, ridge)

    def refitted(self, row: int, kept: Array, ridge: float) -> tuple[Array, float]:
        """Least squares of one row over some columns by lstsq, and what is minimised there.

        The ridge towards the dense weights is more rows, the bias is one more column without a ridge.
        """
        count, size = self.inputs.shape
        places = np.flatnonzero(kept)
        steady = np.sqrt(count * self.quadratic.ridge(ridge)) * np.eye(size)
        above = np.hstack([self.inputs[:, places], np.ones((count, int(self.biased)))])
        below = np.hstack([steady[:, places], np.zeros((size, int(self.biased)))])
        target = np.concatenate([self.wanted[:, row], steady @ self.dense[row]])
        matrix = np.vstack([above, below])
        found = np.linalg.lstsq(matrix, target, rcond=None)[0]
        weights = np.zeros(size)
        weights[places] = found[: len(places)]
        return weights, float(np.square(matrix @ found - target).sum() / count)


@st.composite
def problems(draw: st.DrawFn, most: int = 9, rows: int = 4) -> Problem:
    """Correlated inputs with a mean; what comes in differs a little from what the wanted outputs were made of."""
    size, outputs = draw(st.integers(2, most)), draw(st.integers(1, rows))
    biased, seed = draw(st.booleans()), draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    before = rng.standard_normal((4 * size + 8, size)) @ rng.standard_normal((size, size)) + rng.standard_normal(size)
    dense = rng.standard_normal((outputs, size))
    inputs = before + 0.1 * rng.standard_normal(before.shape)
    return Problem(inputs, before @ dense.T + 0.3, dense, biased)


def masks_of(problem: Problem, seed: int, share: float) -> Array:
    return np.random.default_rng(seed).random(problem.dense.shape) < share


def legal(mask: Array, n: int, m: int) -> bool:
    """Whether every group of M in a row keeps N, by loops."""
    rows, size = mask.shape
    return all(
        mask[row, start : start + m].sum() == n for row, start in product(range(rows), range(0, size - m + 1, m))
    )
