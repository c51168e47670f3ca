"""YAML and JSON as plain values; what a text says twice is an error, as nobody knows which of the two is meant."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from onnxsparse.passes.plain_yaml import WrittenTwiceError, read_yaml


def read_json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_object)


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise WrittenTwiceError(f"{twice!r:.60} is there twice in one object")
    return found


__all__ = ["WrittenTwiceError", "read_json", "read_yaml"]
