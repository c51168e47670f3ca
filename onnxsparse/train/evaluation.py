"""Metrics of a network in training: of the engine, or of the whole file where only a part of its graph trains.

1. What is wrong with metrics or labels is said when the first engine is there, before anything is trained.
2. Where a graph was cut, what comes behind the cut is fed by the dense model; and planned weights that are in no graph
   are pruned when the result is written. What the engine gives says nothing of either, so metrics are measured on the
   files themselves: the dense one, and the one that would be delivered now, as `compare` runs them.
3. Both run in onnxruntime, on as many samples at once as the file takes: one, where it leaves that open. What depends
   on the samples beside it comes out as in `compare`. Outputs whose size changes from sample to sample, or from the one
   model to the other, are left out.
4. A whole file that cannot be run is said: the figures are then of the part that trains.
What it does not do: give a loss. That is the engine's, of the part that trains.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto

from onnxsparse.acts import weights
from onnxsparse.calibration.collecting import with_outputs
from onnxsparse.data import LABELS, Samples, Stream, check_block, check_labels
from onnxsparse.engines.engine import Answering, Batch, Engine, Spec
from onnxsparse.engines.inference import Session
from onnxsparse.engines.sample_axes import turn
from onnxsparse.errors import MissingExtraError, ModelError
from onnxsparse.graph.edit import FLOATS, bypass
from onnxsparse.math.values import Array
from onnxsparse.passes.delivery import untrained
from onnxsparse.passes.prune import Prune
from onnxsparse.planning.plan import Plan, PlanRow
from onnxsparse.planning.trainable import send_back
from onnxsparse.train.cut import search_in
from onnxsparse.train.fake_quantization import FakeQuantization, Integers
from onnxsparse.train.objective import classes_seen
from onnxsparse.train.sequences import Carried
from onnxsparse.train.task import Task

Arrays = Mapping[str, Array]
NOT_RUN = (MissingExtraError, ModelError, ValueError)
"""What is raised where a whole file cannot be run; the last where it is too large to be one message."""
WHOLE = (
    "only a part of the network is in the graph that trains: the losses are of that part, the other figures of the "
    "whole file"
)
OF_PART, OF_WHOLE = ", of the part that trains", ", of the whole file"
PART_ONLY = "the metrics are of the part that trains, not of the delivered file, which `compare` measures"


class Evaluation:
    """What is measured in the run of a task."""

    def __init__(self, task: Task) -> None:
        assert task.measure is not None
        self._task, self._measure, self._classes = task, task.measure, 0
        self._whole: Whole | None = Whole(task, set(task.measure.data.shared))
        self.fake: FakeQuantization | None = None
        """That of the attempt that is measured."""
        self._spec = Spec(1)
        self.notes: list[str] = []
        self.of = ""
        """Whether the figures are of the whole file or of a part, where only a part trains: OF_WHOLE or OF_PART."""

    @property
    def each_epoch(self) -> bool:
        """Whether it is measured after every epoch, or only what is delivered and what it is held against."""
        return self._measure.each_epoch

    @property
    def on(self) -> str:
        """What it is measured on, in words."""
        return self._measure.on + (OF_PART if self.of == OF_PART else "")

    def begin(self, engine: Engine, spec: Spec | None = None) -> None:
        """Look at an engine that was just made, and what it was made by."""
        self._spec = Spec(1) if spec is None else spec
        if self._task.objective.task == "cross-entropy" and not self._classes:
            self.demand_classes(self._classes_seen(engine))
        try:
            self._measure.begin(self._seen(engine))
        except NOT_RUN as error:
            if not self.of or self._whole is None:
                raise
            self._whole, self.of = None, OF_PART
            self.notes.append(f"{PART_ONLY}: {error}")
            self._measure.begin(engine)

    def __call__(self, engine: Engine, rest: Sequence[PlanRow] | None = None) -> dict[str, float]:
        """Figures of the model in training; of several processes the first one measures.

        `rest` are the weights that are pruned in the whole file beside those of the engine: by default all planned.
        """
        return dict(self._task.processes.told(lambda: self._figures(engine, self._measure, rest)))

    def dense(self, engine: Engine) -> dict[str, float]:
        """Figures of the dense model."""
        return dict(self._task.processes.told(lambda: self._figures(engine, self._measure.dense)))

    def _figures(
        self,
        engine: Engine,
        measure: Callable[[Answering], dict[str, float]],
        rest: Sequence[PlanRow] | None = None,
    ) -> dict[str, float]:
        """What is measured; nothing where that is the whole file and it fails now, for the training is done."""
        seen = self._seen(engine, rest)
        if seen is engine:
            return measure(engine)
        try:
            return measure(seen)
        except ModelError as error:
            self.notes.append(f"not measured: the whole file could not be run to the end: {error}")
            return {}

    def _seen(self, engine: Engine, rest: Sequence[PlanRow] | None = None) -> Answering:
        """What is measured: the engine, or the whole file where the engine's network is only a part of it."""
        has = {*engine.weights, *self._spec.idle}
        trains = {self._task.tags[tag].tensor for tag in self._task.planned if tag in has}
        rest = [row for row in self._task.reachable if row.weight.tensor not in trains] if rest is None else rest
        if self._whole is None or not (engine.partial or rest):
            return engine
        self.of = OF_WHOLE
        return self._whole.of(engine, rest, self.fake, self._spec.bypasses)

    def _classes_seen(self, engine: Engine) -> int:
        task = self._task
        batch = next(task.feeding.probe())
        arrays = batch.arrays if task.carried is None else task.carried[0].flat(batch.arrays)
        return classes_seen(engine.dense(batch), task.goal, arrays[LABELS])

    def demand_classes(self, classes: int) -> None:
        """Every label is one of the classes, also of what is measured on: engines read beyond their arrays."""
        self._classes, task = classes, self._task
        check_labels(task.data, classes)
        for place, batch in enumerate(task.feeding.probe() if isinstance(task.data, Stream) else ()):
            check_block(batch.arrays[LABELS], place * task.feeding.size, classes, task.data.called)
        if isinstance(self._measure.data, Samples):
            check_labels(self._measure.data, classes)


class Whole:
    """The files of one run; `shared` are the inputs that are the same for all samples."""

    def __init__(self, task: Task, shared: Collection[str]) -> None:
        self._task, self._shared = task, shared
        self._dense: File | None = None

    @property
    def dense(self) -> File:
        if self._dense is None:
            self._dense = self._file(self._task.model.copy_proto())
        return self._dense

    def of(
        self,
        engine: Engine,
        rest: Sequence[PlanRow],
        fake: FakeQuantization | None = None,
        bypasses: Mapping[str, str] | None = None,
    ) -> Answering:
        """The network that would be delivered now; `rest` are the planned weights that the engine does not have."""

        def both(inner: Engine) -> Answering:
            return _Both(inner, self, rest, fake, bypasses or {})

        return engine.around(both) if isinstance(engine, Carried) else both(engine)

    def delivered(
        self, engine: Engine, rest: Sequence[PlanRow], fake: FakeQuantization | None, bypasses: Mapping[str, str]
    ) -> File:
        proto = float_now(self._task, engine, rest)
        if bypasses:
            bypass(proto, bypasses)
        scales = {} if fake is None else fake.arrays(engine)
        if fake is not None and scales:
            Integers(fake, scales).write(proto)
        return self._file(proto)

    def _file(self, proto: ModelProto) -> File:
        return File.of(self._task, proto, self._shared)


class _Pair:
    """A file that was made of a dense one, beside that."""

    def __init__(self, file: File, dense: File, left_out: Collection[str]) -> None:
        self._file, self._dense, self._left_out = file, dense, left_out

    def evaluate(self, batch: Batch) -> tuple[float, dict[str, Array]]:
        dense, every = self._dense(batch.arrays), self._file(batch.arrays)
        found = {name: one for name, one in every.items() if name not in self._left_out}
        return 0.0, {name: one for name, one in found.items() if name in dense and one.shape == dense[name].shape}

    def dense(self, batch: Batch) -> dict[str, Array]:
        return self._dense(batch.arrays)


UNCOUNTED = (
    "the outputs of the whole file are not compared: how many numbers they hold differs from sample to sample; the "
    "figures are of where it was cut"
)
WHOLE_NUMBERS = (
    "the outputs of the whole file are not compared: they are whole numbers or truth values, which are right or wrong "
    "and not near; the figures are of where it was cut"
)


CHOSEN = (
    "the outputs of the whole file are not compared: '{node}' chooses what they are of, and for other weights "
    "something else; the figures are of where it was cut"
)


def whole_distances(task: Task, trained: Arrays) -> tuple[dict[str, float], str]:
    """The relative distance of the whole file's own outputs from the dense model's, pruned alone and trained, and why
    there is none; for a model that was cut. `trained` are its numbers by tag."""
    assert task.measure is not None
    if not any(value.type.tensor_type.elem_type in FLOATS for value in task.model.proto.graph.output):
        return {}, WHOLE_NUMBERS
    measure, shared = task.measure, set(task.measure.data.shared)
    search = search_in(task.model, task.every)
    if search.chooses is not None and search.chosen.issuperset(one.name for one in task.model.proto.graph.output):
        return {}, CHOSEN.format(node=search.chooses.op_type)

    def distance(rows: Sequence[PlanRow], numbers: Arrays) -> float | None:
        with task.model.restored():
            Prune(Plan(tuple(rows), task.plan.rule))(task.model)
            send_back(numbers, task.every)
            file = File(task.model.copy_proto(), shared)
        return measure.distance(_Pair(file, dense, search.chosen))

    try:
        dense = File(task.model.copy_proto(), shared)
        found = distance(task.plan.planned, {}), distance(untrained(task.plan, trained, task.every), trained)
    except NOT_RUN as error:
        return {}, f"the outputs of the whole file are not compared: {error}"
    if found[0] is None or found[1] is None:
        return {}, UNCOUNTED
    return {"pruned": found[0], "trained": found[1]}, ""


def float_now(task: Task, engine: Engine, rest: Sequence[PlanRow] = ()) -> ModelProto:
    """The model with the weights of an engine, and zeros in those of `rest`, which that does not have."""
    with task.model.restored():
        Prune(Plan(tuple(rest), task.plan.rule))(task.model)
        send_back({tag: weights.baked(engine, tag) for tag in weights.stored(engine)}, task.tags)
        return task.model.copy_proto()


def ranges_of(
    task: Task, engine: Engine, names: Sequence[str], bypasses: Mapping[str, str]
) -> dict[str, tuple[float, float]]:
    """The least and the greatest number of values in the float model as an engine has it: means over batches."""
    proto = float_now(task, engine)
    if bypasses:
        bypass(proto, bypasses)
    inner = set(names) - {value.name for value in proto.graph.input}  # the runtime hands inputs on unwritten
    proto = turn(with_outputs(proto, sorted(inner)), task.axes.inputs, task.axes.outputs)
    file, found = File(proto, task.feeding.shared), dict[str, list[tuple[float, float]]]()
    for batch in task.calibration():
        values = {**batch, **file(batch)}
        for name in names:
            found.setdefault(name, []).append((float(values[name].min()), float(values[name].max())))
    return {name: (float(low), float(high)) for name, ends in found.items() for low, high in (np.mean(ends, 0),)}


class _Both:
    """A network as it is delivered, beside the dense one. The weights are those of the first time that it is asked."""

    def __init__(
        self,
        engine: Engine,
        whole: Whole,
        rest: Sequence[PlanRow],
        fake: FakeQuantization | None,
        bypasses: Mapping[str, str],
    ) -> None:
        self._engine, self._whole, self._rest, self._fake, self._bypasses = engine, whole, rest, fake, bypasses
        self._made: File | None = None
        self._last: tuple[Arrays, dict[str, Array]] | None = None

    def evaluate(self, batch: Batch) -> tuple[float, dict[str, Array]]:
        if self._made is None:
            self._made = self._whole.delivered(self._engine, self._rest, self._fake, self._bypasses)
        dense, found = self.dense(batch), self._made(batch.arrays)
        alike = {name: one for name, one in found.items() if name in dense and one.shape == dense[name].shape}
        return self._engine.evaluate(batch)[0], alike

    def dense(self, batch: Batch) -> dict[str, Array]:
        if self._last is None or self._last[0] is not batch.arrays:
            self._last = batch.arrays, self._whole.dense(batch.arrays)
        return self._last[1]


class File:
    """A model with the samples first, run on some of them."""

    def __init__(self, proto: ModelProto, shared: Collection[str]) -> None:
        self._session, self._shared = Session(proto), shared

    @classmethod
    def of(cls, task: Task, proto: ModelProto, shared: Collection[str] | None = None) -> File:
        """What trains of a whole model, with the samples first."""
        if task.part is not None:
            proto = task.part.of(proto)
        turned = turn(proto, task.axes.inputs, task.axes.outputs)
        return cls(turned, task.feeding.shared if shared is None else shared)

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
