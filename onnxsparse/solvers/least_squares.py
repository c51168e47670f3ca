"""Least squares over the weights that are kept, for all rows of a block, and what the next removal of each would cost.

With the Gram matrix G, the products c with what is wanted, the dense weights v and a ridge r towards them, H = G + r I
and b = c + r v, the kept weights K of a row, and what it costs to take more of them, R, away and refit (Optimal Brain
Surgeon, Hassibi and Stork), are with P = H_KK^-1

    w_K = P b_K        w_R (P_RR)^-1 w_R, of a single weight w_i^2 / P_ii

1. `Exact` has a factor for each row; rows with the same mask are done together. Where few weights R are gone it comes
   from the inverse of all, which the rows share: P = [H^-1]_KK - [H^-1]_KR ([H^-1]_RR)^-1 [H^-1]_RK.
2. `Shared` is for large layers: while much is kept, weights come from conjugate gradients on all rows at once, each
   in the space of its own mask, and P_ii lies between that of all weights, [H^-1]_ii, and that of a weight alone,
   1 / H_ii, by the share that is kept. Where that takes less, rows have factors of what they keep. Errors are 1 to 3
   per cent above those of `Exact`, and far below those of one pass of SparseGPT (`blocked`), whose masks cannot be
   taken back. What is multiplied is rounded to float32 where that is faster; sums of residuals are in float64.
3. `Few` is `Shared` where there are fewer positions than inputs: H is never made, nor a factor of a row.
4. Which of them is taken depends on the shape alone: see `solver_of`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np

from onnxsparse.errors import ModelError
from onnxsparse.math.values import Array
from onnxsparse.solvers.jobs import each
from onnxsparse.solvers.quadratic import Factored, Quadratic

EXACT = 2e10
"""Rows times the cube of the inputs up to which each row has a factor of its own: a second for all rounds."""
STEPS, ON_THE_WAY, CLOSE = 30, 12, 1e-4
"""Conjugate gradients end after so many steps, fewer where more is to go, or when all residuals are so small a part of
the first. As the diagonal of H is scaled to 1 they get as far as 40 and 20 did without (96 rows of 1536 of a sentence
model), in two thirds of the time."""
FACTORS = 0.45
"""Rows have factors of their own where the cube of what they keep is at most so much of the square of their inputs
times the steps: that takes less time then than conjugate gradients, and is exact."""
TENS = (1e-8, 1e-6, 1e-4, 1e-2, 1.0)
"""What is added to a diagonal, as shares of its mean, where a matrix is not positive definite."""
AT_ONCE = 1 << 22
"""Weights that conjugate gradients look at together."""
JOBS = 8
"""Into how many jobs the rows of a block are dealt out."""
LEAF = 48
"""Triangular matrices up to this size are inverted as they are."""

Corners = Callable[[Array], Array]
"""From columns (sets, size) to the entries of P between those of each set."""


class Refit(ABC):
    """Weights of one block under a mask, starting dense. Columns of one number in `groups` are removed together."""

    name: str

    def __init__(self, block: Quadratic, dense: Array, ridge: float, groups: Array | None = None) -> None:
        self.block, self.dense, self.ridge, self.groups = block, dense, block.ridge(ridge), groups

    @cached_property
    def damped(self) -> Array:
        gram = self.block.gram
        return gram + self.ridge * np.eye(len(gram))

    @cached_property
    def wanted(self) -> Array:
        found: Array = self.block.cross.T + self.ridge * self.dense
        return found

    @cached_property
    def factor(self) -> Array:
        """F with F^T F = H^-1."""
        return inverse_factor(self.damped)

    @cached_property
    def full(self) -> Array:
        """All weights refitted."""
        return solved(self.factor, self.wanted)

    @cached_property
    def diagonal(self) -> Array:
        """Of H^-1."""
        return squares(self.factor)

    @property
    def corners(self) -> Corners:
        """Of H^-1."""
        return _corners(self.factor)

    def start(self) -> tuple[Array, Array]:
        """All weights refitted, and what each would cost; those that go together share the cost evenly."""
        return self.full, costs(self.full, self.diagonal, self.groups, self.corners)

    def times(self, rows: Array) -> Array:
        """The product of rows and H."""
        found: Array = rows @ self.damped
        return found

    def gains(self, rows: Array, mask: Array) -> Array:
        """By how much the error falls at least when a single weight that is gone comes back."""
        found = np.square(self.wanted - self.times(rows)) / (self.block.squares + self.ridge)
        return np.where(mask, 0.0, found)

    @abstractmethod
    def under(self, mask: Array, rows: Array, more: bool) -> tuple[Array, Array]:
        """The rows under a mask, and what each of the kept weights would cost where `more` is to go.

        `rows` are those under the mask before.
        """


def inverse_factor(matrix: Array) -> Array:
    """F with F^T F the inverse of a positive definite matrix: its Cholesky factor, inverted."""
    return _lower_inverse(cholesky(matrix))


def cholesky(matrix: Array) -> Array:
    """The lower factor; where rounding has taken what makes a matrix definite, with as little more on the diagonal as
    gives that back."""
    with suppress(np.linalg.LinAlgError):
        return np.linalg.cholesky(matrix)
    size = matrix.shape[-1]
    mean = np.maximum(np.trace(matrix, axis1=-2, axis2=-1) / size, np.finfo(np.float64).tiny)
    for more in TENS:
        with suppress(np.linalg.LinAlgError):
            return np.linalg.cholesky(matrix + more * np.multiply.outer(mean, np.eye(size)))
    raise ModelError("the inputs of a layer have no finite moments on these samples: look for numbers that overflow")


def _lower_inverse(lower: Array) -> Array:
    """By halves, so that nearly all of the work is products of matrices."""
    size = len(lower)
    if size <= LEAF:
        return np.tril(np.linalg.inv(lower))
    half, found = size // 2, np.zeros_like(lower)
    first, last = _lower_inverse(lower[:half, :half]), _lower_inverse(lower[half:, half:])
    found[:half, :half], found[half:, half:] = first, last
    found[half:, :half] = last @ (-lower[half:, :half] @ first)
    return found


def solved(factor: Array, wanted: Array) -> Array:
    """Rows w with H w = wanted."""
    found: Array = (wanted @ factor.T) @ factor
    return found


def squares(factor: Array) -> Array:
    """The sum of the squares of each column: of a factor, the diagonal of the inverse."""
    found: Array = np.einsum("ij,ij->j", factor, factor)
    return found


def _corners(factor: Array) -> Corners:
    """Entries of F^T F."""

    def corners(columns: Array) -> Array:
        sides = factor[:, columns].transpose(1, 0, 2)
        found: Array = np.matmul(sides.transpose(0, 2, 1), sides)
        return found

    return corners


def costs(rows: Array, diagonal: Array, groups: Array | None, corners: Corners) -> Array:
    """What the removal of each weight costs, or of each set of weights in a row, shared out evenly among them."""
    if groups is None:
        return np.square(rows) / diagonal
    found = np.empty_like(rows)
    for columns in _sets(groups):
        inside = rows[:, columns]
        against = np.linalg.solve(corners(columns), inside.transpose(1, 2, 0)).transpose(2, 0, 1)
        found[:, columns] = (inside * against).mean(axis=2, keepdims=True)
    return np.maximum(found, 0.0)


def _sets(groups: Array) -> Iterator[Array]:
    """The columns of each group, those of one size together as (groups, size)."""
    _, place, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.argsort(place, kind="stable")
    for size in np.unique(sizes):
        yield order[sizes[place[order]] == size].reshape(-1, size)


def _square(matrix: Array, places: Array) -> Array:
    """Some rows and columns, twice as fast as by np.ix_."""
    return matrix.take(places, 0).take(places, 1)


class Exact(Refit):
    name = "rows"

    @cached_property
    def inverse(self) -> Array:
        found: Array = self.factor.T @ self.factor
        return found

    def under(self, mask: Array, rows: Array, more: bool) -> tuple[Array, Array]:
        found, cost = np.zeros_like(self.dense), np.zeros_like(self.dense)
        sets = list(_alike(mask))
        sizes = [int(np.count_nonzero(mask[same[0]])) for same in sets]
        if any(2 * size > mask.shape[1] for size in sizes):
            _ = self.full, self.inverse  # once, before they go into processes
        jobs = [(mask, sets[first::JOBS], more) for first in range(min(JOBS, len(sets)))]
        work = float(sum(min(size, mask.shape[1] - size) ** 3 for size in sizes))
        for done in each(self._of_sets, jobs, work):
            for place, own, paid in done:
                found[place], cost[place] = own, paid
        return found, cost

    def _of_sets(self, mask: Array, sets: Sequence[Array], more: bool) -> list[tuple[Any, Array, Array | float]]:
        """Where the kept weights of rows with the same mask lie, what they are, and what they cost."""
        done = []
        for same in sets:
            kept, gone = np.flatnonzero(mask[same[0]]), np.flatnonzero(~mask[same[0]])
            if len(kept):
                few = len(gone) < len(kept)
                own, paid = (self._without if few else self._among)(same, kept, gone, more)
                done.append((np.ix_(same, kept), own, paid))
        return done

    def _among(self, same: Array, kept: Array, gone: Array, more: bool) -> tuple[Array, Array | float]:
        """From the matrix of those that are kept."""
        part, wanted = _square(self.damped, kept), self.wanted[np.ix_(same, kept)]
        if not more:
            return np.linalg.solve(part, wanted.T).T, 0.0
        factor = inverse_factor(part)
        rows = solved(factor, wanted)
        return rows, costs(rows, squares(factor), self._groups(kept), _corners(factor))

    def _without(self, same: Array, kept: Array, gone: Array, more: bool) -> tuple[Array, Array | float]:
        """From the inverse of all."""
        part, beside = _square(self.inverse, gone), self.inverse.take(gone, 0).take(kept, 1)
        full = self.full[same]
        if not more:
            return full[:, kept] - np.linalg.solve(part, full[:, gone].T).T @ beside, 0.0
        factor = inverse_factor(part)
        beside = factor @ beside
        rows, diagonal = full[:, kept] - (full[:, gone] @ factor.T) @ beside, self.diagonal[kept] - squares(beside)
        whole, less = _corners(self.factor), _corners(beside)
        return rows, costs(rows, diagonal, self._groups(kept), lambda one: whole(kept[one]) - less(one))

    def _groups(self, kept: Array) -> Array | None:
        return None if self.groups is None else self.groups[kept]


def _alike(mask: Array) -> Iterator[Array]:
    """The rows of each mask that there is, in the order of their first."""
    known: dict[bytes, list[int]] = {}
    for row, bits in enumerate(np.packbits(mask, axis=1)):
        known.setdefault(bits.tobytes(), []).append(row)
    return (np.array(rows) for rows in known.values())


class Shared(Exact):
    name = "shared"

    def under(self, mask: Array, rows: Array, more: bool) -> tuple[Array, Array]:
        steps = ON_THE_WAY if more else STEPS
        if self._few_are_kept(mask, steps):
            return super().under(mask, rows, more)
        found = self.descended(mask, rows, steps)
        if not more:
            return found, np.zeros_like(found)
        share = mask.mean()
        if self.groups is None:
            return found, np.square(found) * (self.block.squares + self.ridge) ** (1 - share) / self.diagonal**share
        return found, costs(found, self.diagonal, self.groups, self.corners)

    def _few_are_kept(self, mask: Array, steps: int) -> bool:
        """Whether factors take less than the steps: the numbers of kept weights alone decide."""
        kept = np.count_nonzero(mask, axis=1).astype(np.float64)
        return bool((kept**3).sum() <= FACTORS * steps * mask.size * mask.shape[1])

    def descended(self, mask: Array, rows: Array, steps: int) -> Array:
        """Conjugate gradients under a mask, from some rows on: so many rows at a time that memory stays small."""
        found = np.empty_like(rows)
        step = max(1, AT_ONCE // max(rows.shape[1], 1))
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            found[part] = self._descended(mask[part], rows[part], self.wanted[part], steps)
        return found

    def _descended(self, mask: Array, rows: Array, wanted: Array, steps: int) -> Array:
        found, moved = np.where(mask, rows, 0.0), np.zeros_like(rows)
        residual = np.where(mask, (wanted - self.times(found)) * self._scale, 0.0)
        first = np.einsum("ok,ok,k->o", wanted, wanted, np.square(self._scale))
        way, size = residual.copy(), np.einsum("ok,ok->o", residual, residual)
        for _ in range(steps):
            if not (size > CLOSE**2 * first).any():
                break
            product = np.where(mask, self.roughly(way.astype(np.float32)).astype(np.float64), 0.0)
            curvature = np.einsum("ok,ok->o", way, product)
            step = np.divide(size, curvature, out=np.zeros_like(size), where=curvature > 0)
            moved += step[:, None] * way
            residual -= step[:, None] * product
            before, size = size, np.einsum("ok,ok->o", residual, residual)
            way = residual + np.divide(size, before, out=np.zeros_like(size), where=before > 0)[:, None] * way
        found += moved * self._scale
        return found

    def roughly(self, rows: Array) -> Array:
        """The product of scaled rows and the scaled H in float32."""
        found: Array = rows @ self._narrow
        return found

    @cached_property
    def _scale(self) -> Array:
        """Of each input, so that the diagonal of H is 1: inputs of large and of small variance are settled alike."""
        found: Array = (self.block.squares + self.ridge) ** -0.5
        return found

    @cached_property
    def _narrow(self) -> Array:
        found: Array = self.damped.astype(np.float32)
        found *= self._scale.astype(np.float32)
        found *= self._scale[:, None].astype(np.float32)
        return found


class Few(Shared):
    """By the inputs X of n positions in the place of H = X^T X / n + r I, which is never made: with the factor of a
    matrix of the size n alone, L L^T = X X^T + n r I,

        H^-1 = (I - S^T S) / r    S = L^-1 X
    """

    name = "shared, of few positions"
    block: Factored

    def _few_are_kept(self, mask: Array, steps: int) -> bool:
        return False  # the factors would be those of H

    @cached_property
    def _inner(self) -> Array:
        x = self.block.x
        found: Array = np.linalg.cholesky(x @ x.T + self.block.over * self.ridge * np.eye(len(x)))
        return found

    @cached_property
    def _side(self) -> Array:
        found: Array = np.linalg.solve(self._inner, self.block.x)
        return found

    @cached_property
    def full(self) -> Array:
        left = self.block.y - self.block.x @ self.dense.T
        found: Array = self.dense + np.linalg.solve(self._inner, left).T @ self._side
        return found

    @cached_property
    def diagonal(self) -> Array:
        found: Array = (1 - squares(self._side)) / self.ridge
        return found

    @property
    def corners(self) -> Corners:
        inside = _corners(self._side)
        return lambda columns: (np.eye(columns.shape[1]) - inside(columns)) / self.ridge

    def times(self, rows: Array) -> Array:
        x = self.block.x
        found: Array = (rows @ x.T) @ x / self.block.over + self.ridge * rows
        return found

    def roughly(self, rows: Array) -> Array:
        x = self._rough
        found: Array = (rows @ x.T) @ x + (self.ridge * np.square(self._scale)).astype(np.float32) * rows
        return found

    @cached_property
    def _rough(self) -> Array:
        found: Array = (self.block.x * (self.block.over**-0.5 * self._scale)).astype(np.float32)
        return found


def solver_of(block: Quadratic, dense: Array, ridge: float, groups: Array | None = None) -> Refit:
    """Rows alone where that is affordable, by a rule of shapes."""
    rows, size = dense.shape
    large = Few if isinstance(block, Factored) else Shared
    return (Exact if rows * float(size) ** 3 <= EXACT else large)(block, dense, ridge, groups)


__all__ = ["Exact", "Few", "Refit", "Shared", "inverse_factor", "solved", "solver_of"]
