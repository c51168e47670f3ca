"""The checkpoints of a run: one folder each, that has its name only when it is whole.

1. A checkpoint is written beside its place, brought to the disk, and renamed. Whatever ends the process before leaves
   the earlier ones as they were.
2. The newest one whose every byte is right counts; damaged ones are passed over.
3. A second checkpoint of the same step is a folder `step-00000012-2`: nothing that is whole is ever written over.
4. What killed writers leave is removed by the next one. A writer that lives holds a lock on its file.
5. A folder is ours when it bears our mark or holds a checkpoint; any other that is not empty is refused. Even in ours,
   what was not written here is never removed: it goes file by file, and only what a checkpoint is made of.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from typing import IO, Any

import numpy as np

from onnxsparse.checkpoints.manifest import ARRAYS, MANIFEST, DamageError, Manifest, is_sealed, placed
from onnxsparse.checkpoints.reading import BLOCK, Checkpoint, open_checkpoint
from onnxsparse.errors import OptionError, OutputError
from onnxsparse.math.values import Array

try:
    import fcntl
except ImportError:  # Windows, which does not remove what somebody has open
    fcntl = None  # type: ignore[assignment]

STEP = re.compile(r"step-(\d{8,})(?:-(\d+))?")
WRITING, REMOVED = ".writing-", ".removed-"
PASSING = re.compile(rf"({re.escape(WRITING)}|{re.escape(REMOVED)})[0-9a-f]{{16}}")
MARK = ".onnxsparse"
BARE = {MARK, ".lock", ".DS_Store", ".gitignore", ".gitkeep", ".keep", "lost+found"}
"""What makes a folder ours, or no less empty."""
LOCKING, PATIENCE = 1.0, 3600.0
"""Seconds that a writer has to lock its file, and after which one without a lock is taken for dead."""


def save(folder: str, step: int, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> str:
    """Write the checkpoint of a step and return its path. `facts` is anything that JSON can hold."""
    plain = {name: np.asarray(array) for name, array in arrays.items()}
    places = placed(plain)
    earlier = None
    try:
        _claim(folder)
        _tidy(folder)
        earlier = [path for path in _paths(folder) if _step_of(path)[0] == step]
        with _staged(folder) as staging:
            with _locked(os.path.join(staging, ARRAYS)) as file:
                size, crc = _write(file, plain, [place.offset for place in places.values()])
                manifest = Manifest(step, _checked(facts), places, size, crc)
                _write_whole(os.path.join(staging, MANIFEST), manifest.to_bytes())
                _bring_to_disk(staging)
                if fcntl is None:
                    file.close()  # Windows does not rename a folder of open files
                path = _rename(staging, folder, step)
            _bring_to_disk(folder)
    except OSError as error:
        kept = "" if earlier is None else "; the checkpoints before it are as they were"
        raise OutputError(f"cannot write a checkpoint to {folder}: {error.strerror or error}{kept}") from error
    for old in earlier:
        _remove(old)
    return path


def claim(folder: str) -> None:
    """Make a folder ours, so that it can be written to and tidied; one with other things in it is refused."""
    try:
        _claim(folder)
    except OSError as error:
        raise OutputError(f"cannot write a checkpoint to {folder}: {error.strerror or error}") from error


def _claim(folder: str) -> None:
    os.makedirs(folder, exist_ok=True)
    names = os.listdir(folder)
    if MARK in names:
        return
    if not BARE.issuperset(names) and not any(map(_is_sealed, _paths(folder))):
        raise OptionError(f"{folder} holds other things than checkpoints; name a new folder, or an empty one, for them")
    with suppress(FileExistsError):  # another writer was as quick
        open(os.path.join(folder, MARK), "xb").close()


def newest(folder: str, notes: list[str] | None = None) -> Checkpoint | None:
    """The latest checkpoint that is whole, if any; `notes` is told which ones were passed over, and why."""
    paths = _paths(folder)
    passed_over = []
    for path in paths:
        try:
            found = open_checkpoint(path)
        except DamageError as reason:
            passed_over.append(f"{path} is passed over: {reason}")
        else:
            break
    else:
        if paths != _paths(folder):  # a writer went on meanwhile and removed what was listed
            return newest(folder, notes)
        found = None
    if notes is not None:
        notes += passed_over
    return found


def latest_facts(folder: str) -> Mapping[str, Any] | None:
    """The facts of the latest checkpoint that looks whole, if there is one; its arrays are not read."""
    for path in _paths(folder):
        with suppress(DamageError):
            return open_checkpoint(path, whole=False).facts
    return None


def clean(folder: str, keep: int = 2) -> None:
    """Remove all but the `keep` newest checkpoints, damaged ones, and what killed writers left."""
    whole = 0
    for path in _paths(folder):
        if _looks_whole(path) and whole < max(keep, 1):
            whole += 1
        elif _is_ours(path):
            _remove(path)
    _tidy(folder)


def _looks_whole(path: str) -> bool:
    try:
        open_checkpoint(path, whole=False)
    except DamageError:
        return False
    return True


def _paths(folder: str) -> list[str]:
    """The checkpoints, newest first."""
    try:
        names = [name for name in os.listdir(folder) if STEP.fullmatch(name)]
    except OSError:
        return []
    return sorted((os.path.join(folder, name) for name in names), key=_step_of, reverse=True)


def _step_of(path: str) -> tuple[int, int]:
    match = STEP.fullmatch(os.path.basename(path))
    assert match is not None
    return int(match[1]), int(match[2] or 1)


def _checked(facts: Mapping[str, Any]) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(json.dumps(dict(facts)))
    except (TypeError, ValueError) as error:
        raise OptionError(f"a checkpoint's facts are what JSON can hold: {error}") from error
    return found


# -- writing


@contextmanager
def _staged(folder: str) -> Iterator[str]:
    """A folder beside the place of the checkpoint, that is gone afterwards."""
    staging = os.path.join(folder, WRITING + secrets.token_hex(8))
    os.mkdir(staging)
    try:
        yield staging
    finally:
        _discard(staging)


@contextmanager
def _locked(path: str) -> Iterator[IO[bytes]]:
    """A new file that is locked while it is open."""
    with open(path, "xb", buffering=0) as file:
        if fcntl is not None:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield file


def _write(file: IO[bytes], arrays: Mapping[str, Array], offsets: list[int]) -> tuple[int, int]:
    """Write all arrays in blocks; the size of the file and the CRC-32 of it."""
    size = crc = 0
    for array, offset in zip(arrays.values(), offsets):
        for view in chain([memoryview(bytes(offset - size))], _blocks(array)):
            crc, size = zlib.crc32(view, crc), size + len(view)
            _put(file, view)
    os.fsync(file.fileno())
    return size, crc


def _put(file: IO[bytes], view: memoryview) -> None:
    while len(view):
        view = view[file.write(view) :]


def _blocks(array: Array) -> Iterator[memoryview]:
    if array.size:
        whole = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        yield from (whole[start : start + BLOCK] for start in range(0, len(whole), BLOCK))


def _write_whole(path: str, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _bring_to_disk(folder: str) -> None:
    """The entries of a folder; where a system cannot do that, its own way has to do."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _rename(staging: str, folder: str, step: int) -> str:
    """Give the folder the next free name of its step."""
    while True:
        taken = [_step_of(path)[1] for path in _paths(folder) if _step_of(path)[0] == step]
        path = os.path.join(folder, f"step-{step:08d}" + (f"-{max(taken) + 1}" if taken else ""))
        try:
            os.rename(staging, path)
            return path
        except OSError:
            if not os.path.lexists(path):  # otherwise another writer took the name just now
                raise


# -- removing


def _is_ours(path: str) -> bool:
    """Whether a folder is a checkpoint, whole or not: it holds nothing else, and both files or a sealed manifest."""
    names = _names(path)
    return names <= {ARRAYS, MANIFEST} and (len(names) == 2 or _is_sealed(path))


def _is_sealed(path: str) -> bool:
    with suppress(OSError), open(os.path.join(path, MANIFEST), "rb") as file:
        return is_sealed(file.read())
    return False


def _names(path: str) -> set[str]:
    """What a folder holds; of a link or a file, that it is none."""
    if os.path.islink(path):
        return {""}
    try:
        return set(os.listdir(path))
    except OSError:
        return {""}


def _remove(path: str) -> None:
    """Take the name away first: a checkpoint that is half removed is none."""
    gone = os.path.join(os.path.dirname(path), REMOVED + secrets.token_hex(8))
    with suppress(OSError):
        os.rename(path, gone)
        _discard(gone)


def _discard(path: str) -> None:
    """Remove a folder of ours, file by file: what else came into it meanwhile stays."""
    for name in (MANIFEST, ARRAYS):
        with suppress(OSError):
            os.unlink(os.path.join(path, name))
    with suppress(OSError):
        os.rmdir(path)


def _tidy(folder: str) -> None:
    """Remove what killed writers left."""
    with suppress(OSError):
        for name in filter(PASSING.fullmatch, os.listdir(folder)):
            path = os.path.join(folder, name)
            if _names(path) <= {ARRAYS, MANIFEST} and (name.startswith(REMOVED) or _is_left(path)):
                _discard(path)


def _is_left(staging: str) -> bool:
    try:
        with open(os.path.join(staging, ARRAYS), "rb") as file:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return _is_older(staging, LOCKING)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return _is_older(staging, LOCKING)
    except OSError:  # a file system without locks, or a file of somebody else
        pass
    return _is_older(staging, PATIENCE)


def _is_older(path: str, seconds: float) -> bool:
    with suppress(OSError):
        return time.time() - os.stat(path).st_mtime > seconds
    return False
