"""The whole network's answers, where the graph that trains is only a part of it.

1. Where a graph was cut, what comes behind the cut is fed by the dense model; and planned weights that are in no graph
   are pruned when the result is written. What the engine gives says nothing of either, so metrics are measured on the
   files themselves: the dense one, and the one that would be delivered now, as `compare` runs them.
2. Both run in onnxruntime, on as many samples at once as the file takes: one, where it leaves that open. What depends
   on the samples beside it comes out as in `compare`.
3. Outputs whose size changes from sample to sample, or from the one model to the other, are left out.
What it does not do: give a loss. That is the engine's, of the part that trains.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto

from onnxsparse.engines.engine import Answering, Batch, Engine
from onnxsparse.engines.turning import turn
from onnxsparse.graph.model import Model
from onnxsparse.math.values import Array
from onnxsparse.passes.outputs import Session
from onnxsparse.passes.plan import Plan, PlanRow
from onnxsparse.passes.prune import Prune
from onnxsparse.passes.sample_axes import SampleAxes
from onnxsparse.passes.trainable import Trainable, send_back
from onnxsparse.runs import weights
from onnxsparse.runs.carrying import Carried

Arrays = Mapping[str, Array]


class Whole:
    """The files of one run; `shared` are the inputs that are the same for all samples."""

    def __init__(
        self, model: Model, tags: Mapping[str, Trainable], plan: Plan, axes: SampleAxes, shared: Collection[str]
    ) -> None:
        self._model, self._tags, self._plan, self._axes, self._shared = model, tags, plan, axes, shared
        self._dense: _File | None = None

    @property
    def dense(self) -> _File:
        if self._dense is None:
            self._dense = self._file(self._opened())
        return self._dense

    def of(self, engine: Engine, rest: Sequence[PlanRow]) -> Answering:
        """The network that would be delivered now; `rest` are the planned weights that the engine does not have."""

        def both(inner: Engine) -> Answering:
            return _Both(inner, self, rest)

        return engine.around(both) if isinstance(engine, Carried) else both(engine)

    def delivered(self, engine: Engine, rest: Sequence[PlanRow]) -> _File:
        homes = list(self._model.flow.stores.homes)
        before = [tensor.edit for tensor in homes]
        copy = self._opened()
        try:
            Prune(Plan(tuple(rest), self._plan.rule))()
            send_back({tag: weights.baked(engine, tag) for tag in weights.stored(engine)}, self._tags)
            for own, other in zip(copy.flow.stores.homes, homes):
                own.edit = other.edit
            return self._file(copy)
        finally:
            for tensor, edit in zip(homes, before):
                tensor.edit = edit

    def _opened(self) -> Model:
        copy = Model.open(self._model.path) if self._model.path is not None else Model.open(self._model.proto)
        _ = copy.weights
        return copy

    def _file(self, model: Model) -> _File:
        return _File(turn(model.take_proto(), self._axes.inputs, self._axes.outputs), self._shared)


class _Both:
    """A network as it is delivered, beside the dense one. The weights are those of the first time that it is asked."""

    def __init__(self, engine: Engine, whole: Whole, rest: Sequence[PlanRow]) -> None:
        self._engine, self._whole, self._rest = engine, whole, rest
        self._made: _File | None = None
        self._last: tuple[Arrays, dict[str, Array]] | None = None

    def evaluate(self, batch: Batch) -> tuple[float, dict[str, Array]]:
        if self._made is None:
            self._made = self._whole.delivered(self._engine, self._rest)
        dense, found = self.dense(batch), self._made(batch.arrays)
        alike = {name: one for name, one in found.items() if name in dense and one.shape == dense[name].shape}
        return self._engine.evaluate(batch)[0], alike

    def dense(self, batch: Batch) -> dict[str, Array]:
        if self._last is None or self._last[0] is not batch.arrays:
            self._last = batch.arrays, self._whole.dense(batch.arrays)
        return self._last[1]


class _File:
    """A model with the samples first, run on some of them."""

    def __init__(self, proto: ModelProto, shared: Collection[str]) -> None:
        self._session, self._shared = Session(proto), shared

    def __call__(self, arrays: Arrays) -> dict[str, Array]:
        """The float outputs."""
        own = {name: arrays[name] for name, _, _ in self._session.inputs if name in arrays}
        count = max((len(one) for name, one in own.items() if one.ndim and name not in self._shared), default=1)
        rowed = {name for name, one in own.items() if one.ndim and name not in self._shared and len(one) == count}
        shapes: dict[str, list[Any]] = {name: shape for name, _, shape in self._session.inputs}
        sizes = [shapes[name][0] for name in rowed if shapes[name]]
        unit = max((size for size in sizes if isinstance(size, int)), default=1)
        pieces: list[dict[str, Array]] = []
        for start in range(0, count, unit):
            rows = np.arange(start, start + unit) % count
            feed = {name: _taken(one, rows, shapes[name]) if name in rowed else one for name, one in own.items()}
            found = self._session.run({name: np.asarray(one, order="C") for name, one in feed.items()})
            pieces.append({name: one for name, one in found.items() if isinstance(one, np.ndarray)})
        return _joined(pieces, count, unit)


def _taken(array: Array, rows: Array, shape: Sequence[Any]) -> Array:
    """Some samples of an input; an input without axes is fed one of them."""
    return array[rows] if shape else np.asarray(array[rows[0]])


def _joined(pieces: Sequence[dict[str, Array]], count: int, unit: int) -> dict[str, Array]:
    joined = {}
    for name, first in pieces[0].items():
        same = all(name in piece and piece[name].shape == first.shape for piece in pieces)
        if same and first.dtype.kind == "f":
            array = np.concatenate([np.atleast_1d(piece[name]) for piece in pieces])
            joined[name] = array[:count] if first.ndim and len(first) == unit else array
    return joined
