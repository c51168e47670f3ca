"""Strided views of flat memory: what Transpose, Reshape, Slice, Split, Expand and Tile make of a stored array.

Every axis is a list of pieces `(size, stride)`, slow to fast, so that a Reshape behind a Transpose still has a form.
Nothing is copied or read; a movement that has no such form gives None, and whoever asked copies the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from onnxsparse.graph.storage import Array

Piece = tuple[int, int]
Axis = tuple[Piece, ...]
Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Window:
    """The flat position of the first element, and for each axis the pieces it runs over."""

    offset: int
    axes: tuple[Axis, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Window:
        """All of an array in C order."""
        axes: list[Axis] = []
        stride = 1
        for size in reversed(shape):
            axes.append(((size, stride),))
            stride *= size
        return cls(0, tuple(reversed(axes)))

    @property
    def shape(self) -> Sizes:
        return tuple(math.prod(size for size, _ in axis) for axis in self.axes)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def bounds(self) -> tuple[int, int]:
        """The flat positions between which all elements lie."""
        reach = [(size - 1) * stride for axis in self.axes for size, stride in axis]
        if 0 in self.shape:
            return 0, 0
        return self.offset + sum(min(0, one) for one in reach), self.offset + sum(max(0, one) for one in reach) + 1

    def transposed(self, perm: Sequence[int]) -> Window:
        return Window(self.offset, tuple(self.axes[axis] for axis in perm))

    def reshaped(self, shape: Sequence[int]) -> Window | None:
        """The same elements in the same order under other axes."""
        if math.prod(shape) != self.size:
            return None
        if 0 in shape:
            return Window(self.offset, tuple(((size, 0),) for size in shape))
        pieces = list(merged(piece for axis in self.axes for piece in axis))
        axes = [_taken(pieces, size) for size in reversed(shape)]
        return None if None in axes else Window(self.offset, tuple(axis for axis in reversed(axes) if axis is not None))

    def sliced(self, axis: int, start: int, count: int, step: int) -> Window | None:
        """`count` elements of an axis from `start`, `step` apart."""
        run = merged(self.axes[axis])
        if len(run) > 1:
            return None
        stride = run[0][1] if run else 0
        cut = (*self.axes[:axis], ((count, stride * step),), *self.axes[axis + 1 :])
        return Window(self.offset + (start * stride if count else 0), cut)

    def spread(self, shape: Sequence[int]) -> Window:
        """Broadcast to a shape: what is new or of size 1 repeats."""
        missing = len(shape) - len(self.axes)
        have = (1,) * missing + self.shape
        axes = ((),) * missing + self.axes
        fitted = (axis if size == wanted else ((wanted, 0),) for axis, size, wanted in zip(axes, have, shape))
        return Window(self.offset, tuple(fitted))

    def tiled(self, repeats: Sequence[int]) -> Window:
        axes = (((times, 0), *axis) if times != 1 else axis for times, axis in zip(repeats, self.axes))
        return Window(self.offset, tuple(axes))

    def of(self, flat: Array) -> Array:
        """The elements, as a view wherever memory allows."""
        shape = self.shape
        if 0 in shape:
            return np.empty(shape, flat.dtype)
        pieces = [piece for axis in self.axes for piece in merged(axis)]
        width = flat.itemsize
        view = np.lib.stride_tricks.as_strided(
            flat[self.offset :], [size for size, _ in pieces], [stride * width for _, stride in pieces], writeable=False
        )
        return view.reshape(shape)

    def at(self, positions: Array) -> Array:
        """The flat positions in memory of flat positions of this look."""
        found = np.full(positions.shape, self.offset, np.int64)
        rest = positions
        for size, stride in reversed([piece for axis in self.axes for piece in merged(axis)]):
            rest, digit = np.divmod(rest, size)
            found += digit * stride
        return found

    def without_repeats(self) -> Window:
        """Axes that only repeat have size 1: the elements that differ."""
        return Window(
            self.offset, tuple(axis if any(stride for _, stride in merged(axis)) else () for axis in self.axes)
        )


def merged(pieces: Iterable[Piece]) -> list[Piece]:
    """Pieces that are neighbours in memory as one; those of size 1 say nothing."""
    found: list[Piece] = []
    for size, stride in pieces:
        if size == 1:
            continue
        if found and found[-1][1] == size * stride:
            found[-1] = (found[-1][0] * size, stride)
        else:
            found.append((size, stride))
    return found


def _taken(pieces: list[Piece], wanted: int) -> Axis | None:
    """The fastest pieces that make up an axis of `wanted` elements, taken from the list."""
    taken: list[Piece] = []
    while wanted > 1:
        if not pieces:
            return None
        size, stride = pieces.pop()
        if wanted % size == 0:
            taken.insert(0, (size, stride))
            wanted //= size
        elif size % wanted == 0:
            taken.insert(0, (wanted, stride))
            pieces.append((size // wanted, stride * wanted))
            wanted = 1
        else:
            return None
    return tuple(taken)
