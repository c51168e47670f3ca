"""Arrays with samples along the first axis, wherever they lie: in memory, in a file, or in many files."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from onnxsparse.data.stored import Stored
from onnxsparse.math.values import Array

CACHE = 1 << 30
"""Bytes of compressed files that are kept at a time."""

OPEN = 256
"""Files that are open at a time."""


class Kind(Protocol):
    """What an array says of itself before it is read."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...


class Column(Kind, Protocol):
    """What can be asked for some of its samples."""

    def __getitem__(self, rows: Any) -> Array: ...


class Shelf:
    """Arrays by key. They go when too many are open, or too many bytes are loaded, the longest unused first."""

    def __init__(self, limit: int = CACHE) -> None:
        self._limit, self._held = limit, 0
        self._open: OrderedDict[Any, Stored] = OrderedDict()
        self._loaded: OrderedDict[Any, Array] = OrderedDict()

    def get(self, key: Any, read: Callable[[], Stored | Array]) -> Column:
        for known in (self._open, self._loaded):
            if key in known:
                known.move_to_end(key)
                return known[key]
        return self._keep(key, read())

    def _keep(self, key: Any, array: Stored | Array) -> Column:
        if isinstance(array, Stored):
            self._open[key] = array
            if len(self._open) > OPEN:
                self._open.popitem(last=False)
            return array
        self._loaded[key] = array
        self._held += array.nbytes
        while self._held > self._limit and len(self._loaded) > 1:
            self._held -= self._loaded.popitem(last=False)[1].nbytes
        return array


class Turned:
    """An array whose samples lie along another axis, with them first; it is read whole."""

    def __init__(self, column: Column, axis: int) -> None:
        self._column, self._axis = column, axis
        self._array: Array | None = None
        sizes = column.shape
        self.shape, self.dtype = (sizes[axis], *sizes[:axis], *sizes[axis + 1 :]), column.dtype

    def __getitem__(self, rows: Any) -> Array:
        if self._array is None:
            self._array = np.moveaxis(np.asarray(self._column[...]), self._axis, 0)
        return np.asarray(self._array[rows])


class Joined:
    """The arrays of several files as one, each opened when one of its samples is wanted."""

    def __init__(self, parts: Sequence[Callable[[], Column]], counts: Sequence[int], like: Kind) -> None:
        self._parts = parts
        self._starts = np.concatenate([[0], np.cumsum(counts)])
        self.shape = (int(self._starts[-1]), *like.shape[1:])
        self.dtype = like.dtype

    def __getitem__(self, rows: Any) -> Array:
        rows = slice(None) if rows is Ellipsis else rows
        wanted = np.arange(self.shape[0])[rows] if isinstance(rows, slice) else np.asarray(rows)
        if len(wanted) and not 0 <= wanted.min() <= wanted.max() < self.shape[0]:
            raise IndexError(f"rows {wanted.min()} to {wanted.max()} of {self.shape[0]} samples")
        out = np.empty((len(wanted), *self.shape[1:]), self.dtype)
        part_of = np.searchsorted(self._starts, wanted, "right") - 1
        for part in np.unique(part_of):
            here = np.flatnonzero(part_of == part)
            out[here] = self._parts[part]()[wanted[here] - self._starts[part]]
        return out
