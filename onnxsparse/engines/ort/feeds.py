"""The samples of a trial as a graph takes them, and what the dense model says to them.

1. The scale of a signal is its variance, and a little of its mean square, over some samples; or those of its columns
   (see `onnxsparse.losses.distill`).
2. A signal that is not finite there, or that the rewritten graph does not give again, cannot be matched: it is left
   out, with a note.
3. Weights that are moved a little move every signal. One that moves far more than the others, in units of its scale,
   would be all that counts (a probability of 1e-9, a constant): its scale grows until it counts LOUDEST times as much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper

from onnxsparse.data.field import IGNORED
from onnxsparse.engines.ort import chance
from onnxsparse.engines.ort.assemble import Assembled
from onnxsparse.engines.ort.prepare import Prepared, inputs_of
from onnxsparse.engines.ort.prove import shaken
from onnxsparse.engines.ort.runner import Runner
from onnxsparse.engines.ort.signals import Signal
from onnxsparse.errors import ModelError
from onnxsparse.losses import Columns, Scale, all_shares, in_units, scale_along, scale_of
from onnxsparse.values import Array

MEASURED = 64
"""Samples from which the spread of every signal is taken."""
PROVEN = 8
"""Batches at most that a proof is made with, where a batch is one sample."""
LOUDEST, NOISE, UNLIKE = 30.0, 0.1, 1e-3


@dataclass
class Measured:
    """The scales of the signals that can be matched, and a line for each that cannot."""

    scales: dict[str, Scale] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class Feeds:
    """Batches of a trial's samples. `dense` gives the signals of the prepared graph."""

    def __init__(self, prepared: Prepared, samples: Mapping[str, Array], dense: ModelProto) -> None:
        self._prepared, self._samples, self._runner = prepared, samples, Runner(dense)
        self._chance = chance.wanted({name: shape for name, _, shape in inputs_of(dense)})
        self._count = max((len(samples[name]) for name, _, shape in self._own() if shape), default=1)

    def _own(self) -> list[Any]:
        return [entry for entry in self._prepared.inputs if entry[0] not in self._prepared.fed]

    def _starts(self) -> range:
        return range(0, min(self._count, MEASURED), self._prepared.batch)

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
        made = Measured()
        same, moved = self._own_answers(feeds[0], False), self._own_answers(feeds[0], True)
        for signal in self._prepared.signals:
            values = np.stack([answer[signal.name] for answer in answers])
            problem = _problem(values, same[signal.name])
            if problem:
                made.notes.append(f"{_called(signal)} is not matched to the dense model's: {problem}")
            else:
                made.scales[signal.name] = scale = self._scale(signal, values)
                made.notes += [scale.told(_called(signal))] if isinstance(scale, Columns) else []
        if not made.scales:
            raise ModelError(f"nothing that the model gives can be trained on: {made.notes[0]}")
        _balance(
            made.scales, {name: _loudness(answers[0][name], moved[name], scale) for name, scale in made.scales.items()}
        )
        return made

    def _scale(self, signal: Signal, values: Array) -> Scale:
        """The batches of `values` lie along a further axis in front."""
        tapped = any(one.kind == "tap" and one.original == signal.name for one in self._prepared.signals)
        if tapped and all_shares(values):
            return scale_of(values)
        return scale_along(values, values.ndim - 1, signal.axis)

    def _own_answers(self, feed: Mapping[str, Array], move: bool) -> dict[str, Array]:
        """What the graph to train gives, as it is or with weights that were moved a little."""
        model = self._prepared.model
        if move:
            model = ModelProto()
            model.CopyFrom(self._prepared.model)
            for tensor in model.graph.initializer:
                if tensor.name in self._prepared.weights:
                    other = shaken(numpy_helper.to_array(tensor), self._prepared.weights[tensor.name], NOISE)
                    tensor.CopyFrom(numpy_helper.from_array(other, tensor.name))
        return Runner(model, [signal.name for signal in self._prepared.signals])(feed)

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


def _called(signal: Signal) -> str:
    return f"output '{signal.name}'" if signal.kind == "output" else f"'{signal.name}', before an output,"


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
    return _loudness(one, two, 1.0)


def _loudness(one: Array, two: Array, scale: Scale) -> float:
    """The same in units of a scale."""
    with np.errstate(all="ignore"):
        gaps = (one.astype(np.float64) - two.astype(np.float64)) ** 2
    return in_units(np.where(np.isfinite(gaps), gaps, 0.0), scale) if gaps.size else 0.0


def _balance(scales: dict[str, Scale], loud: Mapping[str, float]) -> None:
    """None of them counts much more than the quieter half does."""
    among = sorted(value for value in loud.values() if value > 0)
    if len(among) < 2:
        return
    limit = LOUDEST * among[(len(among) - 1) // 2]
    for name, value in loud.items():
        if value > limit:
            scale, factor = scales[name], value / limit
            scales[name] = scale.grown(factor) if isinstance(scale, Columns) else scale * factor


def _labels(made: Assembled, samples: Mapping[str, Array], start: int) -> Array:
    value = next(value for value in made.model.graph.input if value.name == made.labels)
    shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    rows: Sequence[int] = range(start, start + shape[0])
    taken = np.ascontiguousarray(np.take(samples["labels"], rows, axis=0, mode="wrap"), dtype)
    if made.classes:  # the engine reads beyond its arrays; what is no class is told of once the graph is there
        taken[(taken != IGNORED) & ((taken < 0) | (taken >= made.classes))] = 0
    return taken
