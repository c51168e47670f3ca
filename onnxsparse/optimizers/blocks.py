"""Working through flat arrays in pieces that stay in the cache."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxsparse.values import Array

BLOCK = 1 << 15
"""Elements of a piece. Four arrays and the scratch of a piece fit into the second cache of every usual processor."""


def blocks(*arrays: Array, scratch: int = 0) -> Iterator[tuple[Array, ...]]:
    """The same piece of every array, and of `scratch` more that hold nothing and serve every piece again."""
    size = arrays[0].size
    spare = [np.empty(min(size, BLOCK), np.float32) for _ in range(scratch)]
    for start in range(0, size, BLOCK):
        stop = min(start + BLOCK, size)
        yield (*(array[start:stop] for array in arrays), *(array[: stop - start] for array in spare))


def sum_of_squares(array: Array) -> float:
    """In float64, and in one order on every machine: pair by pair inside a piece, then piece after piece."""
    total, wide = 0.0, np.empty(min(array.size, BLOCK), np.float64)
    for (piece,) in blocks(array):
        squares = wide[: piece.size]
        np.copyto(squares, piece)
        np.multiply(squares, squares, squares)
        total += float(np.add.reduce(squares))
    return total


def count_non_zero(array: Array) -> int:
    """How many elements are not 0."""
    spare = np.empty(min(array.size, BLOCK), bool)
    return sum(int(np.count_nonzero(np.not_equal(piece, 0, spare[: piece.size]))) for (piece,) in blocks(array))
