"""The dense model, which says what every signal should be.

1. Where samples come back in every epoch and the answers are small, all of them are asked for once, ahead, in a fixed
   order: what a sample is matched to never depends on the batches it came in.
2. Otherwise it answers batch by batch.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from onnxsparse.engines.ort import chance, library
from onnxsparse.engines.ort.refusals import LOAD, LOOK, batch_of, told
from onnxsparse.math.values import Array

MOST_KEPT = 1 << 27
"""Bytes of answers that are kept."""


class Teacher:
    """Runs `teacher.onnx` of a job's folder."""

    def __init__(self, folder: str, seed: int = 0) -> None:
        runtime = importlib.import_module("onnxruntime")
        with told("load the dense model", LOAD), library.quiet():
            self._session = runtime.InferenceSession(
                os.path.join(folder, "teacher.onnx"), library.options(), providers=["CPUExecutionProvider"]
            )
        inputs = {value.name: value.shape for value in self._session.get_inputs()}
        self._chance, self._seed = chance.wanted(inputs), seed
        self.inputs = [name for name in inputs if name not in self._chance]
        self._shapes = {value.name: tuple(value.shape) for value in self._session.get_outputs()}
        self._kept: dict[str, Array] = {}

    def values(self, feed: Mapping[str, Array], names: Sequence[str], rows: Array | None = None) -> dict[str, Array]:
        """The dense model's values of these names."""
        if not names:
            return {}
        if rows is not None and self._kept and all(name in self._kept for name in names):
            return {name: self._kept[name][rows] for name in names}
        with told(f"run the dense model on {batch_of(rows)}", LOOK):
            own = {name: feed[name] for name in self.inputs}
            found: list[Any] = self._session.run(list(names), {**own, **chance.drawn(self._chance, own, self._seed)})
        return dict(zip(names, found))

    def keep(
        self, count: int, batch: int, names: Sequence[str], feeds: Iterable[tuple[Array, Mapping[str, Array]]]
    ) -> None:
        """Ask about every sample of `feeds`, unless the answers are too many, hang on chance, or are not one for each
        sample."""
        if self._chance:
            return
        shapes = {name: self._shapes[name] for name in names}
        if not all(shape and shape[0] == batch for shape in shapes.values()):
            return
        if sum(4 * count * int(np.prod(shape[1:])) for shape in shapes.values()) > MOST_KEPT:
            return
        kept: dict[str, Array] = {}
        for rows, feed in feeds:
            for name, value in self.values(feed, names, rows).items():
                if name not in kept:
                    kept[name] = np.empty((count, *shapes[name][1:]), value.dtype)
                kept[name][rows] = value
        self._kept = kept
