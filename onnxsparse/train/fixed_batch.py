"""Batches of a user's own loop: checked against the inputs of the model, and fed to a graph of a fixed batch size.

1. A batch is arrays or tensors, by name or in order, perhaps with labels at the end. Before anything trains on it,
   every array has the shape that its input declares and numbers of its kind, and labels are as many as samples.
2. Whole graphs are fed as they are. What is left over is filled up, and counted by a weight: the sum of all weights
   times losses, and so of gradients, is that of the true samples alone.
3. Cross-entropy leaves out fillers by their label, and every portion weighs as many labels as count in it.
4. Other losses are means over samples: a portion is filled with whole repeats of its samples, and what is still
   missing with the first one, which one more run, of that sample alone, takes away again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxsparse.data import LABELS, Field
from onnxsparse.data.field import IGNORED, as_array, demand_type
from onnxsparse.engines.engine import Batch, Engine
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


# -- portions of a graph's size


@dataclass(frozen=True, eq=False)
class Portion:
    """What a graph is fed with at once, how much that counts, and how many samples at its front are true ones."""

    batch: Batch
    weight: float
    true: int


def portions_of(arrays: Mapping[str, Array], size: int, by_labels: bool) -> list[Portion]:
    """Portions of `size` samples; `by_labels` where the loss is cross-entropy and nothing else."""
    count = samples_in(arrays)
    found = list(_by_labels(arrays, count, size) if by_labels else _by_samples(arrays, count, size))
    return found if any(one.weight for one in found) else []


def samples_in(arrays: Mapping[str, Array]) -> int:
    return max((len(array) for array in arrays.values() if array.ndim), default=1)


def front(arrays: Mapping[str, Array], most: int) -> dict[str, Array]:
    """The first samples."""
    count = samples_in(arrays)
    return _rows(arrays, count, np.arange(min(count, most)))


def step(engine: Engine, portions: Sequence[Portion]) -> float:
    """The loss of the true samples; the engine, which takes the mean over its pieces, gets their gradient."""
    loss, scale = 0.0, 1.0
    weighing = [one for one in portions if one.weight]
    for place, portion in enumerate(weighing):
        if place:
            _grow(engine, 1 / (portion.weight * scale))
        scale = 1 / portion.weight
        loss += portion.weight * engine.step(portion.batch)
    _grow(engine, len(weighing) / scale)
    return loss


def evaluate(engine: Engine, portions: Sequence[Portion], size: int) -> tuple[float, dict[str, Array]]:
    """The loss and the outputs of the true samples."""
    loss, pieces = 0.0, list[dict[str, Array]]()
    for portion in portions:
        found, outputs = engine.evaluate(portion.batch)
        loss += portion.weight * found if portion.weight else 0.0
        if portion.true:
            pieces.append({name: _cut(array, portion.true, size) for name, array in outputs.items()})
    return loss, {name: np.concatenate([np.atleast_1d(one[name]) for one in pieces]) for name in pieces[0]}


def _grow(engine: Engine, factor: float) -> None:
    if factor != 1:
        for gradient in engine.gradients().values():
            gradient *= np.float32(factor)


def _cut(array: Array, true: int, size: int) -> Array:
    """The front of an output that has as many rows for each sample; one that has not stays whole."""
    fits = array.ndim and len(array) % size == 0
    return array[: len(array) // size * true] if fits else array


def _by_labels(arrays: Mapping[str, Array], count: int, size: int) -> Iterator[Portion]:
    total = max(int(np.count_nonzero(arrays[LABELS] != IGNORED)), 1)
    for start in range(0, count, size):
        true = min(size, count - start)
        taken = _rows(arrays, count, start + np.arange(size) % true)
        labels = np.array(taken[LABELS])
        labels[true:] = IGNORED
        counted = int(np.count_nonzero(labels != IGNORED))
        yield Portion(Batch({**taken, LABELS: labels}), counted / total, true)


def _by_samples(arrays: Mapping[str, Array], count: int, size: int) -> Iterator[Portion]:
    whole = count // size * size
    for start in range(0, whole, size):
        yield Portion(Batch(_rows(arrays, count, np.arange(start, start + size))), size / count, size)
    left = count - whole
    if left:
        times, missing = divmod(size, left)
        places = np.append(np.tile(np.arange(whole, count), times), np.full(missing, whole))
        yield Portion(Batch(_rows(arrays, count, places)), size / (times * count), left)
        if missing:
            first = _rows(arrays, count, np.full(size, whole))
            yield Portion(Batch(first), -missing / (times * count), 0)


def _rows(arrays: Mapping[str, Array], count: int, places: Array) -> dict[str, Array]:
    """Some samples; what all samples share stays whole."""
    return {name: array[places] if array.ndim and len(array) == count else array for name, array in arrays.items()}
