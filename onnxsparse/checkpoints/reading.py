"""A checkpoint as it was found: its numbers and facts, and its arrays when they are asked for."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxsparse.checkpoints.manifest import ARRAYS, MANIFEST, DamageError, Manifest, Place
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array

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
