"""Working directories, each locked by the one process that uses it: temporary ones, and that of a run.

1. A folder belongs to whoever holds the lock on a file in it, `.lock` where it has no file of its own for that. A
   process that is killed holds none any more.
2. Temporary folders that nobody holds are removed by the next process that wants one, if they are of the same user and
   older than a minute: between making a folder and locking it there is a moment.
"""

from __future__ import annotations

import glob
import importlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from onnxsparse.errors import OutputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

PREFIX, LOCK = "onnxsparse-", ".lock"
YOUNG = 60.0
"""Seconds for which a temporary folder is left alone, locked or not."""


@contextmanager
def temporary() -> Iterator[str]:
    """A folder for this process, gone afterwards; what killed ones left goes before."""
    collect()
    try:
        folder = tempfile.mkdtemp(prefix=PREFIX)
    except OSError as error:
        raise OutputError(f"no temporary folder can be made: {error.strerror or error}") from error
    try:
        with claimed(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def claimed(folder: str, name: str = LOCK) -> Iterator[None]:
    """A folder, made where there is none, that no other process may claim meanwhile; `name` is the file to lock."""
    try:
        os.makedirs(folder, exist_ok=True)
        handle = _open(folder, name, os.O_CREAT)
    except OSError as error:
        raise OutputError(f"cannot write to the folder {folder}: {error.strerror or error}") from error
    try:
        with suppress(OSError):  # a file system without locks
            if not _lock(handle):
                raise OutputError(f"another run is using {folder}; wait for it, or choose another folder")
        yield
    finally:
        os.close(handle)


def collect() -> None:
    """Remove the temporary folders that nobody holds."""
    with suppress(OSError):
        for folder in glob.glob(os.path.join(glob.escape(tempfile.gettempdir()), PREFIX + "*")):
            with suppress(OSError):
                _collect(folder)


def _collect(folder: str) -> None:
    known = os.lstat(folder)
    if not stat.S_ISDIR(known.st_mode) or known.st_uid != _user() or time.time() - known.st_mtime < YOUNG:
        return
    handle = _open(folder)
    try:
        left = _lock(handle)
    finally:
        os.close(handle)
    if left:  # and a name like that is never given again
        shutil.rmtree(folder, ignore_errors=True)


def _user() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0


def _open(folder: str, name: str = LOCK, more: int = 0) -> int:
    return os.open(os.path.join(folder, name), os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | more, 0o600)


def _lock(handle: int) -> bool:
    """Whether nobody else holds it."""
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            windows = importlib.import_module("msvcrt")
            windows.locking(handle, windows.LK_NBLCK, 1)
    except (BlockingIOError, PermissionError):  # the second is what Windows says
        return False
    return True
