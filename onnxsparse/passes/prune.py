"""Writing the zeros of a plan into the stored tensors.

1. Only the numbers of planned weights change; dropped ones become +0.0 or the zero point.
2. N:M and elementwise unstructured pruning stream: a tensor of any size passes through in slabs.
3. Nothing is written before every planned weight was found finite.
What it does not do: decide anything (that is the plan), touch the graph, or record metadata.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxsparse import rank
from onnxsparse.errors import PlanError
from onnxsparse.passes.matrices import SLAB, demand_finite
from onnxsparse.passes.plan import Plan, PlanRow
from onnxsparse.patterns.erasing import erase_block
from onnxsparse.patterns.nm import NM
from onnxsparse.patterns.unstructured import Unstructured
from onnxsparse.scores import Score
from onnxsparse.values import Array, Reading, Values

HELD = 1 << 25
"""Elements of a tensor that may be in memory at once."""


class Prune:
    """Sets the edit of every planned weight's tensor."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def __call__(self) -> list[PlanRow]:
        for row in self._plan.planned:
            if any(twin.tensor.edit for twin in row.weight.twins):
                continue  # the same bytes under another name
            row.weight.tensor.edit = Pruned(row, self._plan.rule.score)
        return self._plan.planned


class Pruned:
    """The new numbers of one weight, in consecutive pieces, made when they are written."""

    def __init__(self, row: PlanRow, score: Score) -> None:
        self._row, self._score = row, score.bind(row.name)

    def __call__(self) -> Iterator[Array]:
        row = self._row
        if row.keep is not None:
            return self._by_mask(row.keep)
        if isinstance(row.pattern, NM) and self._score.elementwise:
            return self._by_groups(row.pattern)
        if isinstance(row.pattern, Unstructured) and self._score.elementwise and row.drop:
            return self._by_threshold()
        return self._whole()

    def _values(self, flat: Array, start: int, stop: int) -> Values:
        values = self._row.matrix.over(flat, start, stop)
        demand_finite(values, self._row.name)
        return values

    def _by_mask(self, keep: Array) -> Iterator[Array]:
        for start, stop, flat in self._row.matrix.slabs():
            values = self._values(flat, start, stop)
            kept = self._row.use.matrix(keep[start:stop])
            yield self._row.use.restore(np.where(kept, values.stored, values.zero))

    def _by_groups(self, pattern: NM) -> Iterator[Array]:
        for start, stop, flat in self._row.matrix.slabs(pattern.m):
            values = self._values(flat, start, stop)
            pattern.prune(values, self._score, 0, values.stored)
            yield flat if np.shares_memory(values.stored, flat) else self._row.use.restore(values.stored)

    def _by_threshold(self) -> Iterator[Array]:
        """One look finds the key that parts the dropped from the kept, one writes; a small tensor is read once."""
        tensor = self._row.weight.tensor
        held = tensor.read() if tensor.size <= HELD else None
        key, _, ties = rank.threshold(lambda: self._keys(held), self._row.drop)
        for start, stop, flat in self._pieces(held):
            values = self._stored_order(flat, start, stop)
            keep, used = _above(self._score.rank(values), key, ties)
            ties -= used
            erase_block(values, keep, values.stored)
            yield flat

    def _keys(self, held: Array | None) -> Iterator[Array]:
        for start, stop, flat in self._pieces(held):
            values = self._stored_order(flat, start, stop)
            demand_finite(values, self._row.name)
            yield self._score.rank(values)

    def _pieces(self, held: Array | None) -> Iterator[tuple[int, int, Array]]:
        size = self._row.weight.tensor.size
        for start in range(0, size, SLAB):
            stop = min(start + SLAB, size)
            yield start, stop, self._row.weight.tensor.read(start, stop) if held is None else held[start:stop]

    def _stored_order(self, flat: Array, start: int, stop: int) -> Values:
        """Unstructured pruning needs no axes: the numbers in the order they are stored."""
        reading = self._row.matrix.reading(start, stop)
        if reading.scale is None or reading.zero_point is None:
            return Values(flat, reading)
        return Values(
            flat, Reading(reading.kind, self._flat(reading.scale, flat), self._flat(reading.zero_point, flat))
        )

    def _flat(self, numbers: Array, flat: Array) -> Array:
        if numbers.size == 1:
            return numbers.reshape(1)
        return self._row.use.restore(np.broadcast_to(numbers, self._row.use.matrix(flat).shape))

    def _whole(self) -> Iterator[Array]:
        row, size = self._row, self._row.weight.tensor.size
        if row.pattern is None:
            raise PlanError(f"weight '{row.name}' is not planned")
        flat = row.weight.tensor.read()
        values = self._values(flat, 0, size)
        row.pattern.prune(values, self._score, row.drop, values.stored)
        yield flat if np.shares_memory(values.stored, flat) else row.use.restore(values.stored)


def _above(keys: Array, key: object, ties: int) -> tuple[Array, int]:
    """Keep what is above the key, and of those equal to it all but the first `ties`; also how many of these went."""
    keep = keys >= key
    equal = np.flatnonzero(keys == key)[:ties] if ties else np.empty(0, np.int64)
    keep[equal] = False
    return keep, len(equal)


def kept_by(row: PlanRow, score: Score) -> Array:
    """The mask that pruning a row would leave, in stored order, True = keep."""
    if row.keep is not None:
        return row.keep
    if row.pattern is None:
        raise PlanError(f"weight '{row.name}' is not planned")
    values = row.matrix.whole()
    demand_finite(values, row.name)
    if isinstance(row.pattern, Unstructured) and values.reading.scale is None:
        flat = Values(row.weight.tensor.read().reshape(1, 1, 1, -1), values.reading)
        return row.pattern.select(flat, score.bind(row.name), row.drop).reshape(-1)
    return row.use.restore(row.pattern.select(values, score.bind(row.name), row.drop))
