"""Rows of an array in a file, read where they are wanted.

1. They are read, not mapped: a file that becomes shorter under a map ends the whole process.
2. A file that somebody writes to while it is read is noticed at the next rows, whatever was read of it before.
3. Neighbours are read at once, and a small array as a whole.
"""

from __future__ import annotations

import math
import os
import weakref
from typing import Any, BinaryIO, cast

import numpy as np

from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array

SMALL = 1 << 20
"""Bytes up to which an array is loaded."""

Mark = tuple[int, int, int, int]


def mark_of(handle: int) -> Mark:
    """What changes when somebody writes to an open file, or puts another one in its place."""
    found = os.fstat(handle)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def changed(path: str) -> OptionError:
    return OptionError(f"{path} was changed while it was being read; run again on a file that stays as it is")


def open_rows(path: str, start: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Stored | Array:
    """An array in C order that begins somewhere in a file, loaded where it is small."""
    found = Stored(path, start, dtype, shape)
    return found[...] if math.prod(shape) * dtype.itemsize <= SMALL else found


class Stored:
    """An array in C order that begins somewhere in a file."""

    def __init__(self, path: str, start: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.dtype, self.shape = dtype, shape
        self._path, self._start = path, start
        self._file = cast(BinaryIO, open(path, "rb", buffering=0))  # noqa: SIM115 - closed with this object
        weakref.finalize(self, self._file.close)
        self._mark = mark_of(self._file.fileno())
        if self._mark[2] < start + math.prod(shape) * dtype.itemsize:
            raise ValueError("the file ends before the array does")

    def __getitem__(self, rows: Any) -> Array:
        if rows is Ellipsis:
            return self._filled(np.empty(self.shape, self.dtype), [(0, 0, math.prod(self.shape) * self.dtype.itemsize)])
        wanted = np.arange(self.shape[0])[rows] if isinstance(rows, slice) else np.asarray(rows)
        if len(wanted) and not 0 <= wanted.min() <= wanted.max() < self.shape[0]:
            raise IndexError(f"rows {wanted.min()} to {wanted.max()} of {self.shape[0]} samples")
        size = math.prod(self.shape[1:]) * self.dtype.itemsize
        runs = [(place * size, row * size, count * size) for place, row, count in _runs(wanted)]
        return self._filled(np.empty((len(wanted), *self.shape[1:]), self.dtype), runs)

    def _filled(self, out: Array, runs: list[tuple[int, int, int]]) -> Array:
        """Read each run: to where, from where, and how many bytes."""
        if not out.size:
            return out
        view = out.reshape(-1).view(np.uint8).data
        try:
            whole = all(self._read(view[to : to + size], self._start + place) for to, place, size in runs)
            same = mark_of(self._file.fileno()) == self._mark
        except OSError as error:
            raise OptionError(f"{self._path} cannot be read: {error.strerror or error}") from error
        if not whole or not same:
            raise changed(self._path)
        return out

    def _read(self, view: memoryview, place: int) -> bool:
        """Fill the view with what the file holds from there on; whether there is as much."""
        self._file.seek(place)
        while len(view):
            count = self._file.readinto(view)  # type: ignore[attr-defined]
            if not count:
                return False
            view = view[count:]
        return True


def _runs(rows: Array) -> list[tuple[int, int, int]]:
    """Neighbours in rising order: the place among the rows, the first one, and how many."""
    if not len(rows):
        return []
    starts = np.concatenate([[0], np.flatnonzero(np.diff(rows) != 1) + 1])
    counts = np.diff(np.append(starts, len(rows)))
    return list(zip(starts.tolist(), rows[starts].tolist(), counts.tolist()))
