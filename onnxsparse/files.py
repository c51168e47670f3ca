"""Writing files atomically: write beside, then rename; and cleaning up what a killed process left."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import secrets
import signal
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any, Protocol

import numpy as np
import numpy.typing as npt

from onnxsparse.errors import OutputError

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
    finish(path)
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
        with part_of(real, self._held) as (temporary, file):
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
        moves = [Move(temporary, real, spare_of(real)) for temporary, real in self._pending]
        with _undisturbed(), journal(moves, self._overwrite):
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


def put(file: IO[bytes], data: bytes | memoryview | npt.NDArray[Any], digest: Digest | None = None) -> None:
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


# -- What a killed process leaves behind while it writes files, and how the next one puts it right.
#
# 1. A file is written as `.onnxsparse-MARK-TOKEN.part` beside its target; MARK stands for the target's name. Its writer
#    holds a lock on it while it lives: what nobody holds is removed by the next that writes to the same target.
# 2. Several files that belong together get their names one after the other. Before the first one does, a journal beside
#    the last, the model, says which there are. Whoever opens that model or writes to it finds the journal of a process
#    that was killed in between, and gives the rest their names: they had all been written and proven.
# 3. A journal is believed only where everything it names lies in its own folder, it belongs to the same user, and it
#    says the inodes that it and the files it names have: one that came with somebody's archive does not know them.


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
