"""Least squares over the weights that are kept, for all rows of a block, and what the next removal of each would cost.

With the Gram matrix G, the products c with what is wanted, the dense weights v and a ridge r towards them, the kept
weights K of a row are

    w_K = (G_KK + r I)^-1 (c_K + r v_K)

and to take one more, i, away and refit costs w_i^2 / [(G_KK + r I)^-1]_ii (Optimal Brain Surgeon, Hassibi and Stork).

1. `Exact` inverts for each row; rows with the same mask are done together.
2. `Shared` is for large layers: the costs are those of the first inverse, which all rows share, and the weights come
   from conjugate gradients on all rows at once, each in the space of its own mask. What it multiplies is rounded to
   float32 where that is faster; sums of residuals are in float64.
3. Which of the two is taken depends on the shape alone: see `solver_of`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np

from onnxsparse.math.values import Array
from onnxsparse.solvers.quadratic import Quadratic

EXACT = 2.5e11
"""Rows times the cube of the inputs up to which each row has an inverse of its own: some ten seconds."""
STEPS, CLOSE = 40, 1e-4
"""Conjugate gradients end after so many steps, or when all residuals are so small a part of the first."""


class Refit(ABC):
    """Weights of one block under a mask, starting dense."""

    name: str

    def __init__(self, block: Quadratic, dense: Array, ridge: float) -> None:
        self.block, self.dense, self.ridge = block, dense, block.ridge(ridge)
        self.damped = block.gram + self.ridge * np.eye(len(block.gram))
        self.wanted = block.cross.T + self.ridge * dense

    @abstractmethod
    def start(self) -> tuple[Array, Array]:
        """All weights refitted, and the diagonal of the inverse for each."""

    @abstractmethod
    def under(self, mask: Array, rows: Array, more: bool) -> tuple[Array, Array]:
        """The rows under a mask, and the diagonals of the inverses where `more` is to go.

        `rows` are those under the mask before.
        """


class Exact(Refit):
    name = "rows"

    def start(self) -> tuple[Array, Array]:
        inverse = np.linalg.inv(self.damped)
        rows = self.wanted @ inverse
        return rows, np.broadcast_to(np.diagonal(inverse), rows.shape)

    def under(self, mask: Array, rows: Array, more: bool) -> tuple[Array, Array]:
        found, diagonals = np.zeros_like(self.dense), np.ones_like(self.dense)
        for same in _alike(mask):
            kept = np.flatnonzero(mask[same[0]])
            if not len(kept):
                continue
            part, wanted = self.damped[np.ix_(kept, kept)], self.wanted[np.ix_(same, kept)]
            if more:
                inverse = np.linalg.inv(part)
                found[np.ix_(same, kept)] = wanted @ inverse
                diagonals[np.ix_(same, kept)] = np.diagonal(inverse)
            else:
                found[np.ix_(same, kept)] = np.linalg.solve(part, wanted.T).T
        return found, diagonals


def _alike(mask: Array) -> Iterator[Array]:
    """The rows of each mask that there is, in the order of their first."""
    known: dict[bytes, list[int]] = {}
    for row, bits in enumerate(np.packbits(mask, axis=1)):
        known.setdefault(bits.tobytes(), []).append(row)
    return (np.array(rows) for rows in known.values())


class Shared(Refit):
    name = "shared"

    def __init__(self, block: Quadratic, dense: Array, ridge: float) -> None:
        super().__init__(block, dense, ridge)
        self._narrow = self.damped.astype(np.float32)
        self._diagonal: Array = np.empty(0)

    def start(self) -> tuple[Array, Array]:
        inverse = np.linalg.inv(self.damped)
        self._diagonal = np.diagonal(inverse).copy()
        rows = self.wanted @ inverse
        return rows, np.broadcast_to(self._diagonal, rows.shape)

    def under(self, mask: Array, rows: Array, more: bool) -> tuple[Array, Array]:
        found = np.where(mask, rows, 0.0)
        residual = np.where(mask, self.wanted - found @ self.damped, 0.0)
        first = np.einsum("ok,ok->o", self.wanted, self.wanted)
        way, size = residual.copy(), np.einsum("ok,ok->o", residual, residual)
        for _ in range(STEPS):
            if not (size > CLOSE**2 * first).any():
                break
            product = np.where(mask, (way.astype(np.float32) @ self._narrow).astype(np.float64), 0.0)
            curvature = np.einsum("ok,ok->o", way, product)
            step = np.divide(size, curvature, out=np.zeros_like(size), where=curvature > 0)
            found += step[:, None] * way
            residual -= step[:, None] * product
            before, size = size, np.einsum("ok,ok->o", residual, residual)
            way = residual + np.divide(size, before, out=np.zeros_like(size), where=before > 0)[:, None] * way
        return found, np.broadcast_to(self._diagonal, found.shape)


def solver_of(block: Quadratic, dense: Array, ridge: float) -> Refit:
    """Rows alone where that is affordable, by a rule of shapes."""
    rows, size = dense.shape
    return (Exact if rows * float(size) ** 3 <= EXACT else Shared)(block, dense, ridge)


__all__ = ["Exact", "Refit", "Shared", "solver_of"]
