"""The onnxruntime-training engine: sessions over built training graphs, with optimizers of our own on live arrays.

1. A batch larger than the graph's is taken in pieces whose gradients add up; the update uses their mean.
2. The optimizer's memory is ours: it can be cleared, saved, and carried over into another graph (see `stepping`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from onnxsparse.data.stream import check_block
from onnxsparse.engines.engine import Batch, DivergedError, Engine, Pace
from onnxsparse.engines.layer_terms import LayersOfFile
from onnxsparse.engines.ort.library import LOOK, batch_of, told
from onnxsparse.engines.ort.session import Session, Teacher
from onnxsparse.engines.ort.stepping import stepping_of
from onnxsparse.engines.other_teacher import OtherTeacher
from onnxsparse.math.values import Array
from onnxsparse.optimizers import clip_factor, finite

LABELS = "labels"


class OrtEngine(Engine):
    """A built graph (see `building`), loaded."""

    def __init__(self, folder: str, manifest: Mapping[str, Any], optimizer: str, seed: int = 0) -> None:
        self._made = manifest
        self._session, self._teacher = Session(folder, manifest), Teacher(folder, seed)
        self._stepping = stepping_of(optimizer, self._session, folder)
        self._pieces = 0
        self._other: OtherTeacher | None = None
        self._taught: list[dict[str, str]] = manifest.get("taught", [])
        self._files: Mapping[str, LayersOfFile] = {}
        self.weights, self.frozen = self._session.weights, self._session.frozen
        self.unit: str = manifest.get("unit", "")
        self.partial = bool(manifest.get("partial", False))
        self.notes, self.unreached = list(manifest["notes"]), dict(manifest["unreached"])
        self._signals: list[dict[str, str]] = manifest["signals"]
        self._originals = {one["name"]: one["original"] for one in self._signals if one["kind"] == "output"}

    @property
    def batch(self) -> int:
        """How many samples the graph takes at once."""
        return int(self._made["batch"])

    def step(self, batch: Batch) -> float:
        losses, ranges = [], dict[str, tuple[float, float]]()
        for rows, feed in self._feeds(batch):
            with told(f"train on {batch_of(rows)}", LOOK):
                losses.append(self._session.step(feed))
            for key, (low, high) in self._session.ranges.items():
                first = ranges.get(key, (low, high))
                ranges[key] = (min(first[0], low), max(first[1], high))
            self._pieces += 1
        self.ranges = ranges
        return float(np.mean(losses))

    def gradients(self) -> Mapping[str, Array]:
        return self._session.gradients

    @property
    def pieces(self) -> int:
        return self._pieces

    def add_gradients(self, more: Mapping[str, Array]) -> None:
        live, pieces = self._session.gradients, np.float32(max(1, self._pieces))
        for tag, array in more.items():
            if tag in live:
                live[tag] += array * pieces

    def scale_gradients(self, factors: Mapping[str, Array]) -> None:
        for tag, array in factors.items():
            if tag in self._session.gradients:
                self._session.gradients[tag] *= array

    def update(self, pace: Pace) -> bool:
        for key, share in self._made.get("shares", {}).items():
            self._session.gradients[key] *= np.float32(share)
        gradients, scale = pace.moving(self._session.gradients), 1.0 / max(1, self._pieces)
        if pace.clip:
            scale *= clip_factor(gradients.values(), pace.clip / scale)
        if not (np.isfinite(scale) and finite(gradients.values())):
            raise DivergedError("the gradients are no numbers any more; use a lower --lr")
        self._stepping.step(self._session, gradients, pace, scale)
        self.discard_gradients()
        return True

    def discard_gradients(self) -> None:
        self._session.forget_gradients()
        self._pieces = 0

    def evaluate(self, batch: Batch) -> tuple[float, dict[str, Array]]:
        losses, pieces = [], list[dict[str, Array]]()
        for rows, feed in self._feeds(batch):
            with told(f"measure on {batch_of(rows)}", LOOK):
                loss, outputs = self._session.evaluate(feed)
            loss = float(outputs.pop(self._made.get("measured", ""), loss))
            losses.append(loss)
            pieces.append({self._originals[name]: value for name, value in outputs.items()})
        return float(np.mean(losses)), _joined(pieces)

    def dense(self, batch: Batch) -> dict[str, Array]:
        names = list(self._originals)
        pieces = [self._teacher.values(feed, names, _rows(batch, places)) for places, feed in self._inputs(batch)]
        return {self._originals[name]: value for name, value in _joined(pieces).items()}

    def learn_from(self, teacher: OtherTeacher) -> None:
        self._other = teacher

    def learn_layers_from(self, teachers: Mapping[str, LayersOfFile]) -> None:
        self._files = teachers

    def clear_moments(self, tag: str, where: Array | None = None) -> None:
        self._stepping.clear(tag, where)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        arrays = {f"weight/{key}": array for key, array in self.weights.items()}
        arrays.update({f"frozen/{key}": array for key, array in self.frozen.items()})
        remembered, facts = self._stepping.state(self._session)
        return {**arrays, **remembered}, facts

    def restore(self, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        self._stepping.restore(self._session, arrays, facts)
        self.weights, self.frozen = self._session.weights, self._session.frozen
        for kind, own in (("weight", self.weights), ("frozen", self.frozen)):
            for key, array in own.items():
                if f"{kind}/{key}" in arrays:
                    array[...] = arrays[f"{kind}/{key}"]
        self.discard_gradients()

    def _inputs(self, batch: Batch) -> Iterator[tuple[Array, dict[str, Array]]]:
        """The model's inputs in pieces of the graph's batch, and the places of their samples in the whole."""
        own = [entry for entry in self._made["inputs"] if entry[0] not in self._made["fed"]]
        count = self._count(batch.arrays, own)
        for start in range(0, count, self.batch):
            places = np.arange(start, start + self.batch) % count
            feed = {name: _piece(batch.arrays[name], places, count, dtype, shape) for name, dtype, shape in own}
            yield places, feed

    def _count(self, arrays: Mapping[str, Array], own: Sequence[tuple[str, str, list[int]]]) -> int:
        """How many samples a batch has: an array that is shaped as the graph takes it may be one that all share."""
        unlike = [arrays[name] for name, _, shape in own if arrays[name].ndim and list(arrays[name].shape) != shape]
        counts = [len(array) for array in unlike or arrays.values() if array.ndim]
        return self.batch if not unlike and self.batch in counts else max(counts, default=1)

    def _feeds(self, batch: Batch) -> Iterator[tuple[Array | None, dict[str, Array]]]:
        teacher, fed, labels = self._made["teacher"], self._made["fed"], self._made["labels"]
        originals = {one["name"]: one["original"] for one in self._signals}
        for places, feed in self._inputs(batch):
            rows = _rows(batch, places)
            own, dense = dict(feed), self._teacher.values(feed, self._asked, rows)
            feed.update({name: dense[name] for name in fed})
            feed.update({name: dense[signal] for signal, name in teacher.items()})
            if self._other is not None:
                answers = self._other(own, {originals[signal]: dense[signal].shape for signal in teacher})
                feed.update({name: answers[originals[one]].astype(dense[one].dtype) for one, name in teacher.items()})
            if self._taught:
                feed.update(self._of_layers(own, dense))
            if labels:
                feed[labels] = np.ascontiguousarray(batch.arrays[LABELS][places])
                if self._made.get("classes"):  # the engine reads beyond its arrays
                    check_block(feed[labels], 0, self._made["classes"], "the batch")
            yield rows, feed

    @property
    def _asked(self) -> list[str]:
        """What the dense model is asked for in training."""
        layers = [one["value"] for one in self._taught if not one["teacher"]]
        return [*dict.fromkeys((*self._made["teacher"], *self._made["fed"], *layers))]

    def _of_layers(self, feed: Mapping[str, Array], dense: Mapping[str, Array]) -> dict[str, Array]:
        """What the teacher's layers give, by the inputs of the graph."""
        files = {path: file(feed) for path, file in self._files.items()}
        found = {one["input"]: files.get(one["teacher"], dense)[one["value"]] for one in self._taught}
        return {name: array.astype(np.float32) for name, array in found.items()}

    def ask_ahead(self, count: int, batches: Iterable[Batch]) -> None:
        feeds = (
            (batch.rows[places], feed)
            for batch in batches
            if batch.rows is not None
            for places, feed in self._inputs(batch)
        )
        self._teacher.keep(count, self.batch, self._asked, feeds)


def _rows(batch: Batch, places: Array) -> Array | None:
    """The numbers that some samples of a batch have in the data."""
    return None if batch.rows is None else batch.rows[places]


def _piece(array: Array, rows: Array, count: int, dtype: str, shape: list[int]) -> Array:
    """The rows of an input, or the whole of one that is shaped as the graph takes it: nothing else of it would fit."""
    whole = not array.ndim or list(array.shape) == shape
    taken = array if whole else array if len(rows) == count else array[rows]
    return np.ascontiguousarray(taken, dtype).reshape(shape)


def _joined(pieces: list[dict[str, Array]]) -> dict[str, Array]:
    if len(pieces) == 1:
        return pieces[0]
    return {name: np.concatenate([np.atleast_1d(piece[name]) for piece in pieces]) for name in pieces[0]}
