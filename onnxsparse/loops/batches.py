"""What a loop hands to `step`: arrays or tensors, by name or in order, perhaps with labels at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onnxsparse.data import LABELS, Field
from onnxsparse.errors import OptionError, nearest
from onnxsparse.values import Array

OTHER_NAMES = ("label", "targets", "target", "y")


def batch_of(given: Any, fields: Sequence[Field]) -> dict[str, Array]:
    """Arrays by the names of the model's inputs, and the labels."""
    names = [field.name for field in fields]
    if isinstance(given, Mapping):
        found = {str(name): _array(value) for name, value in given.items()}
        other = next((name for name in OTHER_NAMES if name in found and name not in names), None)
        if LABELS not in found and other is not None:
            found[LABELS] = found.pop(other)
    else:
        found = _in_order(given, names)
    for name in names:
        if name not in found:
            raise OptionError(f"the batch has no input '{name}'{nearest(name, found)}")
    return {**{name: _typed(found[name], field.dtype) for name, field in zip(names, fields)}, **_labels(found)}


def _in_order(given: Any, names: Sequence[str]) -> dict[str, Array]:
    parts = list(given) if isinstance(given, (list, tuple)) else [given]
    if not len(names) <= len(parts) <= len(names) + 1:
        inputs = ", ".join(names)
        raise OptionError(f"a batch is ({inputs}), perhaps with labels behind, or a mapping; {len(parts)} parts came")
    return {name: _array(part) for name, part in zip([*names, LABELS], parts)}


def _labels(found: Mapping[str, Array]) -> dict[str, Array]:
    if LABELS not in found:
        return {}
    labels = found[LABELS]
    return {LABELS: labels.astype(np.float32 if labels.dtype.kind == "f" else np.int64, copy=False)}


def _array(value: Any) -> Array:
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return np.asarray(value)


def _typed(array: Array, dtype: str) -> Array:
    return array if array.dtype == np.dtype(dtype) else array.astype(dtype)
