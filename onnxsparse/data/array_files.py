"""Arrays in `.npy` and `.npz` files, read row by row. Nothing in either is ever executed, and damage is one line.

1. A member of an `.npz` that is stored as it is (`numpy.savez`) is read row by row: it costs no memory of its own.
2. A compressed member (`numpy.savez_compressed`) has to be loaded whole, and so has one in Fortran order.
3. Shape and type are read from the first bytes of either.
4. What is read row by row is read once as a whole before, and its checksum looked at.
"""

from __future__ import annotations

import errno
import math
import os
import struct
import warnings
import weakref
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO, Any, BinaryIO, Protocol, cast

import numpy as np

from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array

_LOCAL = struct.Struct("<4s22xHH")  # of a member's header in the zip: its mark, and the lengths of what follows it
_ENCRYPTED = 1
BLOCK = 1 << 17


@dataclass(frozen=True)
class Header:
    """What an array says of itself, and where its bytes begin after that."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    length: int


class ArrayFile(Mapping[str, Any]):
    """The arrays of an .npz, each read when it is asked for, and how large each says it is."""

    def __init__(self, path: str, loaded: Any, file: IO[bytes]) -> None:
        self._path, self._loaded = path, loaded
        self._close = weakref.finalize(self, file.close)
        self._entries = {_bare(entry.filename): entry for entry in loaded.zip.infolist()}
        self.mark = mark_of(file.fileno())
        self.sizes = {name: entry.file_size for name, entry in self._entries.items()}

    def __getitem__(self, name: str) -> Any:
        with reading(self._path):
            return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._loaded.files

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded.files)

    def __len__(self) -> int:
        return len(self._loaded.files)

    def __enter__(self) -> ArrayFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def stored(self, name: str) -> bool:
        """Whether the bytes of an array lie in the file as they are."""
        entry = self._entries[name]
        return entry.compress_type == zipfile.ZIP_STORED and not entry.flag_bits & _ENCRYPTED

    def header(self, name: str) -> Header:
        with reading(self._path), self._loaded.zip.open(self._entries[name]) as member:
            return _header(member)

    def demand_whole(self, name: str) -> None:
        """Read an array once from end to end: its bytes have to be those that were saved."""
        with reading(self._path), self._loaded.zip.open(self._entries[name]) as member:
            try:
                while member.read(BLOCK):
                    pass
            except zipfile.BadZipFile:
                raise OptionError(f"{self._path} is damaged: array '{name}' is not what was saved") from None

    def rows(self, name: str) -> Stored | Array:
        """An array that is read from the file where it is wanted; loaded where that cannot be."""
        header = self.header(name)
        if not self.stored(name) or header.fortran:
            array: Array = self[name]
            return array
        with reading(self._path):
            return open_rows(self._path, self._start(name) + header.length, header.dtype, header.shape)

    def _start(self, name: str) -> int:
        entry = self._entries[name]
        with open(self._path, "rb") as file:
            file.seek(entry.header_offset)
            mark, name_length, extra_length = _LOCAL.unpack(file.read(_LOCAL.size))
        if mark != b"PK\3\4":
            raise ValueError("the zip names a place where no member begins")
        return int(entry.header_offset + _LOCAL.size + name_length + extra_length)


def _bare(name: str) -> str:
    return name[:-4] if name.endswith(".npy") else name


def _header(file: IO[bytes]) -> Header:
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError("an array of fields")
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("pickled objects")
    return Header(dtype, shape, fortran, file.tell())


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Whatever NumPy, zipfile and zlib make of a damaged file is one line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except MemoryError:
        raise OptionError(f"{path} holds an array that does not fit into memory") from None
    except OptionError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise OptionError(f"{path} cannot be read: {os.strerror(error.errno)}") from error
        raise OptionError(f"{path} is not a NumPy file of plain arrays, or is damaged") from error


def load_arrays(path: str) -> Any:
    """An .npy as one array, an .npz as a mapping; nothing in either is ever executed."""
    if not os.path.isfile(path):
        raise OptionError(f"{path} is not a file; pass an .npz or .npy")
    with reading(path), ExitStack() as open_files:
        file = open_files.enter_context(open(path, "rb"))  # NumPy leaves its own open when it fails
        loaded = np.load(file, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        open_files.pop_all()
        return ArrayFile(path, loaded, file)


def open_npz(path: str) -> ArrayFile:
    """The arrays of an .npz; nothing of them is read yet."""
    found = load_arrays(path)
    if isinstance(found, ArrayFile):
        return found
    raise OptionError(f"{path} is not an .npz but a single array; name it .npy")


def open_npy(path: str) -> Stored | Array:
    """The array of an .npy, read from the file where it is wanted."""
    with reading(path), open(path, "rb") as file:
        header = _header(file)
        if header.fortran:
            file.seek(0)
            loaded: Array = np.load(file, allow_pickle=False)
            return loaded
        return open_rows(path, header.length, header.dtype, header.shape)


# -- Rows of an array in a file, read where they are wanted.
#
# 1. They are read, not mapped: a file that becomes shorter under a map ends the whole process.
# 2. A file that somebody writes to while it is read is noticed at the next rows, whatever was read of it before.
# 3. Neighbours are read at once, and a small array as a whole.


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


# -- Arrays with samples along the first axis, wherever they lie: in memory, in a file, or in many files.


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
