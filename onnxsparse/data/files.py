"""Arrays in files: `.npy` and `.npz`. Nothing in either is ever executed, and damage of any kind is one line.

1. A member of an `.npz` that is stored as it is (`numpy.savez`) is read row by row: it costs no memory of its own.
2. A compressed member (`numpy.savez_compressed`) has to be loaded whole, and so has one in Fortran order.
3. Shape and type are read from the first bytes of either.
4. What is read row by row is read once as a whole before, and its checksum looked at.
"""

from __future__ import annotations

import errno
import os
import struct
import warnings
import weakref
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from onnxsparse.data.stored import Stored, mark_of, open_rows
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
