"""Pruning: the zeros of a plan are written into the stored tensors.

1. Only the numbers of planned weights change; dropped ones become +0.0 or the zero point.
2. N:M and elementwise unstructured pruning stream: a tensor of any size passes through in slabs.
3. Nothing is written before every planned weight was found finite.
What it does not do: decide anything (that is the plan), touch the graph, or record metadata.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxsparse import progress
from onnxsparse.errors import OnnxSparseError, PlanError
from onnxsparse.graph.model import Model
from onnxsparse.math import rank
from onnxsparse.math.param import demand_finite
from onnxsparse.math.values import BLOCK, Array, Reading, Values, erase_block
from onnxsparse.passes.model_pass import Changed, Pass
from onnxsparse.patterns.nm import NOfM
from onnxsparse.patterns.unstructured import Unstructured
from onnxsparse.planning.given_masks import kept_by
from onnxsparse.planning.plan import Plan, PlanRow
from onnxsparse.planning.stored_params import SLAB
from onnxsparse.scores import Score

HELD = 1 << 22
"""Elements of a tensor that may be in memory at once."""
RUN, RUNS = 128, 512
"""The sample that brackets a threshold: how long its runs are, and how many."""


class Scratch:
    """Memory that is used for one tensor after the other: new memory costs more than reading into it."""

    def __init__(self) -> None:
        self._memory: Array = np.empty(0, np.uint8)

    def of(self, size: int) -> Array:
        if self._memory.size < size:
            self._memory = np.empty(size, np.uint8)
        return self._memory


class Prune(Pass):
    """Sets the edit of every planned weight's tensor, which is computed when the model is written."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def refusal(self, model: Model) -> OnnxSparseError | None:
        homes = model.flow.stores.homes
        other = next((row.name for row in self._plan.planned if row.weight.tensor not in homes), None)
        return None if other is None else PlanError(f"weight '{other}' of the plan is one of another model")

    def call(self, model: Model) -> Changed:
        scratch, done = Scratch(), progress.Counter("prune", sum(row.weight.tensor.size for row in self._plan.planned))
        for row in self._plan.planned:
            if any(twin.tensor.edit for twin in row.weight.twins):
                continue  # the same bytes under another name
            row.weight.tensor.edit = Pruned(row, self._plan.rule.score, scratch, done)
        return Changed({row.weight: "" for row in self._plan.planned})


class Pruned:
    """The new numbers of one weight, in consecutive pieces, made when they are written."""

    def __init__(self, row: PlanRow, score: Score, scratch: Scratch, done: progress.Counter) -> None:
        self._row, self._score, self._scratch, self._progress = row, score.bind(row.name), scratch, done
        self._plain = score

    def __call__(self) -> Iterator[Array]:
        for piece in self.pieces():
            self._progress.add(piece.size)
            yield piece

    def pieces(self) -> Iterator[Array]:
        row = self._row
        if row.keep is not None:
            return self._by_mask(row.keep)
        if row.tied is not None:
            return self._by_mask(np.asarray(kept_by(row.tied, self._plain)).reshape(-1))
        if isinstance(row.pattern, NOfM) and self._score.elementwise:
            return self._by_groups(row.pattern)
        if isinstance(row.pattern, Unstructured) and self._score.elementwise and row.drop and self._one_scale:
            return self._by_threshold()
        return self._whole()

    @property
    def _one_scale(self) -> bool:
        """Whether every number of the tensor reads alike, so that pieces need no axes."""
        found = self._row.use.quantization
        return found is None or found.scale.size == found.zero_point.size == 1

    @property
    def _reading(self) -> Reading:
        """How a flat piece reads, where all read alike."""
        kind, found = self._row.weight.tensor.kind, self._row.use.quantization
        return Reading(kind) if found is None else Reading(kind, found.scale.reshape(1), found.zero_point.reshape(1))

    def _values(self, flat: Array, start: int, stop: int) -> Values:
        values = self._row.param.over(flat, start, stop)
        demand_finite(values, self._row.name)
        return values

    def _by_mask(self, keep: Array) -> Iterator[Array]:
        for start, stop, flat in self._row.param.slabs():
            values = self._values(flat, start, stop)
            kept = self._row.use.matrix(keep[start:stop])
            yield self._row.use.restore(np.where(kept, values.stored, values.zero))

    def _by_groups(self, pattern: NOfM) -> Iterator[Array]:
        _, outputs, inputs, _ = pattern.cell(self._row.use.shape4)
        for start, stop, flat in self._row.param.slabs(inputs, outputs):
            values = self._values(flat, start, stop)
            pattern.prune(values, self._score, 0, values.stored)
            yield flat if np.shares_memory(values.stored, flat) else self._row.use.restore(values.stored)

    def _by_threshold(self) -> Iterator[Array]:
        """A key parts the dropped from the kept: the plan knows it, or one look finds it. Then one look writes."""
        held, cut = None, self._row.cut
        if cut is None:
            tensor = self._row.weight.tensor
            held = (
                tensor.read(into=self._scratch.of(tensor.size * tensor.dtype.itemsize)) if tensor.size <= HELD else None
            )
            key, _, ties = rank.threshold(lambda: self._keys(held), self._row.drop, self._sample(held))
            cut = key, ties
        key, ties = cut
        for values in self._blocks(held):
            keep, ties = rank.kept_of(self._score.rank(values), key, ties)
            erase_block(values, keep, values.stored)
            yield values.stored

    def _blocks(self, held: Array | None) -> Iterator[Values]:
        """Pieces that fit the cache, each gone when the next slab is read."""
        reading = self._reading
        for flat in self._slabs(held):
            for start in range(0, flat.size, BLOCK):
                yield Values(flat[start : start + BLOCK], reading)

    def _slabs(self, held: Array | None) -> Iterator[Array]:
        """The numbers in stored order: unstructured pruning needs no axes."""
        tensor = self._row.weight.tensor
        if held is not None:
            yield held
            return
        for start in range(0, tensor.size, SLAB):
            memory = self._scratch.of(SLAB * tensor.dtype.itemsize)
            yield tensor.read(start, min(start + SLAB, tensor.size), memory)

    def _keys(self, held: Array | None) -> Iterator[Array]:
        for values in self._blocks(held):
            demand_finite(values, self._row.name)
            yield self._score.rank(values)

    def _sample(self, held: Array | None) -> rank.Sample:
        """Keys from all over the tensor: single ones where it is held, runs where they have to be read."""
        tensor = self._row.weight.tensor
        if held is not None:
            strided = np.ascontiguousarray(held[:: max(1, held.size >> 16)])
            return rank.Sample(self._score.rank(Values(strided, self._reading)), tensor.size)
        runs = rank.runs(tensor.size, RUN, max(RUN, tensor.size // RUNS))
        values = [Values(tensor.read(*run), self._reading) for run in runs]
        return rank.Sample(np.concatenate([self._score.rank(piece) for piece in values]), tensor.size, RUN)

    def _whole(self) -> Iterator[Array]:
        row, size = self._row, self._row.weight.tensor.size
        if row.pattern is None:
            raise PlanError(f"weight '{row.name}' is not planned")
        flat = row.weight.tensor.read()
        values = self._values(flat, 0, size)
        row.pattern.prune(values, self._score, row.drop, values.stored)
        yield flat if np.shares_memory(values.stored, flat) else row.use.restore(values.stored)


def numbers_of(row: PlanRow, score: Score) -> Array:
    """The numbers of a planned weight with its zeros, as it is stored."""
    edit = Pruned(row, score, Scratch(), progress.Counter("prune", row.weight.tensor.size))
    return np.concatenate([piece.reshape(-1).copy() for piece in edit.pieces()]).reshape(row.weight.shape)
