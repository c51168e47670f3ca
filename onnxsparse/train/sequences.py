"""Training on sequences: states of samples are carried from step to step, on an engine that knows single steps.

1. A sample is a sequence: its arrays are [samples, steps, ...], and what has no steps is the same at all of them. The
   state of a step is what the network gave out a step before. It begins with zeros, or with what the data says.
2. Every network has its own states: the network in training goes by its own, and the dense one, where it is measured,
   by those of its own. In a training step the dense model answers to the states of the network in training.
3. No gradient goes through a state: all steps of all sequences are rows of one batch, whose states are given.
4. Outputs come as one row for each step, the steps of a sequence one after the other.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from onnxsparse.data import IGNORED, LABELS, Data, Field, Samples
from onnxsparse.engines.engine import Answering, Batch, Engine, Pace
from onnxsparse.engines.inference import Session
from onnxsparse.engines.layer_terms import LayersOfFile
from onnxsparse.engines.other_teacher import OtherTeacher
from onnxsparse.engines.sample_axes import turn
from onnxsparse.errors import ModelError, OptionError
from onnxsparse.graph.model import Model
from onnxsparse.math.values import Array
from onnxsparse.planning.model_inputs import SampleAxes, fields_of

Arrays = Mapping[str, Array]
Found = tuple[float, dict[str, Array]]
FEWEST = 8
"""Sequences at least that a graph is made with."""


class Sequences:
    """What of a batch has steps, and what its states begin with."""

    def __init__(self, fields: Sequence[Field], states: Mapping[str, str]) -> None:
        self.fields = {field.name: field for field in fields}
        self.states = dict(states)

    def size(self, arrays: Arrays) -> tuple[int, int]:
        """How many sequences there are, and of how many steps."""
        found = {name: array.shape[:2] for name, array in arrays.items() if self._stepped(name, array)}
        if not found:
            names = ", ".join(name for name in self.fields if name not in self.states)
            raise OptionError(
                f"--state carries states along steps, and no array of the data has an axis of them: one of {names} has "
                "to be [samples, steps, ...], with one axis more than the model takes"
            )
        first = next(iter(found))
        for name, (_, steps) in found.items():
            if steps != found[first][1]:
                raise OptionError(f"the data has {found[first][1]} steps of '{first}', but {steps} of '{name}'")
        labels = arrays.get(LABELS)
        if labels is not None and LABELS not in self.fields and labels.shape[1:2] != found[first][1:]:
            raise OptionError(
                f"the labels of sequences are [samples, steps, ...], one for each step: they have shape "
                f"{list(labels.shape)}, and there are {found[first][1]} steps"
            )
        return found[first]

    def at(self, arrays: Arrays, step: int, states: Arrays) -> dict[str, Array]:
        """What one step of all sequences is fed."""
        own = {name: array[:, step] if self.has_steps(name, array) else array for name, array in arrays.items()}
        return {**own, **states}

    def begin(self, arrays: Arrays) -> dict[str, Array]:
        """The states before the first step."""
        count, found = self.size(arrays)[0], {}
        for name in self.states:
            field = self.fields[name]
            if name in arrays:
                given = arrays[name]
                found[name] = given if len(given) == count else np.repeat(given, count, axis=0)
                continue
            sizes = field.shape[1:] if field.shape is not None else (None,)
            if None in sizes:
                raise OptionError(
                    f"the state '{name}' has axes whose sizes the model does not say: put what it begins with into the "
                    "data"
                )
            found[name] = np.zeros((count, *(size or 0 for size in sizes)), field.numpy)
        return found

    def flat(self, arrays: Arrays, states: Sequence[Arrays] | None = None) -> dict[str, Array]:
        """All steps as rows, those of a sequence one after the other; `states` are those of each step."""
        count, steps = self.size(arrays)
        found = {}
        for name, array in arrays.items():
            if name in self.states:
                continue
            if self.has_steps(name, array):
                found[name] = array[:, :steps].reshape(-1, *array.shape[2:])
            elif self._by_rows(name, array, count):
                found[name] = np.repeat(array, steps, axis=0)
            else:
                found[name] = array
        for name in self.states if states is not None else ():
            found[name] = joined([one[name] for one in states or ()])
        return found

    def has_steps(self, name: str, array: Array) -> bool:
        """Whether an array of a batch has an axis of steps; labels have."""
        return self._stepped(name, array) or (name == LABELS and name not in self.fields)

    def _stepped(self, name: str, array: Array) -> bool:
        field = self.fields.get(name)
        return field is not None and field.has_steps(array.shape)

    def _by_rows(self, name: str, array: Array, count: int) -> bool:
        field = self.fields.get(name)
        return array.ndim > 0 and len(array) == count and (field is None or field.is_sample(array.shape))


def joined(steps: Sequence[Array]) -> Array:
    """An array of each step as rows, those of a sequence one after the other."""
    stacked = np.stack(steps, axis=1)
    return stacked.reshape(-1, *stacked.shape[2:])


class Carried(Engine):
    """An engine of single steps, asked about sequences."""

    def __init__(self, inner: Engine, sequences: Sequences, plain: Callable[[Arrays], Arrays]) -> None:
        self._inner, self._sequences, self._plain = inner, sequences, plain

    @property
    def notes(self) -> list[str]:  # type: ignore[override]
        return self._inner.notes

    @property
    def unreached(self) -> Mapping[str, str]:  # type: ignore[override]
        return self._inner.unreached

    @property
    def partial(self) -> bool:  # type: ignore[override]
        return self._inner.partial

    def around(self, inner: Callable[[Engine], Answering]) -> Answering:
        """What is made of the engine of single steps, asked about sequences."""
        return Carried(cast(Engine, inner(self._inner)), self._sequences, self._plain)

    @property
    def weights(self) -> Mapping[str, Array]:  # type: ignore[override]
        return self._inner.weights

    @property
    def frozen(self) -> Mapping[str, Array]:  # type: ignore[override]
        return self._inner.frozen

    def ask_ahead(self, count: int, batches: Iterable[Batch]) -> None:
        """What the dense model says hangs on states that are not known ahead."""

    def step(self, batch: Batch) -> float:
        steps = self._sequences.size(batch.arrays)[1]
        states = self._run(batch.arrays, steps - 1, self._inner.evaluate)[2]
        return self._inner.step(Batch(self._sequences.flat(batch.arrays, states)))

    def evaluate(self, batch: Batch) -> Found:
        losses, outputs, _ = self._run(batch.arrays, self._sequences.size(batch.arrays)[1], self._inner.evaluate)
        counts = self._counts(batch.arrays, len(losses))
        total = sum(counts)
        loss = sum(loss * count for loss, count in zip(losses, counts) if count) / total if total else 0.0
        return float(loss), outputs

    def dense(self, batch: Batch) -> dict[str, Array]:
        def run(one: Batch) -> Found:
            return math.nan, self._inner.dense(one)

        return self._run(batch.arrays, self._sequences.size(batch.arrays)[1], run)[1]

    def _run(
        self, arrays: Arrays, steps: int, run: Callable[[Batch], Found]
    ) -> tuple[list[float], dict[str, Array], list[Arrays]]:
        """Losses of so many steps, outputs of all, and the states before each of them and behind the last one."""
        states: list[Arrays] = [self._sequences.begin(arrays)]
        losses, found = [], list[dict[str, Array]]()
        for step in range(steps):
            feed = self._sequences.at(arrays, step, states[-1])
            loss, outputs = run(Batch(feed))
            losses.append(loss)
            found.append(outputs)
            states.append(self._next(feed, outputs))
        return losses, {name: joined([one[name] for one in found]) for name in (found[0] if found else ())}, states

    def _next(self, feed: Arrays, outputs: Arrays) -> Arrays:
        """The states that come out; those that no trained weight has a say in are no signals of the graph."""
        wanted = self._sequences.states
        others = self._plain(feed) if any(name not in outputs for name in wanted.values()) else {}
        found = {}
        for name, output in wanted.items():
            value = outputs[output] if output in outputs else others[output]
            if value.shape != feed[name].shape:
                raise OptionError(
                    f"--state {name}={output}: a step of {list(feed[name].shape)} gives {list(value.shape)} (samples "
                    "first), which cannot be carried over"
                )
            found[name] = np.asarray(value, feed[name].dtype)
        return found

    def _counts(self, arrays: Arrays, steps: int) -> list[int]:
        """How much each step counts: by its labels, where some of them are left out."""
        labels = arrays.get(LABELS)
        if labels is None or labels.dtype.kind == "f":
            return [1] * steps
        return [int((labels[:, step] != IGNORED).sum()) for step in range(steps)]

    # -- what a step has no part in

    def gradients(self) -> Mapping[str, Array]:
        return self._inner.gradients()

    @property
    def pieces(self) -> int:
        return self._inner.pieces

    @property
    def overflowed(self) -> bool:
        return self._inner.overflowed

    def add_gradients(self, more: Mapping[str, Array]) -> None:
        self._inner.add_gradients(more)

    def scale_gradients(self, factors: Mapping[str, Array]) -> None:
        self._inner.scale_gradients(factors)

    def update(self, pace: Pace) -> bool:
        return self._inner.update(pace)

    def agree(self) -> None:
        self._inner.agree()

    def discard_gradients(self) -> None:
        self._inner.discard_gradients()

    def learn_from(self, teacher: OtherTeacher) -> None:
        raise OptionError("another model cannot be the teacher of one with --state: it has states of its own")

    def learn_layers_from(self, teachers: Mapping[str, LayersOfFile]) -> None:
        raise OptionError("layers cannot learn from another model where one has --state: it has states of its own")

    def clear_moments(self, tag: str, where: Array | None = None) -> None:
        self._inner.clear_moments(tag, where)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return self._inner.state()

    def restore(self, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        self._inner.restore(arrays, facts)


def sequences_of(model: Model, axes: SampleAxes) -> Sequences | None:
    """How a model takes sequences, where it has states."""
    return Sequences(fields_of(model, axes), axes.states) if axes.states else None


def demand_steps(sequences: Sequences, data: Data) -> None:
    """Say now what is wrong with the steps of data."""
    some = data.take(np.zeros(1, np.int64)) if isinstance(data, Samples) else data.batch(0, 1)
    sequences.begin(some)


def first_steps(
    sequences: Sequences, arrays: Arrays, count: int, plain: Callable[[Arrays], Arrays]
) -> dict[str, Array]:
    """At least so many single steps of some sequences, with the states of the dense model, to make a graph with."""
    several, steps = sequences.size(arrays)
    steps = min(steps, max(2, -(-count // several)))
    states = [sequences.begin(arrays)]
    for step in range(steps - 1):
        found = plain(sequences.at(arrays, step, states[-1]))
        states.append(
            {name: np.asarray(found[output], states[0][name].dtype) for name, output in sequences.states.items()}
        )
    short = {name: array[:, :steps] if sequences.has_steps(name, array) else array for name, array in arrays.items()}
    return sequences.flat(short, states)


class Plain:
    """The dense model as it is, with the samples first; several of them at once where it takes them."""

    def __init__(self, model: Model, axes: SampleAxes) -> None:
        self._proto = turn(model.copy_proto(), axes.inputs, axes.outputs)
        self._one_by_one = False
        self._run: Callable[[Arrays], Arrays] | None = None

    def __call__(self, feed: Arrays) -> Arrays:
        if self._run is None:
            self._run = self._loaded()
        if not self._one_by_one:
            try:
                return self._run(feed)
            except ModelError:
                self._one_by_one = True
        return self._singly(feed)

    def _singly(self, feed: Arrays) -> Arrays:
        assert self._run is not None
        count = max(len(array) for array in feed.values() if array.ndim)
        rows = [{n: a[i : i + 1] if a.ndim and len(a) == count else a for n, a in feed.items()} for i in range(count)]
        found = [self._run(one) for one in rows]
        return {name: np.concatenate([one[name] for one in found]) for name in found[0] if found[0][name].ndim}

    def _loaded(self) -> Callable[[Arrays], Arrays]:
        if importlib.util.find_spec("onnxruntime") is not None:
            session = Session(self._proto)
            names = [name for name, _, _ in session.inputs]
            return lambda feed: session.run({name: np.ascontiguousarray(feed[name]) for name in names})
        return self._in_torch()

    def _in_torch(self) -> Callable[[Arrays], Arrays]:
        from onnxsparse.engines.torch.convert import to_module
        from onnxsparse.engines.torch.library import torch

        module = to_module(self._proto).eval()
        names = module.onnx_names

        def run(feed: Arrays) -> Arrays:
            inputs = [torch().from_numpy(np.ascontiguousarray(feed[name])) for name in names["inputs"]]
            try:
                with torch().no_grad():
                    found = module(*inputs)
            except RuntimeError as error:
                raise ModelError(str(error)) from error
            values = found if isinstance(found, tuple) else (found,)
            outputs = [value.name for value in self._proto.graph.output]
            return {name: one.numpy() for name, one in zip(outputs, values)}

        return run
