"""Splitting feeds into pieces of fewer samples, so that what a network keeps to be differentiated fits into memory.

1. How much that is, one sample says: the bytes of all values that the nodes of the main graph give for it.
2. Inputs that all samples share stay whole: those whose size along the axis of the samples is declared, or another one.
3. Feeds stay as they are where the model fixes how many samples it takes, or does not take a single one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto

from onnxsparse.engines.light_model import LightModel
from onnxsparse.engines.random_projection import Feed, samples_in
from onnxsparse.errors import ModelError
from onnxsparse.math.values import Array

KEPT = 1 << 29
"""Bytes of all values of one piece."""


def in_pieces(proto: ModelProto, feeds: Iterable[Feed], axes: Mapping[str, int] | None = None) -> Pieces:
    """Feeds of as many samples as fit; `axes` are those of the samples, by input, where they are not first."""
    first, axes = next(iter(feeds)), axes or {}
    declared = {value.name: value.type.tensor_type for value in proto.graph.input}
    free = frozenset(name for name, array in first.items() if _is_free(declared[name], axes.get(name, 0), array))
    single = Pieces([first], axes, free, 1)
    if samples_in(first, axes) == 1 or not single.possible(first):
        return Pieces(feeds, axes, free, 0)
    each = _bytes_of_values(proto, next(iter(single)))
    return Pieces(feeds, axes, free, max(KEPT // each, 1) if each else 0)


def _bytes_of_values(proto: ModelProto, feed: Feed) -> int:
    """What the nodes of a model give for a feed; 0 where it does not take it."""
    names = [name for node in proto.graph.node for name in node.output if name]
    try:
        found = LightModel(proto).session(names, optimized=False).run(dict(feed))
    except ModelError:
        return 0
    return sum(value.nbytes for value in found.values() if isinstance(value, np.ndarray))


@dataclass(frozen=True)
class Pieces:
    """Feeds in pieces of at most `size` samples, as they are where that is 0; inputs in `free` take any number."""

    feeds: Iterable[Feed]
    axes: Mapping[str, int]
    free: frozenset[str]
    size: int

    def possible(self, feed: Feed) -> bool:
        """Whether no input that has the samples of a feed fixes their number."""
        count = samples_in(feed, self.axes)
        counts = {name: self._count(name, array) for name, array in feed.items()}
        return all(name in self.free for name, own in counts.items() if own == count)

    def __iter__(self) -> Iterator[Feed]:
        for feed in self.feeds:
            count = samples_in(feed, self.axes)
            for start in range(0, count, self.size or count):
                yield {name: self._part(name, array, count, start) for name, array in feed.items()}

    def _part(self, name: str, array: Array, count: int, start: int) -> Array:
        if not self.size or name not in self.free or self._count(name, array) != count:
            return array
        every: tuple[slice, ...] = (slice(None),) * self.axes.get(name, 0)
        return np.ascontiguousarray(array[(*every, slice(start, start + self.size))])

    def _count(self, name: str, array: Array) -> int:
        return int(array.shape[self.axes.get(name, 0)]) if array.ndim else 0


def _is_free(declared: Any, axis: int, array: Array) -> bool:
    dims = declared.shape.dim
    return array.ndim > axis and (not declared.HasField("shape") or not dims[axis].dim_value)


__all__ = ["Pieces", "in_pieces"]
