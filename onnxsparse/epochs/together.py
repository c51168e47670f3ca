"""Several masks on one parameter: a place is kept where every one of them keeps it.

Where a single act masks a parameter its mask is the parameter's, and nothing is remembered here.
"""

from __future__ import annotations

import base64
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from onnxsparse.math.values import Array


class Together:
    """The masks of acts by parameter; acts are numbered in the order in which they are added."""

    def __init__(self) -> None:
        self._count = 0
        self._owners: Counter[str] = Counter()
        self._keeps: dict[str, dict[int, Array]] = {}

    def add(self, tags: Iterable[str]) -> int:
        """One more act, by the parameters that it masks; its number."""
        self._owners.update(set(tags))
        self._count += 1
        return self._count - 1

    def is_shared(self, tag: str) -> bool:
        return self._owners[tag] > 1

    def own(self, tag: str, number: int) -> Array | None:
        return self._keeps.get(tag, {}).get(number)

    def put(self, tag: str, number: int, keep: Array) -> Array:
        """The mask of all, with that of one renewed."""
        if not self.is_shared(tag):
            return keep
        keeps = self._keeps.setdefault(tag, {})
        keeps[number] = keep.reshape(-1).copy()
        return _all(keeps)

    def release(self, tag: str, number: int) -> Array | None:
        """The mask of all without that of one; None where no other is left."""
        keeps = self._keeps.get(tag, {})
        keeps.pop(number, None)
        return _all(keeps) if keeps else None

    # -- what a resumed run has to know

    def state(self) -> dict[str, Any]:
        """For JSON: a bit for each place, compressed."""
        return {tag: [[number, _packed(keep)] for number, keep in keeps.items()] for tag, keeps in self._keeps.items()}

    def restore(self, state: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
        self._keeps = {
            tag: {int(number): _unpacked(text, sizes[tag]) for number, text in keeps} for tag, keeps in state.items()
        }


def _all(keeps: Mapping[int, Array]) -> Array:
    return np.asarray(np.logical_and.reduce(list(keeps.values())))


def _packed(keep: Array) -> str:
    return base64.b85encode(zlib.compress(np.packbits(keep).tobytes(), 1)).decode()


def _unpacked(text: str, size: int) -> Array:
    found = np.frombuffer(zlib.decompress(base64.b85decode(text)), np.uint8)
    return np.unpackbits(found, count=size).astype(bool)
