"""Writing files so that nobody ever sees half of one: write beside, then rename."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import IO

import numpy as np

from onnxsparse.errors import OutputError
from onnxsparse.graph.storage import Array

BLOCK = 1 << 23


def check_target(path: str, overwrite: bool) -> None:
    """Say before the work starts what would stop the file from being written."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.basename(path) or os.path.isdir(path):
        raise OutputError(f"{path} is a folder; name the file to write")
    if not os.path.isdir(folder):
        raise OutputError(f"the folder {folder} does not exist; make it first")
    if os.path.lexists(path) and not overwrite:
        raise OutputError(f"{path} exists; choose another name or pass --overwrite")
    if os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):
        raise OutputError(f"{path} is not an ordinary file; refused")


class Staged:
    """Files written under temporary names beside their targets and renamed together; on any failure nothing remains."""

    def __init__(self) -> None:
        self._pending: list[tuple[str, str]] = []

    def __enter__(self) -> Staged:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for temporary, _ in self._pending:
            if os.path.exists(temporary):
                os.unlink(temporary)
        if isinstance(error, OSError):
            target = self._pending[-1][1] if self._pending else error.filename
            raise OutputError(f"cannot write {target}: {error.strerror or error}") from error

    @contextmanager
    def create(self, target: str) -> Iterator[IO[bytes]]:
        real = os.path.realpath(target)
        temporary = os.path.join(os.path.dirname(real), f".{os.path.basename(real)[:80]}.{secrets.token_hex(4)}.part")
        self._pending.append((temporary, real))
        with open(temporary, "xb", buffering=0) as file:
            if os.path.exists(real):
                os.chmod(temporary, stat.S_IMODE(os.stat(real).st_mode))
            yield file

    @property
    def waiting(self) -> dict[str, str]:
        """Where each file is until `commit`, by its real path."""
        return {real: temporary for temporary, real in self._pending}

    def commit(self) -> None:
        for temporary, real in self._pending:
            os.replace(temporary, real)
        self._pending.clear()


def write_text(path: str, text: str, overwrite: bool) -> None:
    """Write a small text file, all or nothing."""
    check_target(path, overwrite)
    with Staged() as staged:
        with staged.create(path) as file:
            put(file, text.encode())
        staged.commit()


def put(file: IO[bytes], data: bytes | memoryview | Array) -> None:
    """Write all of it; a raw file may take less than it is given."""
    whole = data.data if isinstance(data, np.ndarray) else memoryview(data)
    view = whole.cast("B") if len(data) else memoryview(b"")
    while len(view):
        view = view[file.write(view) :]


def copy_range(source: int, file: IO[bytes], offset: int, length: int) -> None:
    """Append `length` bytes of a file descriptor, inside the kernel where it can do that."""
    while length:
        count = _kernel_copy(source, file.fileno(), offset, length)
        if count is None:
            _plain_copy(source, file, offset, length)
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


def _plain_copy(source: int, file: IO[bytes], offset: int, length: int) -> None:
    while length:
        data = os.pread(source, min(length, BLOCK), offset)
        if not data:
            raise OutputError("a source file became shorter while it was being copied")
        put(file, data)
        offset, length = offset + len(data), length - len(data)
