"""Checkpoints of a run: one folder each, that has its name only when it is whole.

1. A checkpoint is written beside its place, brought to the disk, and renamed. Whatever ends the process before leaves
   the earlier ones as they were.
2. The newest one whose every byte is right counts; damaged ones are passed over.
3. A second checkpoint of the same step is a folder `step-00000012-2`: nothing that is whole is ever written over.
4. What killed writers leave is removed by the next one. A writer that lives holds a lock on its file.
5. A folder is ours when it bears our mark or holds a checkpoint; any other that is not empty is refused. Even in
   ours, what was not written here is never removed: it goes file by file, and only what a checkpoint is made of.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import secrets
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import IO, Any

import numpy as np

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


def all_whole(folder: str, notes: list[str] | None = None) -> list[Checkpoint]:
    """Every checkpoint that is whole, the oldest first: of work whose parts are kept one by one. `notes` is told which
    ones were passed over, and why."""
    found = []
    for path in reversed(_paths(folder)):
        try:
            found.append(open_checkpoint(path))
        except DamageError as reason:
            if notes is not None:
                notes.append(f"{path} is passed over: {reason}")
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


# -- A checkpoint as it was found: its numbers and facts, and its arrays when they are asked for.


BLOCK = 1 << 24


@dataclass(frozen=True)
class Checkpoint:
    """One state of a run."""

    path: str
    step: int
    arrays: Mapping[str, Array]
    facts: Mapping[str, Any]


class StoredArrays(Mapping[str, Array]):
    """Arrays of a file, each read when it is asked for; what is given belongs to the caller."""

    def __init__(self, path: str, places: Mapping[str, Place]) -> None:
        self._path, self._places = path, places

    def __getitem__(self, name: str) -> Array:
        place = self._places[name]
        array = np.empty(place.shape, place.dtype)
        try:
            with open(self._path, "rb") as file:
                file.seek(place.offset)
                whole = file.readinto(array.reshape(-1).view(np.uint8).data) if place.size else 0
        except OSError as error:
            raise OptionError(f"{self._path} cannot be read: {error.strerror or error}") from error
        if whole != place.size:
            raise OptionError(f"{self._path} became shorter while it was read")
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def open_checkpoint(path: str, whole: bool = True) -> Checkpoint:
    """Open a checkpoint and check it: all bytes of it, or only the manifest and the sizes."""
    arrays = os.path.join(path, ARRAYS)
    try:
        with open(os.path.join(path, MANIFEST), "rb") as file:
            manifest = Manifest.from_bytes(file.read())
        if os.path.getsize(arrays) != manifest.size:
            raise DamageError(f"{ARRAYS} does not have its size")
        if whole and _crc(arrays) != manifest.crc:
            raise DamageError(f"{ARRAYS} is damaged")
    except OSError as error:
        raise DamageError(error.strerror or str(error)) from error
    return Checkpoint(path, manifest.step, StoredArrays(arrays, manifest.places), manifest.facts)


def _crc(path: str) -> int:
    crc, block = 0, memoryview(bytearray(BLOCK))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(block):
            crc = zlib.crc32(block[:count], crc)
    return crc


# -- What is said of a checkpoint in `manifest.json`, and sealed by its own digest.
#
# The arrays lie one after the other in `arrays.bin`, in C order and in the byte order that their type says. The
# manifest names each with type, shape and place, and holds size and CRC-32 of the whole file.


VERSION = 1
ARRAYS, MANIFEST = "arrays.bin", "manifest.json"
ALIGNMENT = 64


class DamageError(Exception):
    """A checkpoint that is passed over; the message says why."""


@dataclass(frozen=True)
class Place:
    """Where an array lies."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def end(self) -> int:
        return self.offset + self.size


@dataclass(frozen=True)
class Manifest:
    """All but the arrays themselves."""

    step: int
    facts: dict[str, Any]
    places: dict[str, Place]
    size: int
    crc: int

    def to_bytes(self) -> bytes:
        content = {
            "version": VERSION,
            "step": self.step,
            "facts": self.facts,
            "arrays": [
                {"name": name, "dtype": place.dtype.str, "shape": place.shape, "offset": place.offset}
                for name, place in self.places.items()
            ],
            "files": {ARRAYS: {"size": self.size, "crc32": self.crc}},
        }
        return json.dumps({"sha256": _digest(content), **content}, indent=1).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        try:
            return cls._read(json.loads(data))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamageError("its manifest is damaged") from error

    @classmethod
    def _read(cls, content: dict[str, Any]) -> Manifest:
        if content.pop("sha256") != _digest(content):
            raise DamageError("its manifest is damaged")
        if content["version"] != VERSION:
            raise DamageError(f"it is of version {content['version']}, which this version cannot read")
        file = content["files"][ARRAYS]
        places = {entry["name"]: _place(entry, file["size"]) for entry in content["arrays"]}
        return cls(int(content["step"]), dict(content["facts"]), places, int(file["size"]), int(file["crc32"]))


def _place(entry: dict[str, Any], size: int) -> Place:
    place = Place(checked_dtype(np.dtype(str(entry["dtype"]))), tuple(map(int, entry["shape"])), int(entry["offset"]))
    if min((0, *place.shape)) < 0 or place.offset < 0 or place.end > size:
        raise ValueError("an array outside its file")
    return place


def checked_dtype(dtype: np.dtype[Any], name: str = "") -> np.dtype[Any]:
    if dtype.kind not in "biufc":
        raise OptionError(f"a checkpoint holds plain numbers, which {dtype} of '{name}' are not")
    return dtype


def placed(arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Place]:
    """Places for arrays, one after the other."""
    places, end = {}, 0
    for name, array in arrays.items():
        place = Place(checked_dtype(array.dtype, name), array.shape, -(-end // ALIGNMENT) * ALIGNMENT)
        places[name], end = place, place.end
    return places


def is_sealed(data: bytes) -> bool:
    """Whether this is a manifest of a checkpoint, of whatever version."""
    try:
        content = json.loads(data)
        return bool(content.pop("sha256") == _digest(content))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def _digest(content: Mapping[str, Any]) -> str:
    """Of the content in one fixed spelling, so that no bit of it can change unseen."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


# -- What a run has delivered: digests of its results, noted in its folder just before the files get their names.
#
# Only what is noted may be replaced by the run that goes on, and only while the folder holds a checkpoint of that run.


NAME, JOB, FILES = "delivered.json", "job", "files"
DELIVERED_BLOCK = 1 << 20


def note_delivery(folder: str, files: Iterable[str]) -> None:
    """Note the digests of files, as those of the run whose checkpoints are in the folder; nothing where there are none.

    Those that were noted before stay: until the new files have their names, the old ones are there.
    """
    facts = latest_facts(folder)
    if facts is None:
        return
    known = {*_noted(folder), *map(_digest_of, files)}
    place = os.path.join(folder, NAME)
    try:
        with open(place + ".part", "w", encoding="utf-8") as file:
            json.dump({JOB: facts.get(JOB), FILES: sorted(known)}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(place + ".part", place)
    except OSError as error:
        raise OutputError(f"cannot write to the folder {folder}: {error.strerror or error}") from error


def was_delivered(folder: str, paths: Iterable[str]) -> bool:
    """Whether every one of these files that exists is one that the run in the folder delivered."""
    noted = _noted(folder)
    try:
        return all(_digest_of(path) in noted for path in paths if os.path.lexists(path))
    except OSError:
        return False


def _noted(folder: str) -> set[str]:
    facts = latest_facts(folder)
    try:
        with open(os.path.join(folder, NAME), encoding="utf-8") as file:
            found = json.load(file)
        same = facts is not None and found[JOB] == facts.get(JOB)
        return {str(one) for one in found[FILES]} if same else set()
    except (OSError, ValueError, TypeError, KeyError):
        return set()


def _digest_of(path: str) -> str:
    found = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(DELIVERED_BLOCK), b""):
            found.update(block)
    return found.hexdigest()
