"""What a loop hands to `step`: arrays or tensors, by name or in order, perhaps with labels at the end.

Before anything trains on it, every array has the shape that its input declares and numbers of its kind, and labels
are as many as samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onnxsparse.data import LABELS, Field
from onnxsparse.data.field import as_array, demand_type
from onnxsparse.errors import OptionError, nearest
from onnxsparse.math.values import Array

OTHER_NAMES = ("label", "targets", "target", "y")
SOURCE = "the batch"


def batch_of(given: Any, fields: Sequence[Field], like: Mapping[str, Array] | None = None) -> dict[str, Array]:
    """Arrays by the names of the model's inputs, and the labels; `like` is a batch that is known to be right."""
    names = [field.name for field in fields]
    found = _named(given, names)
    for field in fields:
        if field.name not in found:
            raise OptionError(_missing(field.name, names, found))
        field.demand_shape(found[field.name].shape, SOURCE)
    made = {**{one.name: _typed(found[one.name], one) for one in fields}, **_labels(found)}
    _check_counts(made, fields)
    if like:
        _check_labels(made.get(LABELS), like.get(LABELS))
    return made


def _named(given: Any, names: Sequence[str]) -> dict[str, Array]:
    if not isinstance(given, Mapping):
        return _in_order(given, names)
    found = {str(name): as_array(value, str(name), SOURCE) for name, value in given.items()}
    other = next((name for name in OTHER_NAMES if name in found and name not in names), None)
    if LABELS not in found and other is not None:
        found[LABELS] = found.pop(other)
    return found


def _in_order(given: Any, names: Sequence[str]) -> dict[str, Array]:
    parts = list(given) if isinstance(given, (list, tuple)) else [given]
    if not len(names) <= len(parts) <= len(names) + 1:
        inputs = ", ".join(names)
        raise OptionError(f"a batch is ({inputs}), perhaps with labels behind, or a mapping; {len(parts)} parts came")
    return {name: as_array(part, name, SOURCE) for name, part in zip([*names, LABELS], parts)}


def _labels(found: Mapping[str, Array]) -> dict[str, Array]:
    if LABELS not in found:
        return {}
    labels = found[LABELS]
    return {LABELS: labels.astype(np.float32 if labels.dtype.kind == "f" else np.int64, copy=False)}


def _check_counts(made: Mapping[str, Array], fields: Sequence[Field]) -> None:
    """As many samples in every input, and as many labels; one at least."""
    samples = [one for one in fields if made[one.name].ndim and one.is_sample(made[one.name].shape)]
    counts = {one.name: len(made[one.name]) for one in samples}
    if LABELS in made:
        counts[LABELS] = len(made[LABELS]) if made[LABELS].ndim else 0
    if len(set(counts.values())) > 1:
        raise OptionError(f"the batch has not as many samples everywhere: {_listed(counts)}")
    if 0 in counts.values():
        raise OptionError("the batch is empty")


def _check_labels(labels: Array | None, first: Array | None) -> None:
    if labels is None and first is not None:
        raise OptionError("the batch has no labels, and the first one had")
    if labels is not None and first is not None and labels.shape[1:] != first.shape[1:]:
        raise OptionError(
            f"a sample's labels have shape {list(labels.shape[1:])}, those of the first batch {list(first.shape[1:])}"
        )


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} of '{name}'" for name, count in counts.items())


def _missing(name: str, names: Sequence[str], found: Mapping[str, Array]) -> str:
    here, wanted = (", ".join(f"'{one}'" for one in some) or "nothing" for some in (found, names))
    return f"the batch has no input '{name}'{nearest(name, found)}: it has {here}, and the model takes {wanted}"


def _typed(array: Array, field: Field) -> Array:
    """As the model takes it; whether bytes of an image are to be divided by 255 only the user knows."""
    if array.dtype == np.dtype(field.dtype):
        return array
    made = array.astype(field.dtype)
    whole = array.dtype.kind in "iu" and made.dtype.kind in "iu"
    if not (whole and np.array_equal(made, array)):
        demand_type(field, array.dtype, SOURCE)
    return made
