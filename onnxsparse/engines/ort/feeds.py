"""The samples of a trial as a graph takes them, and what the dense model says to them.

1. The scale of a signal is what `onnxsparse.losses` makes of the dense model's values for all samples, and of
   those that the graph to train gives with weights that are moved a little.
2. A signal that is not finite there, or that the rewritten graph does not give again, cannot be matched: it is left
   out, with a note. One that no weight moves says nothing, and is left out, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper

from onnxsparse.data.field import IGNORED
from onnxsparse.engines.ort import chance
from onnxsparse.engines.ort.assemble import Assembled
from onnxsparse.engines.ort.prepare import Prepared, inputs_of
from onnxsparse.engines.ort.runner import Runner
from onnxsparse.engines.ort.signals import squashed
from onnxsparse.errors import ModelError
from onnxsparse.losses import Scale, heard, said_of, scale_along, shaken
from onnxsparse.math.values import Array

PROVEN = 8
"""Batches at most that a proof is made with, where a batch is one sample."""
UNLIKE = 1e-3


@dataclass
class Measured:
    """The scales of the signals that can be matched, and a line for each that cannot."""

    scales: dict[str, Scale] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class Feeds:
    """Batches of a trial's samples. `dense` gives the signals of the prepared graph."""

    def __init__(
        self,
        prepared: Prepared,
        samples: Mapping[str, Array],
        dense: ModelProto,
        together: int = 1,
        still: Collection[str] = (),
    ) -> None:
        """`together` samples say how weights move signals; those named in `still` are not moved for that."""
        self._prepared, self._samples, self._runner = prepared, samples, Runner(dense)
        self._together, self._still = together, still
        self._chance = chance.wanted({name: shape for name, _, shape in inputs_of(dense)})
        self._count = max((len(samples[name]) for name, _, shape in self._own() if shape), default=1)

    def _own(self) -> list[Any]:
        return [entry for entry in self._prepared.inputs if entry[0] not in self._prepared.fed]

    def _starts(self) -> range:
        return range(0, self._count, self._prepared.batch)

    def at(self, start: int) -> dict[str, Array]:
        """The inputs of the batch that starts at a sample; it turns round where there are too few."""
        rows = np.arange(start, start + self._prepared.batch)
        feed = {}
        for name, kind, shape in self._own():
            array = self._samples[name]
            whole = not shape or (array.shape == tuple(shape) and len(array) != self._count)
            taken = array if whole else np.take(array, rows, axis=0, mode="wrap")
            feed[name] = np.ascontiguousarray(taken.reshape(shape), np.dtype(kind))
        return feed

    def _dense(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        return self._runner({**feed, **chance.drawn(self._chance, feed, 0)})

    def measure(self) -> Measured:
        """How much every signal varies, and which of them can be matched."""
        feeds = [self.at(start) for start in self._starts()]
        answers = [self._dense(feed) for feed in feeds]
        for feed, answer in zip(feeds, answers):
            feed.update({name: answer[name] for name in self._prepared.fed})
        some = feeds[: -(-self._together // self._prepared.batch)]
        steady, moved = self._own_answers(some, False), self._own_answers(some, True)
        moving = {name for name, array in steady.items() if not np.array_equal(array, moved[name], equal_nan=True)}
        made, behind = Measured(), squashed(self._prepared.signals)
        for signal in self._prepared.signals:
            name, values = signal.name, np.stack([answer[signal.name] for answer in answers])
            problem = _problem(values, steady[name][0])
            if problem:
                made.notes.append(f"{signal.called} is not matched to the dense model's: {problem}")
            elif name in moving or not moving:
                plain = scale_along(values, values.ndim - 1, signal.axis, name in behind)
                made.scales[name] = scale = heard(plain, steady[name], moved[name])
                made.notes += said_of(signal.called, plain, scale)
        if not made.scales:
            raise ModelError(f"nothing that the model gives can be trained on: {made.notes[0]}")
        return made

    def _own_answers(self, feeds: Sequence[Mapping[str, Array]], move: bool) -> dict[str, Array]:
        """What the graph to train gives, as it is or with weights that were moved a little."""
        model, weights = self._prepared.model, self._prepared.weights
        if move:
            model = ModelProto()
            model.CopyFrom(self._prepared.model)
            for tensor in model.graph.initializer:
                if tensor.name in weights and tensor.name not in self._still:
                    other = shaken(numpy_helper.to_array(tensor), weights[tensor.name])
                    tensor.CopyFrom(numpy_helper.from_array(other, tensor.name))
        runner = Runner(model, [signal.name for signal in self._prepared.signals])
        answers = [runner(feed) for feed in feeds]
        return {name: np.stack([answer[name] for answer in answers]) for name in answers[0]}

    def batches(self, made: Assembled, most: int = PROVEN) -> list[dict[str, Array]]:
        """Whole feeds of the training graph."""
        return [self._whole(made, start) for start in list(self._starts())[:most]]

    def _whole(self, made: Assembled, start: int) -> dict[str, Array]:
        feed = self.at(start)
        dense = self._dense(feed)
        feed.update({name: dense[name] for name in self._prepared.fed})
        feed.update({name: dense[signal] for signal, name in made.teacher.items()})
        if made.labels:
            feed[made.labels] = _labels(made, self._samples, start)
        return feed


def _problem(values: Array, again: Array) -> str:
    """Why a signal cannot be matched; '' if it can."""
    if not np.isfinite(values).all():
        return "it holds numbers that are not finite"
    wide = np.abs(values).max() if values.size else 0.0
    if not np.isfinite(again).all() or _gap(values[0], again) > (UNLIKE * wide) ** 2:
        return "it does not come out the same when the graph is written in other operators"
    return ""


def _gap(one: Array, two: Array) -> float:
    """The mean square of the difference; none of what is not finite."""
    with np.errstate(all="ignore"):
        gaps = (one.astype(np.float64) - two.astype(np.float64)) ** 2
    return float(np.mean(np.where(np.isfinite(gaps), gaps, 0.0))) if gaps.size else 0.0


def _labels(made: Assembled, samples: Mapping[str, Array], start: int) -> Array:
    value = next(value for value in made.model.graph.input if value.name == made.labels)
    shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    rows: Sequence[int] = range(start, start + shape[0])
    taken = np.ascontiguousarray(np.take(samples["labels"], rows, axis=0, mode="wrap"), dtype)
    if made.classes:  # the engine reads beyond its arrays; what is no class is told of once the graph is there
        taken[(taken != IGNORED) & ((taken < 0) | (taken >= made.classes))] = 0
    return taken
