"""Blocks of the inverse of the damped empirical Fisher matrix, from gradients: what second-order pruning goes by.

    F = damp I + 1/m sum_i g_i g_i^T          of m gradients, in blocks of B neighbours along the diagonal

1. `Sums` adds outer products up: B numbers for each weight, however many gradients come.
2. `Rows` keeps the last gradients: m numbers for each weight, however large the blocks are. With the gradients of a
   block as the rows of G, Woodbury's identity needs the inverse of m by m numbers only:

       F^-1 = (I - G^T (m damp I + G G^T)^-1 G) / damp

3. The divisor m is the number of gradients that were asked for. Where fewer came, F is smaller and `damp` counts more;
   without any, F^-1 = I / damp.
4. The last block may be shorter. Sums are float32, as gradients are; inverses are computed in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from onnxsparse.math.values import Array


class Inverse(Protocol):
    """F^-1, block by block along the diagonal."""

    def diagonal(self) -> Array: ...

    def times(self, vector: Array) -> Array: ...


class Sums:
    """The outer products of gradients, added up; behind the first `count` the older ones fade."""

    def __init__(self, size: int, block: int, damp: float, count: int) -> None:
        self._size, self._damp, self._count = size, damp, count
        self._block = max(1, min(block, size))
        self.total = np.zeros((-(-size // self._block), self._block, self._block), np.float32)
        self.seen = 0

    def add(self, gradients: Array) -> None:
        """One gradient, or several as rows."""
        rows = gradients.reshape(-1, self._size)
        if self.seen >= self._count:
            self.total *= np.float32(1 - 1 / self._count)
        cells = _padded(rows, self._block).reshape(len(rows), -1, self._block).transpose(1, 2, 0)
        self.total += np.matmul(cells, cells.transpose(0, 2, 1))
        self.seen += len(rows)

    def inverse(self, keep: Array) -> DenseInverse:
        """Of the weights that are kept; the others have no part in it."""
        kept = _padded(keep.reshape(1, -1).astype(np.float64), self._block).reshape(-1, self._block)
        matrices = self.total * (kept[:, :, None] * kept[:, None, :] / self._count)
        return DenseInverse(_inverted(matrices, self._damp), self._size)


class Rows:
    """The last `count` gradients."""

    def __init__(self, size: int, count: int) -> None:
        self.rows, self.seen = np.zeros((count, size), np.float32), 0

    def add(self, gradient: Array) -> None:
        self.rows[self.seen % len(self.rows)] = gradient
        self.seen += 1

    def inverse(self, block: int | None, damp: float) -> Inverse:
        """In blocks, or without a number as one."""
        count, size = self.rows.shape
        length, rows = max(1, min(block or size, size)), self.rows[: min(self.seen, count)]
        if length > len(rows):
            return LowRankInverse(rows, length, damp, count)
        cells = _padded(rows, length).reshape(len(rows), -1, length).transpose(1, 2, 0).astype(np.float64)
        return DenseInverse(_inverted(np.matmul(cells, cells.transpose(0, 2, 1)) / count, damp), size)


class DenseInverse:
    """Blocks that are stored."""

    def __init__(self, blocks: Array, size: int) -> None:
        self.blocks, self._size = blocks, size

    def diagonal(self) -> Array:
        found: Array = np.diagonal(self.blocks, axis1=1, axis2=2).reshape(-1)[: self._size]
        return found

    def times(self, vector: Array) -> Array:
        block = self.blocks.shape[1]
        cells = _padded(vector.reshape(1, -1), block).reshape(-1, block, 1)
        found: Array = np.matmul(self.blocks, cells).reshape(-1)[: self._size]
        return found

    def cells(self, side: int) -> Array:
        """The squares of a side along the diagonal, which has to divide the blocks."""
        starts = range(0, self.blocks.shape[1], side)
        found = np.stack([self.blocks[:, at : at + side, at : at + side] for at in starts], axis=1)
        return found.reshape(-1, side, side)[: self._size // side]


class LowRankInverse:
    """Blocks as Woodbury's identity has them: only the m by m core of each is stored."""

    def __init__(self, rows: Array, block: int, damp: float, count: int) -> None:
        self._rows, self._block, self._damp = rows, block, damp
        damped = count * damp * np.eye(len(rows))
        self._cores = [np.linalg.inv(damped + cells @ cells.T) for cells in self._cells()]

    def diagonal(self) -> Array:
        pairs = zip(self._cells(), self._cores)
        return np.concatenate(
            [(1 - np.einsum("ip,ij,jp->p", g, core, g, optimize=True)) / self._damp for g, core in pairs]
        )

    def times(self, vector: Array) -> Array:
        starts = range(0, vector.size, self._block)
        pieces = zip(starts, self._cells(), self._cores)
        return np.concatenate(
            [
                (part - g.T @ (core @ (g @ part))) / self._damp
                for at, g, core in pieces
                for part in [self._part(vector, at)]
            ]
        )

    def _part(self, vector: Array, at: int) -> Array:
        return vector[at : at + self._block]

    def _cells(self) -> Iterator[Array]:
        for at in range(0, self._rows.shape[1], self._block):
            yield self._rows[:, at : at + self._block].astype(np.float64)


def _padded(rows: Array, block: int) -> Array:
    """With zeros up to whole blocks: they have no part in anything."""
    missing = -rows.shape[1] % block
    return np.pad(rows, ((0, 0), (0, missing))) if missing else rows


def _inverted(matrices: Array, damp: float) -> Array:
    if matrices.shape[1] == 1:
        return 1 / (matrices + damp)
    made: Array = np.linalg.inv(matrices + damp * np.eye(matrices.shape[1]))
    return made
