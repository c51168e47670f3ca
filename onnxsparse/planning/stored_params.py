"""The parameters of a model file: numbers read whole or slab by slab, integers dequantized, and the tags for training.

1. A weight is seen along one of its uses as (group, out, in, tap); biases, scales and statistics are vectors.
2. A weight of any size passes through in slabs that share their memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from onnxsparse.allocations.energy import Place
from onnxsparse.graph.storage import FLOAT_KINDS, StoredTensor
from onnxsparse.graph.weights import Use, Weight
from onnxsparse.math import rank
from onnxsparse.math.param import Param, demand_finite
from onnxsparse.math.values import Array, Reading, Values
from onnxsparse.patterns import Pattern
from onnxsparse.patterns.unstructured import empty_outputs
from onnxsparse.scores import Score

SAMPLE_EVERY = 1 << 10
SAMPLE_RUN = 256
SLAB = 1 << 20
"""Elements read at a time: large enough for few calls, small enough to stay in the cache."""


@dataclass(frozen=True, eq=False)
class StoredParam(Param):
    """A stored tensor that may train."""

    numbers: Callable[[], Array] = field(repr=False)
    tensor: StoredTensor


@dataclass(frozen=True, eq=False)
class WeightParam(StoredParam):
    """A weight of the model along one of its uses."""

    weight: Weight
    use: Use

    @property
    def shape4(self) -> tuple[int, int, int, int]:
        return self.use.shape4

    def reading(self, start: int, stop: int) -> Reading:
        kind, found = self.tensor.kind, self.use.quantization
        if found is None:
            return Reading(kind)
        scale = self.use.broadcast(found.scale, found.atoms, start, stop)
        return Reading(kind, scale, self.use.broadcast(found.zero_point, found.atoms, start, stop))

    def over(self, flat: Array, start: int, stop: int) -> Values:
        return Values(self.use.matrix(flat), self.reading(start, stop))

    def whole(self) -> Values:
        return self.over(self.tensor.read(), 0, self.tensor.size)

    def slabs(self, multiple: int = 1, outputs: int = 1) -> Iterator[tuple[int, int, Array]]:
        """All of them are read into the same memory, so each is gone when the next is asked for."""
        tensor, memory = self.tensor, np.empty(0, np.uint8)
        for start, stop in self.use.slabs(SLAB, multiple, outputs):
            size = (stop - start) * tensor.dtype.itemsize
            memory = memory if memory.size >= size else np.empty(size, np.uint8)
            yield start, stop, tensor.read(start, stop, memory)

    def sample(self) -> Values | None:
        """Short runs from all over the stored tensor: one in SAMPLE_EVERY of its elements."""
        tensor = self.tensor
        if tensor.span is None or tensor.kind not in FLOAT_KINDS:
            return None
        length = min(SAMPLE_RUN, max(1, tensor.size // SAMPLE_EVERY))
        runs = [tensor.read(*run) for run in rank.runs(tensor.size, length, length * SAMPLE_EVERY)]
        return Values(np.concatenate(runs), Reading(tensor.kind))


def weight_param(weight: Weight, use: Use | None = None) -> WeightParam:
    """A weight along a use, by default the first."""
    use, tensor = use or weight.uses[0], weight.tensor
    numbers = partial(as_float32, tensor)
    return WeightParam(weight.tag, weight.name, tensor.shape, use.matrix, use.restore, numbers, tensor, weight, use)


def vector_param(tensor: StoredTensor, tag: str) -> StoredParam:
    return StoredParam(tag, tensor.name, tensor.shape, None, None, partial(as_float32, tensor), tensor)


def as_float32(tensor: StoredTensor) -> Array:
    """What is stored, in the tensor's shape."""
    flat = Values(tensor.read(), Reading(tensor.kind)).real()
    return flat.astype(np.float32, copy=False).reshape(tensor.shape)


def count_zeros(weight: Weight) -> int | None:
    """Zeros of a weight, as the hardware would see them; None where its numbers cannot be read."""
    tensor = weight.tensor
    if not tensor.readable or tensor.size == 0:
        return None
    if not weight.uses:
        numbers = tensor.read() & np.uint16(0x7FFF) if tensor.kind == "bfloat16" else tensor.read()
        return int(numbers.size - np.count_nonzero(numbers))
    param = weight_param(weight)
    return sum(int(np.count_nonzero(param.over(flat, start, stop).is_zero())) for start, stop, flat in param.slabs())


def empty_outputs_of(param: WeightParam) -> list[int]:
    """The outputs of a weight, through all groups, that have no number but zero; masks in the graph count."""
    zero = param.whole().is_zero()
    for mask in param.use.masks:
        zero = zero | param.use.matrix(~mask.stored())
    return [group * zero.shape[1] + out for group, out in empty_outputs(np.asarray(zero))]


@dataclass(frozen=True, eq=False)
class Candidate:
    """A parameter as an allocation sees it."""

    param: Param
    pattern: Pattern
    score: Score
    place: Place | None = None

    @property
    def name(self) -> str:
        return self.param.name

    @property
    def shape4(self) -> tuple[int, ...]:
        return self.param.shape4

    @property
    def _streamed(self) -> bool:
        """Whether the score of an element depends on nothing but the element."""
        return self.score.elementwise and self.pattern.name == "unstructured"

    def unit_scores(self) -> Iterator[Array]:
        score = self.score.bind(self.name)
        if not self._streamed:
            values = self.param.whole()
            demand_finite(values, self.name)
            yield from self.pattern.unit_chunks(values, score)
            return
        for start, stop, flat in self.param.slabs():
            values = self.param.over(flat, start, stop)
            demand_finite(values, self.name)
            yield from self.pattern.unit_chunks(values, score)

    def sample_scores(self) -> Array | None:
        some = self.param.sample() if self._streamed else None
        return None if some is None else self.score.bind(self.name).value(some)
