"""Masks and weights of a layer in alternating rounds: remove what costs least, refit what is kept, and again.

1. The cost of a weight is S_o * w^2 / [H^-1]_ii: what its removal does to its output, times how much that output
   matters (`sensitivity`), so that the scale of an output row decides nothing. Weights of a row that can only go
   together (a block, a filter, the taps of a channel) have the cost of their removal together.
2. Every round goes further: geometrically in what is kept, or through N:M with a larger N.
3. In these rounds what is gone stays gone. A weight that is zero already goes before any other.
4. Exchanges come after them: the weights that are gone and would help most come back, and as many go again, those that
   cost least then. Each is kept if the error is less.
What it does not do: decide how much goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from onnxsparse.math import rank
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
    count: int | None = None
    """Of rounds to its level, where they are not those of its shape."""
    solve: Callable[[Quadratic, Array, float, Array | None], Refit] = solver_of

    def refits(self, groups: Array | None = None) -> list[Refit]:
        """Of each block; columns of one number in `groups` go together."""
        return [self.solve(block, self.dense[block.outputs], self.ridge, groups) for block in self.blocks]

    @property
    def norms(self) -> Array:
        """The root of the mean square of the input of each weight."""
        found = np.zeros_like(self.dense)
        for block in self.blocks:
            found[block.outputs] += np.sqrt(np.maximum(block.squares + np.square(block.mean_x), 0.0))
        return found

    @property
    def still(self) -> Array:
        """The weights whose inputs never vary, of the matrix."""
        found = np.zeros(self.dense.shape, bool)
        for block in self.blocks:
            found[block.outputs] = block.still
        return found

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
    """A mask of a layer, the weights under it, and what is added to the bias of each row."""

    mask: Array
    rows: Array
    bias: Array
    solved: tuple[str, ...] = ()
    """By which kinds of least squares."""


BACK, EXCHANGES = 0.2, 4
"""The share of the kept weights that come back in the first exchange (half of it in the second, a third in the third),
and how many exchanges there are."""


def rounds(layer: Layer, goals: Sequence[Choose], groups: Array | None = None, exchanges: int = 0) -> Iterator[Fitted]:
    """The layer after each goal, and after each exchange that is kept."""
    refits = layer.refits(groups)
    rows, costs = joined(layer, [(refit.block, refit.start()) for refit in refits])
    mask, solved = np.ones(layer.dense.shape, bool), kinds(refits)
    for place, choose in enumerate(goals):
        mask = choose(importance(layer, costs, mask)) & mask
        rows, costs = _under(layer, refits, mask, rows, place + 1 < len(goals))
        yield Fitted(mask, rows, layer.bias(rows), solved)
    error = layer.cost(rows) if exchanges else 0.0
    for number in range(exchanges):
        more = mask | _helpful(layer, refits, rows, mask, int(BACK / (number + 1) * mask.sum()))
        if (more == mask).all():
            return
        wider, costs = _under(layer, refits, more, rows, True)
        changed = goals[-1](importance(layer, costs, more)) & more
        final, _ = _under(layer, refits, changed, wider, False)
        less = layer.cost(final)
        if not less < error:
            return
        mask, rows, error = changed, final, less
        yield Fitted(mask, rows, layer.bias(rows), solved)


def _under(layer: Layer, refits: Sequence[Refit], mask: Array, rows: Array, more: bool) -> tuple[Array, Array]:
    """Rows under a mask, and what each kept weight would cost where `more` is to go."""
    done = [(one.block, one.under(mask[one.block.outputs], rows[one.block.outputs], more)) for one in refits]
    return joined(layer, done, mask)


def _helpful(layer: Layer, refits: Sequence[Refit], rows: Array, mask: Array, count: int) -> Array:
    """So many weights that are gone and would help most, each by itself; none that was zero from the start."""
    found = np.zeros_like(rows)
    for one in refits:
        found[one.block.outputs] = one.gains(rows[one.block.outputs], mask[one.block.outputs])
    found *= layer.sensitivity[:, None] * ((layer.dense != 0) & ~layer.still)
    return ~rank.smallest(found.reshape(-1), found.size - count).reshape(found.shape) & (found > 0)


def importance(layer: Layer, costs: Array, mask: Array) -> Array:
    """Costs of rows as those of the layer, with a largest of 1; nothing where a weight is gone, the least where its
    input never varies."""
    cost = layer.sensitivity[:, None] * np.where(layer.still, 0.0, costs)
    largest = float(cost.max(initial=0.0))
    scaled = cost / largest if largest > 0 else cost
    return np.where(mask, np.maximum(scaled, np.finfo(np.float64).tiny * (layer.dense != 0)), 0.0)


def joined(
    layer: Layer, parts: Sequence[tuple[Quadratic, tuple[Array, Array]]], mask: Array | bool = True
) -> tuple[Array, Array]:
    """Rows and costs of the layer, of those of its blocks; rows of no block, which nothing computes, are dense under
    the mask."""
    rows, costs = np.where(mask, layer.dense, 0.0), np.zeros_like(layer.dense)
    for block, (own, paid) in parts:
        rows[block.outputs], costs[block.outputs] = own, paid
    return rows, costs


def kinds(refits: Sequence[Refit]) -> tuple[str, ...]:
    """The names of the kinds of least squares, each once."""
    return tuple(dict.fromkeys(one.name for one in refits))


__all__ = ["Choose", "Fitted", "Layer", "importance", "joined", "kinds", "rounds"]
