"""What is said of a checkpoint in `manifest.json`, and sealed by its own digest.

The arrays lie one after the other in `arrays.bin`, in C order and in the byte order that their type says. The manifest
names each with type, shape and place, and holds size and CRC-32 of the whole file.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxsparse.errors import OptionError

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
