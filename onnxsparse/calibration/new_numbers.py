"""New numbers of stored tensors while a model is calibrated: in memory up to a size, in a file beyond it.

The file is a temporary one without a name: it is gone with its owner, however that ends. What a checkpoint holds
already is read from there.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import partial
from typing import IO

import numpy as np

from onnxsparse.errors import OutputError
from onnxsparse.math.values import Array

HELD = 1 << 28
"""Bytes in memory."""
SMALL = 1 << 16
"""Bytes of an array that always stays there."""


class Spill:
    """Arrays in a file without a name."""

    def __init__(self, folder: str | None = None) -> None:
        self._folder, self._size = folder, 0
        self._file: IO[bytes] | None = None

    def put(self, array: Array) -> Callable[[], Array]:
        """What gives the array back, read from the file."""
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 it is closed with its owner
                weakref.finalize(self, self._file.close)
            self._file.seek(self._size)
            self._file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            self._file.flush()
        except OSError as error:
            where = self._folder or tempfile.gettempdir()
            raise OutputError(f"cannot write to the folder {where}: {error.strerror or error}") from error
        offset, self._size = self._size, self._size + array.nbytes
        return partial(self._read, offset, array.dtype, array.shape)

    def mapped(self, array: Array) -> Array:
        """The array, mapped from the file."""
        offset = self._size
        self.put(array)
        assert self._file is not None
        found: Array = np.memmap(self._file, array.dtype, "r", offset, array.shape)
        return found

    def _read(self, offset: int, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> Array:
        assert self._file is not None
        found: Array = np.empty(shape, dtype)
        self._file.seek(offset)
        if self._file.readinto(found.reshape(-1).view(np.uint8).data) != found.nbytes:  # type: ignore[attr-defined]
            raise OutputError("a temporary file became shorter while it was read")
        return found


class Read(Mapping[str, Array]):
    """Arrays by name, each read when it is asked for."""

    def __init__(self, reads: Mapping[str, Callable[[], Array]]) -> None:
        self._reads = reads

    def __getitem__(self, name: str) -> Array:
        return self._reads[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._reads)

    def __len__(self) -> int:
        return len(self._reads)


class NewNumbers(MutableMapping[str, Array]):
    """Arrays by name."""

    def __init__(self, folder: str | None = None, held: int = HELD) -> None:
        self._spill, self._left = Spill(folder), held
        self._held: dict[str, Array] = {}
        self._elsewhere: dict[str, Callable[[], Array]] = {}
        self.fresh: dict[str, None] = {}
        """The names that were set since `taken` was called."""

    def taken(self) -> list[str]:
        """The names that were set since the last time."""
        names = list(self.fresh)
        self.fresh.clear()
        return names

    def known(self, name: str, read: Callable[[], Array]) -> None:
        """Have numbers that are kept elsewhere."""
        self._drop(name)
        self._elsewhere[name] = read

    def aside(self, array: Array) -> Array:
        """An array that may be large, such as a mask: as it is, or mapped from the file."""
        if array.nbytes <= max(self._left, SMALL):
            self._left -= array.nbytes
            return array
        return self._spill.mapped(array)

    def __setitem__(self, name: str, array: Array) -> None:
        self._drop(name)
        self.fresh[name] = None
        if array.nbytes <= max(self._left, SMALL):
            self._held[name] = array
            self._left -= array.nbytes
        else:
            self._elsewhere[name] = self._spill.put(array)

    def __getitem__(self, name: str) -> Array:
        return self._held[name] if name in self._held else self._elsewhere[name]()

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)
        self._drop(name)

    def _drop(self, name: str) -> None:
        held = self._held.pop(name, None)
        self._left += 0 if held is None else held.nbytes
        self._elsewhere.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self._held or name in self._elsewhere

    def __iter__(self) -> Iterator[str]:
        yield from self._held
        yield from self._elsewhere

    def __len__(self) -> int:
        return len(self._held) + len(self._elsewhere)


__all__ = ["NewNumbers", "Read", "Spill"]
