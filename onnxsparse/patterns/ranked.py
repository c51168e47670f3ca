"""A weight and its ranks in pieces of memory: flat and in stored order, so that a kernel need not know the layout."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxsparse.scores.score import Score
from onnxsparse.values import BLOCK, Array, Values, blocks_of, storage_axes

Index = tuple[slice, ...]


class RankedBlocks:
    """Pieces of whole cells in stored order, each with the ranks of its elements as a flat array; many times over."""

    def __init__(self, values: Values, score: Score, cell: tuple[int, ...] = (1, 1, 1, 1)) -> None:
        self._values, self._score, self._cell = values, score, cell
        self._axes = storage_axes(values.stored)
        self._whole = None if score.elementwise else score.rank(values)

    def __iter__(self) -> Iterator[tuple[Index, Array]]:
        for index in self.indices():
            ranks = self._score.rank(self._values[index]) if self._whole is None else self._whole[index]
            yield index, flat(ranks, self._axes)

    def indices(self) -> Iterator[Index]:
        """Where the pieces are."""
        return blocks_of(self._values.stored, BLOCK, self._cell)

    def ranks(self) -> Iterator[Array]:
        """The ranks alone."""
        return (ranks for _, ranks in self)

    def unflatten(self, lanes: Array, index: Index) -> Array:
        """A flat array of a piece as a view with the axes of the weight."""
        piece: Array = lanes.reshape(stored_shape(index, self._axes)).transpose(np.argsort(self._axes))
        return piece


def flat(piece: Array, axes: tuple[int, ...]) -> Array:
    """A piece as a flat array in the order of the given axes."""
    lanes: Array = piece.transpose(axes).reshape(-1)
    return lanes


def stored_shape(index: Index, axes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a piece in the order of the given axes."""
    return tuple(index[axis].stop - index[axis].start for axis in axes)
