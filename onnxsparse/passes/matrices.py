"""A weight's numbers as the mathematics sees them: (group, out, in, tap) values, whole or slab by slab."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from onnxsparse.allocations.energy import Place
from onnxsparse.errors import ModelError
from onnxsparse.graph.storage import FLOAT_KINDS
from onnxsparse.graph.weights import Use, Weight
from onnxsparse.math import rank
from onnxsparse.math.values import Array, Reading, Values
from onnxsparse.patterns import Pattern
from onnxsparse.scores import Score

SAMPLE_EVERY = 1 << 10
SAMPLE_RUN = 256
SLAB = 1 << 20
"""Elements read at a time: large enough for few calls, small enough to stay in the cache."""


@dataclass(frozen=True, eq=False)
class Matrix:
    """One weight along one of its uses, under the name it has in reports."""

    name: str
    weight: Weight
    use: Use

    @property
    def shape4(self) -> tuple[int, int, int, int]:
        return self.use.shape4

    def reading(self, start: int, stop: int) -> Reading:
        kind, found = self.weight.tensor.kind, self.use.quantization
        if found is None:
            return Reading(kind)
        scale = self.use.broadcast(found.scale, found.atoms, start, stop)
        return Reading(kind, scale, self.use.broadcast(found.zero_point, found.atoms, start, stop))

    def over(self, flat: Array, start: int, stop: int) -> Values:
        """Elements start to stop of the stored tensor as values."""
        return Values(self.use.matrix(flat), self.reading(start, stop))

    def whole(self) -> Values:
        size = self.weight.tensor.size
        return self.over(self.weight.tensor.read(), 0, size)

    def slabs(self, multiple: int = 1) -> Iterator[tuple[int, int, Array]]:
        """Pieces of the stored tensor that cut no group of `multiple`: where they are, and their numbers.

        All of them are read into the same memory, so each is gone when the next is asked for.
        """
        tensor, memory = self.weight.tensor, np.empty(0, np.uint8)
        for start, stop in self.use.slabs(SLAB, multiple):
            size = (stop - start) * tensor.dtype.itemsize
            memory = memory if memory.size >= size else np.empty(size, np.uint8)
            yield start, stop, tensor.read(start, stop, memory)


def demand_finite(values: Values, name: str) -> None:
    """Numbers that are none can neither be ranked nor trusted."""
    if not values.all_finite():
        raise ModelError(
            f"weight '{name}' holds NaN or infinity; repair the model, such a weight can be neither ranked nor trusted"
        )


@dataclass(frozen=True, eq=False)
class Candidate:
    """A weight as an allocation sees it."""

    matrix: Matrix
    pattern: Pattern
    score: Score
    place: Place | None = None

    @property
    def name(self) -> str:
        return self.matrix.name

    @property
    def shape4(self) -> tuple[int, int, int, int]:
        return self.matrix.shape4

    def unit_scores(self) -> Iterator[Array]:
        score = self.score.bind(self.name)
        if not (score.elementwise and self.pattern.name == "unstructured"):
            values = self.matrix.whole()
            demand_finite(values, self.name)
            yield from self.pattern.unit_chunks(values, score)
            return
        for start, stop, flat in self.matrix.slabs():
            values = self.matrix.over(flat, start, stop)
            demand_finite(values, self.name)
            yield from self.pattern.unit_chunks(values, score)

    def sample_scores(self) -> Array | None:
        """Short runs from all over the stored tensor: one in SAMPLE_EVERY of its elements."""
        tensor, streamed = self.matrix.weight.tensor, self.score.elementwise and self.pattern.name == "unstructured"
        if not streamed or tensor.span is None or tensor.kind not in FLOAT_KINDS:
            return None
        length = min(SAMPLE_RUN, max(1, tensor.size // SAMPLE_EVERY))
        runs = [tensor.read(*run) for run in rank.runs(tensor.size, length, length * SAMPLE_EVERY)]
        some = Values(np.concatenate(runs), Reading(tensor.kind))
        return self.score.bind(self.name).value(some)
