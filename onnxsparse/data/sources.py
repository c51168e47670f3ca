"""Array sources by the names of a model's inputs: in memory, in an `.npz`, or in a folder of files."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from onnxsparse.data.array_files import (
    CACHE,
    ArrayFile,
    Column,
    Header,
    Joined,
    Mark,
    Shelf,
    Stored,
    changed,
    open_npy,
    open_npz,
)
from onnxsparse.data.field import as_array
from onnxsparse.errors import OptionError, nearest
from onnxsparse.math.values import Array

SHOWN = 10


class Source(ABC):
    """Arrays by name."""

    def __init__(self, called: str) -> None:
        self.called = called
        self.notes: list[str] = []

    @property
    @abstractmethod
    def names(self) -> Sequence[str]:
        """What there is."""

    @abstractmethod
    def column(self, name: str) -> Column:
        """An array that is there."""

    def has(self, name: str) -> bool:
        return name in self.names

    def demand(self, name: str, what: str, typed: bool = False) -> Column:
        """The array, or one line that says what there is instead; a name that the user typed may be misspelt."""
        if self.has(name):
            return self.column(name)
        names = [str(known) for known in self.names]
        more = ", ..." if len(names) > SHOWN else ""
        known = f" (it has {', '.join(names[:SHOWN]) or 'none at all'}{more})"
        hint = (nearest(name, names) if typed else "") or known
        raise OptionError(f"{self.called} has no array '{name}' for {what}{hint}")


class InMemory(Source):
    """Arrays of the caller."""

    def __init__(self, arrays: Mapping[str, Any], called: str) -> None:
        super().__init__(called)
        self._arrays = arrays

    @property
    def names(self) -> Sequence[str]:
        return list(self._arrays)

    def column(self, name: str) -> Column:
        found = self._arrays[name]
        return found if isinstance(found, Stored) else as_array(found, name, self.called)


class Npz(Source):
    """The arrays of one file."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._names = _names(path)
        self._whole: set[str] = set()

    @property
    def names(self) -> Sequence[str]:
        return self._names

    def column(self, name: str) -> Column:
        with open_npz(self.called) as file:
            _look_through(file, name, name, self._whole)
            return file.rows(name)


class NpzFolder(Source):
    """Files whose arrays follow one another along the samples, in the order of the files' names."""

    def __init__(self, folder: str, files: Sequence[str], limit: int = CACHE) -> None:
        super().__init__(folder)
        self._paths = [os.path.join(folder, file) for file in files]
        self._limit, self._shelf = limit, Shelf(limit)
        self._names = _names(self._paths[0])
        self._marks: dict[str, Mark] = {}
        self._packed = 0
        self._whole: set[str] = set()

    @property
    def names(self) -> Sequence[str]:
        return self._names

    def column(self, name: str) -> Column:
        headers = [self._header(path, name) for path in self._paths]
        self._mention_packed()
        for path, header in zip(self._paths, headers):
            self._demand_like(path, name, header, headers[0])
        if not headers[0].shape:
            return self._part(self._paths[0], name)
        parts = [partial(self._part, path, name) for path in self._paths]
        return Joined(parts, [header.shape[0] for header in headers], headers[0])

    def _header(self, path: str, name: str) -> Header:
        with open_npz(path) as file:
            if name not in file:
                raise OptionError(f"{path} has no array '{name}', unlike {self._paths[0]}")
            if self._marks.setdefault(path, file.mark) != file.mark:
                raise changed(path)
            self._packed += 0 if file.stored(name) else file.sizes[name]
            _look_through(file, name, f"{path}/{name}", self._whole)
            return file.header(name)

    def _demand_like(self, path: str, name: str, header: Header, first: Header) -> None:
        if (
            header.dtype != first.dtype
            or header.shape[1:] != first.shape[1:]
            or bool(header.shape) != bool(first.shape)
        ):
            sized = header.dtype == first.dtype and len(header.shape) == len(first.shape) > 1
            raise OptionError(
                f"array '{name}' of {path} is {header.dtype} {list(header.shape)}, "
                f"which does not go on from {first.dtype} {list(first.shape)} in {self._paths[0]}"
                f"{'; bring samples to one size' if sized else ''}"
            )

    def _part(self, path: str, name: str) -> Column:
        return self._shelf.get((path, name), partial(self._read, path, name))

    def _read(self, path: str, name: str) -> Stored | Array:
        with open_npz(path) as file:
            if file.mark != self._marks[path]:
                raise changed(path)
            return file.rows(name)

    def _mention_packed(self) -> None:
        note = f"the compressed files of {self.called} are unpacked again and again; numpy.savez is faster here"
        if self._packed > self._limit and note not in self.notes:
            self.notes.append(note)


def _look_through(file: ArrayFile, name: str, key: str, known: set[str]) -> None:
    """Check once that what will be read in parts is whole; what is loaded is checked by that."""
    if key not in known and file.stored(name):
        file.demand_whole(name)
    known.add(key)


def _names(path: str) -> list[str]:
    with open_npz(path) as file:
        return list(file)


class NpyFolder(Source):
    """One file for each array, called by the name of the input."""

    def __init__(self, folder: str, files: Sequence[str]) -> None:
        super().__init__(folder)
        self._files = set(files)
        self._taken: dict[str, str] = {}

    @property
    def names(self) -> Sequence[str]:
        return sorted(file[: -len(".npy")] for file in self._files)

    def has(self, name: str) -> bool:
        return self._file(name) is not None

    def column(self, name: str) -> Column:
        file = self._file(name)
        assert file is not None
        other = self._taken.setdefault(file, name)
        if other != name:
            raise OptionError(f"{file} of {self.called} is the file of both '{other}' and '{name}'; pass an .npz")
        return open_npy(os.path.join(self.called, file))

    def _file(self, name: str) -> str | None:
        return next((file for file in file_names(name) if file in self._files), None)


def file_names(name: str) -> list[str]:
    """What the file of an input may be called: what a file's name cannot hold, or nobody likes in one, becomes `_`."""
    return [
        f"{spelt}.npy" for spelt in (name, re.sub(r'[\x00-\x1f/\\:*?"<>|]', "_", name), re.sub(r"[^\w.-]", "_", name))
    ]
