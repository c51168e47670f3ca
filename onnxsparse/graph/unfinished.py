"""What a killed process leaves behind while it writes files, and how the next one puts it right.

1. A file is written as `.onnxsparse-MARK-TOKEN.part` beside its target; MARK stands for the target's name. Its writer
   holds a lock on it while it lives: what nobody holds is removed by the next that writes to the same target.
2. Several files that belong together get their names one after the other. Before the first one does, a journal beside
   the last, the model, says which there are. Whoever opens that model or writes to it finds the journal of a process
   that was killed in between, and gives the rest their names: they had all been written and proven.
3. A journal is believed only where everything it names lies in its own folder, it belongs to the same user, and it
   says the inodes that it and the files it names have: one that came with somebody's archive does not know them.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any

from onnxsparse.errors import OutputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

PART = re.compile(r"\.onnxsparse-[0-9a-f]{8}-[0-9a-f]{12}\.part")
SPARE = re.compile(r"\.onnxsparse-[0-9a-f]{12}\.old")
PATIENCE = 3600.0
"""Seconds after which a file is taken for left, where files cannot be locked."""


@dataclass(frozen=True)
class Move:
    """A finished file that is to have a name, and a second name for what had it before."""

    temporary: str
    real: str
    spare: str = ""


def mark_of(path: str) -> str:
    return hashlib.sha256(os.path.basename(path).encode("utf-8", "surrogatepass")).hexdigest()[:8]


# -- files that are being written


@contextmanager
def part_of(real: str, held: list[int]) -> Iterator[tuple[str, IO[bytes]]]:
    """A new file beside its target, that is locked until the handle added to `held` is closed."""
    _collect(real)
    while True:
        path = os.path.join(os.path.dirname(real), f".onnxsparse-{mark_of(real)}-{secrets.token_hex(6)}.part")
        with open(path, "xb", buffering=0) as file:
            if not _lock(file.fileno()) or not _is_at(file.fileno(), path):
                continue  # somebody took it for left before it was locked
            if fcntl is not None:
                held.append(os.dup(file.fileno()))
            yield path, file
            return


def _collect(real: str) -> None:
    """Remove what killed writers to the same target left."""
    pattern = os.path.join(glob.escape(os.path.dirname(real)), f".onnxsparse-{mark_of(real)}-*.part")
    for path in glob.glob(pattern):
        with suppress(OSError):
            if PART.fullmatch(os.path.basename(path)) and _is_left(path):
                os.unlink(path)


def clear_folder(path: str) -> None:
    """Remove a folder in which there is nothing but what killed writers left."""
    if not os.path.isdir(path) or os.path.islink(path):
        return
    with suppress(OSError):
        for name in os.listdir(path):
            if PART.fullmatch(name) and _is_left(os.path.join(path, name)):
                os.unlink(os.path.join(path, name))
        os.rmdir(path)


def _is_left(path: str) -> bool:
    handle = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    try:
        return _lock(handle, otherwise=time.time() - os.fstat(handle).st_mtime > PATIENCE)
    finally:
        os.close(handle)


def _lock(handle: int, otherwise: bool = True) -> bool:
    """Lock an open file, if nobody else has; `otherwise` is the answer where files cannot be locked."""
    if fcntl is None:
        return otherwise
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return otherwise
    return True


def _is_at(handle: int, path: str) -> bool:
    """Whether an open file still has its name."""
    try:
        return fcntl is None or os.path.samestat(os.fstat(handle), os.lstat(path))
    except OSError:
        return False


# -- files that belong together


def spare_of(real: str) -> str:
    return os.path.join(os.path.dirname(real), f".onnxsparse-{secrets.token_hex(6)}.old")


@contextmanager
def journal(moves: Sequence[Move], overwrite: bool) -> Iterator[None]:
    """While the block runs, whoever opens the last of the files knows which belong together."""
    target = moves[-1].real if moves else ""
    folder = os.path.dirname(target)
    together = len(moves) > 1 and fcntl is not None and all(_inside(move.real, folder) for move in moves)
    handle = _begun(target, moves, overwrite) if together else None
    try:
        yield
    finally:
        if handle is not None:
            with suppress(OSError):
                os.unlink(_journal_of(target))
            os.close(handle)


def _begun(target: str, moves: Sequence[Move], overwrite: bool) -> int | None:
    """A journal, locked; None where there can be none: the files are then written without."""
    finish(target)
    try:
        handle = os.open(_journal_of(target), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError:
        return None
    with suppress(OSError):
        facts = _written(moves, overwrite, os.path.dirname(target), os.fstat(handle).st_ino)
        if _lock(handle, otherwise=False) and os.write(handle, facts) == len(facts):
            return handle
    os.close(handle)
    return None


def finish(target: str) -> None:
    """Give the rest of the files their names, where a process was killed while it did so."""
    real = os.path.realpath(target)
    path = _journal_of(real)
    if not os.path.lexists(path):
        return
    try:
        _finish(path, os.path.dirname(real))
    except FileNotFoundError:  # somebody else did it meanwhile
        return
    except OSError as error:
        raise OutputError(
            f"a process was killed while it replaced {target} and the files beside it, and they cannot be put right: "
            f"{error.strerror or error}; run the same command where their folder can be written"
        ) from error


def _finish(path: str, folder: str) -> None:
    handle = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    try:
        if fcntl is not None:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(handle, fcntl.LOCK_EX)  # a writer that lives is done in a moment
        if not _is_at(handle, path) or os.fstat(handle).st_uid not in (_user(), os.stat(folder).st_uid):
            return
        moves, overwrite = _read(handle, folder)
        for move in moves:
            _move(move, overwrite)
        os.unlink(path)
    finally:
        os.close(handle)


def _move(move: Move, overwrite: bool) -> None:
    with suppress(FileNotFoundError):  # it has its name already
        if overwrite or not os.path.lexists(move.real):
            os.replace(move.temporary, move.real)
        os.unlink(move.temporary)
    if move.spare:
        with suppress(FileNotFoundError):
            os.unlink(move.spare)


def _journal_of(real: str) -> str:
    return os.path.join(os.path.dirname(real), f".onnxsparse-{mark_of(real)}.journal")


def _written(moves: Sequence[Move], overwrite: bool, folder: str, own: int) -> bytes:
    names = [[os.path.relpath(name, folder) if name else "" for name in vars(move).values()] for move in moves]
    inodes = [own, *(_inode(move.temporary) for move in moves)]
    return json.dumps({"overwrite": overwrite, "inodes": inodes, "files": names}).encode()


def _read(handle: int, folder: str) -> tuple[list[Move], bool]:
    """What a journal says; nothing where its writer was killed before it was whole, or where it is none of ours."""
    try:
        facts: Any = json.loads(os.pread(handle, os.fstat(handle).st_size, 0))
        names = [[name and os.path.join(folder, name) for name in entry] for entry in facts["files"]]
        moves = [Move(*entry) for entry in names]
        overwrite = facts["overwrite"] is True
        own, *parts = facts["inodes"]
        ours = own == os.fstat(handle).st_ino and len(parts) == len(moves)
        ours = ours and all(_is_ours(move, folder, inode) for move, inode in zip(moves, parts))
        return (moves, overwrite) if ours else ([], False)
    except (ValueError, TypeError, KeyError, RecursionError):  # also a name that no file can have
        return [], False


def _is_ours(move: Move, folder: str, inode: int) -> bool:
    paths = [path for path in (move.temporary, move.real, move.spare) if path]
    if any(b"\0" in os.fsencode(path) for path in paths):
        return False
    if _inode(move.temporary) not in (0, inode):
        return False  # a file that has its name already is not there any more
    spare = not move.spare or SPARE.fullmatch(os.path.basename(move.spare))
    return bool(
        all(_inside(path, folder) for path in paths) and PART.fullmatch(os.path.basename(move.temporary)) and spare
    )


def _inode(path: str) -> int:
    """What tells a file from a copy of it; 0 where there is none."""
    try:
        return os.lstat(path).st_ino
    except FileNotFoundError:
        return 0


def _inside(path: str, folder: str) -> bool:
    return os.path.commonpath([os.path.realpath(os.path.dirname(path)), folder]) == folder


def _user() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0
