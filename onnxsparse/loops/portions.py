"""A batch of any size for a graph that takes a fixed number of samples: the loss is that of the true samples.

1. Whole graphs are fed as they are. What is left over is filled up, and counted by a weight: the sum of all weights
   times losses, and so of gradients, is that of the true samples alone.
2. Cross-entropy leaves out fillers by their label, and every portion weighs as many labels as count in it.
3. Other losses are means over samples: a portion is filled with whole repeats of its samples, and what is still
   missing with the first one, which one more run, of that sample alone, takes away again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from onnxsparse.data.field import IGNORED, LABELS
from onnxsparse.engines.engine import Batch, Engine
from onnxsparse.math.values import Array


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
