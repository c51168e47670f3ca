"""Masks and weights of a layer in alternating rounds: remove what costs least, refit what is kept, and again.

1. The cost of a weight is S_o * w^2 / [H^-1]_ii: what its removal does to its output, times how much that output
   matters (`sensitivity`), so that the scale of an output row decides nothing.
2. Every round goes further: geometrically in what is kept, or through N:M with a larger N.
3. What is gone stays gone. A weight that is zero already goes before any other.
What it does not do: decide how much goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from onnxsparse.math.values import Array
from onnxsparse.solvers.least_squares import Refit, solver_of
from onnxsparse.solvers.quadratic import Quadratic, mean_errors

Choose = Callable[[Array], Array]
"""From the importance of every weight of the matrix to a mask of what is kept."""


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer as a problem of numbers: its dense matrix, its blocks, and how much each row matters."""

    dense: Array  # (rows, K)
    blocks: Sequence[Quadratic]
    sensitivity: Array  # (rows,)
    ridge: float = 1e-2
    solve: Callable[[Quadratic, Array, float], Refit] = solver_of

    @cached_property
    def refits(self) -> list[Refit]:
        return [self.solve(block, self.dense[block.outputs], self.ridge) for block in self.blocks]

    def bias(self, rows: Array) -> Array:
        """The best bias of every row."""
        found = np.zeros(len(self.dense))
        for block in self.blocks:
            found[block.outputs] = block.bias(rows[block.outputs])
        return found

    def cost(self, rows: Array) -> float:
        """The error of all rows, each weighed by how much it matters."""
        return float(self.sensitivity @ mean_errors(self.blocks, rows))


@dataclass(frozen=True, eq=False)
class Fitted:
    """A mask of a layer and the weights under it."""

    mask: Array
    rows: Array


def rounds(layer: Layer, goals: Sequence[Choose]) -> Iterator[Fitted]:
    """The layer after each goal."""
    rows, diagonals = _joined(layer, [(refit.block, refit.start()) for refit in layer.refits])
    mask: Array = np.ones(layer.dense.shape, bool)
    for place, choose in enumerate(goals):
        mask = choose(importance(layer, rows, diagonals, mask)) & mask
        more = place + 1 < len(goals)
        done = [(one.block, one.under(mask[one.block.outputs], rows[one.block.outputs], more)) for one in layer.refits]
        rows, diagonals = _joined(layer, done)
        yield Fitted(mask, rows)


def importance(layer: Layer, rows: Array, diagonals: Array, mask: Array) -> Array:
    """What the removal of each weight costs, as float32 with a largest of 1; nothing where it is gone."""
    cost = layer.sensitivity[:, None] * np.square(rows) / diagonals
    largest = float(cost.max(initial=0.0))
    scaled = np.sqrt(cost / largest) if largest > 0 else cost  # the root, for the range of float32
    tiny = np.finfo(np.float32).tiny
    return np.where(mask, np.maximum(scaled, tiny * (layer.dense != 0)), 0.0).astype(np.float32)


def _joined(layer: Layer, parts: Sequence[tuple[Quadratic, tuple[Array, Array]]]) -> tuple[Array, Array]:
    rows, diagonals = np.zeros_like(layer.dense), np.ones_like(layer.dense)
    for block, (own, diagonal) in parts:
        rows[block.outputs], diagonals[block.outputs] = own, diagonal
    return rows, diagonals


__all__ = ["Choose", "Fitted", "Layer", "importance", "rounds"]
