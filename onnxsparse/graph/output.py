"""Writing files so that nobody ever sees half of one: write beside, then rename."""

from __future__ import annotations

import hashlib
import os
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import IO, Protocol

import numpy as np

from onnxsparse.errors import OutputError
from onnxsparse.graph import unfinished
from onnxsparse.graph.storage import Array
from onnxsparse.graph.unfinished import Move

BLOCK = 1 << 23
PIECE = 1 << 18
"""Bytes written at a time: the kernel finds memory for small pieces several times cheaper than for large ones."""


class Digest(Protocol):
    """Takes note of what is written."""

    def update(self, data: memoryview | bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


def sha1() -> Digest:
    """The digest that ONNX names for data files."""
    return hashlib.sha1(usedforsecurity=False)


def check_target(path: str, overwrite: bool) -> None:
    """Say before the work starts what would stop the file from being written."""
    unfinished.finish(path)
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.basename(path) or os.path.isdir(path):
        raise OutputError(f"{path} is a folder; name the file to write")
    if not os.path.isdir(folder):
        raise OutputError(f"the folder {folder} does not exist; make it first")
    if not os.access(folder, os.W_OK):
        raise OutputError(f"the folder {folder} cannot be written to; choose another one")
    if os.path.lexists(path) and not overwrite:
        raise OutputError(f"{path} exists; choose another name or pass --overwrite")
    if os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):
        raise OutputError(f"{path} is not an ordinary file; refused")


class Staged:
    """Files written under temporary names beside their targets, renamed together; without `commit` nothing remains."""

    def __init__(self, overwrite: bool = True) -> None:
        self._overwrite = overwrite
        self._pending: list[tuple[str, str]] = []
        self._folders: list[str] = []
        self._held: list[int] = []

    def __enter__(self) -> Staged:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for temporary, _ in self._pending:
            if os.path.exists(temporary):
                os.unlink(temporary)
        for handle in self._held:
            os.close(handle)
        for folder in reversed(self._folders):
            with suppress(OSError):
                os.rmdir(folder)
        if isinstance(error, OSError):
            target = self._pending[-1][1] if self._pending else error.filename
            raise OutputError(f"cannot write {target}: {error.strerror or error}") from error

    def make_folder(self, folder: str) -> None:
        """Make a folder and those above it; they go again when nothing comes of the files."""
        missing = []
        while not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for made in reversed(missing):
            os.mkdir(made)
            self._folders.append(made)

    @contextmanager
    def create(self, target: str) -> Iterator[IO[bytes]]:
        real = os.path.realpath(target)
        with unfinished.part_of(real, self._held) as (temporary, file):
            self._pending.append((temporary, real))
            if os.path.exists(real):
                os.chmod(temporary, stat.S_IMODE(os.stat(real).st_mode))
            yield file

    @property
    def waiting(self) -> dict[str, str]:
        """Where each file is until `commit`, by its real path."""
        return {real: temporary for temporary, real in self._pending}

    def commit(self) -> None:
        """Give all files their names; when one cannot have it, those that had theirs already lose it again."""
        done: list[tuple[str, str | None]] = []
        moves = [Move(temporary, real, unfinished.spare_of(real)) for temporary, real in self._pending]
        with _undisturbed(), unfinished.journal(moves, self._overwrite):
            try:
                for move in moves:
                    done.append((move.real, _kept(move) if len(moves) > 1 else None))
                    self._rename(move.temporary, move.real)
            except OSError:
                _undo(done[:-1] if len(done) else [])
                _forget(done[-1:])
                raise
            _forget(done)
            self._pending.clear()
            self._folders.clear()

    def _rename(self, temporary: str, real: str) -> None:
        if self._overwrite or not hasattr(os, "link"):
            os.replace(temporary, real)
            return
        try:
            os.link(temporary, real)  # unlike a rename, this fails when somebody made the file meanwhile
        except FileExistsError:
            raise OutputError(f"{real} was made by somebody else meanwhile; nothing was written") from None
        except OSError:  # a file system without links
            os.replace(temporary, real)
            return
        os.unlink(temporary)


def _kept(move: Move) -> str | None:
    """A second name for the file that is about to be replaced."""
    if os.path.exists(move.real):
        with suppress(OSError):
            os.link(move.real, move.spare)
            return move.spare
    return None


def _undo(done: list[tuple[str, str | None]]) -> None:
    for real, spare in reversed(done):
        if spare is not None:
            os.replace(spare, real)
        elif os.path.exists(real):
            os.unlink(real)


def _forget(done: list[tuple[str, str | None]]) -> None:
    for _, spare in done:
        if spare is not None:
            os.unlink(spare)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Signals that would end the process wait until the block is done."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def make_folder(path: str) -> None:
    """A folder, with those it is in, where there is none."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make the folder {path}: {error.strerror or error}") from error


def write_text(path: str, text: str, overwrite: bool) -> None:
    """Write a small text file, all or nothing."""
    check_target(path, overwrite)
    with Staged(overwrite) as staged:
        with staged.create(path) as file:
            put(file, text.encode("utf-8", "backslashreplace"))
        staged.commit()


def put(file: IO[bytes], data: bytes | memoryview | Array, digest: Digest | None = None) -> None:
    """Write all of it; a raw file may take less than it is given."""
    whole = data.data if isinstance(data, np.ndarray) else memoryview(data)
    view = whole.cast("B") if len(data) else memoryview(b"")
    if digest is not None:
        digest.update(view)
    while len(view):
        view = view[file.write(view[:PIECE]) :]


def copy_range(source: int, file: IO[bytes], offset: int, length: int, digest: Digest | None = None) -> None:
    """Append `length` bytes of a file descriptor, inside the kernel where it can do that."""
    while length:
        count = _kernel_copy(source, file.fileno(), offset, length) if digest is None else None
        if count is None:
            _plain_copy(source, file, offset, length, digest)
            return
        if count == 0:
            raise OutputError("a source file became shorter while it was being copied")
        offset, length = offset + count, length - count


_copy_file_range: Callable[[int, int, int, int], int] | None = getattr(os, "copy_file_range", None)


def _kernel_copy(source: int, target: int, offset: int, length: int) -> int | None:
    if _copy_file_range is None:
        return None
    try:
        return _copy_file_range(source, target, min(length, 1 << 30), offset)
    except OSError as error:
        if error.errno == 28:  # no space left: a slower way would not help
            raise
        return None


def _plain_copy(source: int, file: IO[bytes], offset: int, length: int, digest: Digest | None) -> None:
    while length:
        data = os.pread(source, min(length, BLOCK), offset)
        if not data:
            raise OutputError("a source file became shorter while it was being copied")
        put(file, data, digest)
        offset, length = offset + len(data), length - len(data)
