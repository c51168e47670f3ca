"""The mean square error of a layer's outputs as a function of its weights, from additive moments of its inputs.

For one block of a layer (a group of a convolution, a direction of a recurrent layer) with inputs x, as the pruned net
gives them, and the outputs y that are wanted, those of the dense net, the error of an output with weights w is

    E (w x - y)^2  =  w G w - 2 w c + e        G = E x x^T,  c = E x y,  e = E y^2

Where a layer has a bias the moments are taken about their means: the bias is E y - w E x then, whatever w is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from onnxsparse.math.values import Array

ROUNDING = 2.5e-7
"""What sums in float32 may be off by, as a share of what they sum: inputs that hardly vary about their mean have no
covariance that one could tell."""


STILL = 1e-10
"""An input varies if the variance is more than such a part of its mean square: less is rounding."""


class Sums(Protocol):
    """Additive moments of one block, as they are collected: see `calibration.statistics.LayerMoments`."""

    gram: Array
    cross: Array
    sum_x: Array
    sum_y: Array
    square_y: Array
    count: int
    weight: float
    """What all positions count together."""


@dataclass(frozen=True, eq=False)
class Quadratic:
    """The error of some outputs of a layer: `outputs` are their rows in its matrix."""

    outputs: Array
    gram: Array  # (K, K)
    cross: Array  # (K, outputs)
    energy: Array  # (outputs,)
    mean_x: Array  # (K,), zeros where there is no bias
    mean_y: Array  # (outputs,)
    biased: bool
    count: int

    @classmethod
    def of(cls, outputs: Array, sums: Sums, biased: bool) -> Quadratic:
        """From sums over positions."""
        weight = sums.weight or 1.0
        gram, cross, energy = sums.gram / weight, sums.cross / weight, sums.square_y / weight
        mean_x, mean_y = sums.sum_x / weight, sums.sum_y / weight
        if not biased:
            return cls(outputs, gram, cross, energy, np.zeros_like(mean_x), np.zeros_like(mean_y), False, sums.count)
        gram = gram - np.outer(mean_x, mean_x)
        cross = cross - np.outer(mean_x, mean_y)
        energy = np.maximum(energy - np.square(mean_y), 0.0)
        return cls(outputs, gram, cross, energy, mean_x, mean_y, True, sums.count)

    @property
    def still(self) -> Array:
        """Inputs that are always zero, or always alike where a bias makes up for them: their weights cost nothing."""
        spread = np.diagonal(self.gram)
        found: Array = spread <= STILL * (spread + np.square(self.mean_x))
        return found

    def errors(self, rows: Array, bias: Array | None = None) -> Array:
        """The mean square error of each of its outputs; with the bias that is best for these rows, or a given one."""
        product = rows @ self.gram
        found = np.einsum("ok,ok->o", product, rows) - 2 * np.einsum("ok,ko->o", rows, self.cross) + self.energy
        if bias is not None and self.biased:
            found = found + np.square(self.bias(rows) - bias)
        least: Array = np.maximum(found, 0.0)
        return least

    def bias(self, rows: Array) -> Array:
        """The bias that is best with these rows."""
        found: Array = self.mean_y - rows @ self.mean_x
        return found

    def ridge(self, share: float) -> float:
        """What is added to the diagonal: a share of its mean, and more than rounding left in the matrix."""
        size = max(len(self.mean_x), 1)
        mean, squares = float(self.squares.sum()) / size, float(self.mean_x @ self.mean_x)
        if share * mean > ROUNDING * squares or not squares:
            return share * mean or share
        return max(ROUNDING * squares, -2 * self.lowest) or share

    @property
    def lowest(self) -> float:
        """The lowest eigenvalue of the Gram matrix, which is less than nothing by rounding alone."""
        return float(np.linalg.eigvalsh(self.gram)[0])

    @property
    def squares(self) -> Array:
        """The mean square of each input, about its mean where there is a bias."""
        found: Array = np.diagonal(self.gram)
        return found

    @property
    def nbytes(self) -> int:
        return self.gram.nbytes + self.cross.nbytes

    @property
    def finite(self) -> bool:
        return bool(np.isfinite(self.gram).all() and np.isfinite(self.cross).all())


class Factored(Quadratic):
    """The same of positions so few that the inputs themselves are much smaller than their Gram matrix."""

    def __init__(self, outputs: Array, x: Array, y: Array, biased: bool, ones: Array | None = None) -> None:
        """From inputs (positions, K) and what is to come of them (positions, outputs); where these come times the root
        of what they count, with the 1 that a bias is multiplied with."""
        x, y = x.astype(np.float64), y.astype(np.float64)
        column = np.ones(len(x)) if ones is None else ones.astype(np.float64)
        weight = float(column @ column) or 1.0
        zeros = np.zeros(x.shape[1]), np.zeros(y.shape[1])
        means = (column @ x / weight, column @ y / weight) if biased else zeros
        facts = {"x": x - np.outer(column, means[0]), "y": y - np.outer(column, means[1])}
        facts.update(mean_x=means[0], mean_y=means[1], energy=np.square(facts["y"]).sum(axis=0) / weight)
        count = int(np.count_nonzero(column))
        for name, value in {**facts, "outputs": outputs, "biased": biased, "count": count, "over": weight}.items():
            object.__setattr__(self, name, value)

    x: Array
    y: Array
    over: float

    @property
    def gram(self) -> Array:
        return self.x.T @ self.x / self.over

    @property
    def cross(self) -> Array:
        return self.x.T @ self.y / self.over

    @property
    def lowest(self) -> float:
        """Nothing: these inputs are about their means before they are multiplied."""
        return 0.0

    @property
    def squares(self) -> Array:
        found: Array = np.einsum("pk,pk->k", self.x, self.x) / self.over
        return found

    @property
    def nbytes(self) -> int:
        return self.x.nbytes + self.y.nbytes

    @property
    def finite(self) -> bool:
        return bool(np.isfinite(self.x).all() and np.isfinite(self.y).all())

    def errors(self, rows: Array, bias: Array | None = None) -> Array:
        found: Array = np.square(self.x @ rows.T - self.y).sum(axis=0) / self.over
        if bias is not None and self.biased:
            found = found + np.square(self.bias(rows) - bias)
        return found


def mean_errors(blocks: Iterable[Quadratic], rows: Array, bias: Array | None = None) -> Array:
    """The error of every row of a layer."""
    found = np.zeros(len(rows))
    for block in blocks:
        own = None if bias is None else bias[block.outputs]
        found[block.outputs] += block.errors(rows[block.outputs], own)
    return found


__all__ = ["Factored", "Quadratic", "Sums", "mean_errors"]
