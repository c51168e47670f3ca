"""Measuring metrics of an engine, on data of their own or else on the samples held out.

1. Without a choice of the user's they go by the labels: classes are counted, numbers are compared.
2. What is wrong with a metric is said before training starts: one batch is measured then.
3. Without data of their own a glance at the samples held out says what a person can read beside the loss: the metric
   of the labels, where the data has some that fit an output, or else the distance that `compare` shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from onnxsparse.data import Data, Samples, Stream
from onnxsparse.data.field import LABELS
from onnxsparse.engines.engine import Answering, Batch
from onnxsparse.errors import OptionError
from onnxsparse.metrics import Function, Meter, Metric
from onnxsparse.metrics import parse as parse_metric
from onnxsparse.metrics.choosing import LOSS, TOP, chosen, demand_labels
from onnxsparse.metrics.classes import scores_of
from onnxsparse.metrics.metric import DENSE
from onnxsparse.metrics.regression import OfNumbers, fits
from onnxsparse.train.batches import HeldOut

Flat = Callable[[Mapping[str, Any]], dict[str, Any]]
FEW = 5
"""How many classes top-5 says nothing of."""
YES_NO = "bce"


class Measure:
    """What is measured on some data, over batches of a size; `task` is the loss against labels, where there is one.

    Of sequences `flat` makes a row of each step, as their outputs come.
    """

    on, each_epoch = "--eval-data", True

    def __init__(
        self,
        data: Data | HeldOut,
        metrics: Sequence[Any],
        batch: int,
        axes: Mapping[str, int],
        task: str,
        flat: Flat | None = None,
    ) -> None:
        if isinstance(data, Stream):
            raise OptionError("--eval-data is arrays: an .npz, an .npy or a folder of them")
        self.data, self._batch, self._flat = data, batch, flat or dict
        self._asked = bool(metrics)
        wanted = list(metrics) or self._usual(data, task)
        self._loss, wanted = LOSS in wanted, [one for one in wanted if one != LOSS]
        self._metrics = [chosen(one).on(axes) for one in wanted]
        for metric in self._metrics:
            demand_labels(metric, data)

    def _usual(self, data: Samples | HeldOut, task: str) -> list[str]:
        return [LOSS, *_of_labels(data, task), "distance"]

    def __call__(self, engine: Answering) -> dict[str, float]:
        """Figures of the model in training."""
        losses: list[tuple[int, float]] = []

        def run(batch: Batch) -> dict[str, Any]:
            loss, outputs = engine.evaluate(batch)
            losses.append((max(len(array) for array in batch.arrays.values() if array.ndim), loss))
            return outputs

        found = self._measured(engine, run)
        mean = sum(count * loss for count, loss in losses) / max(1, sum(count for count, _ in losses))
        return {LOSS: mean, **found} if self._loss else found

    def dense(self, engine: Answering) -> dict[str, float]:
        """Figures of the dense model."""
        return self._measured(engine, engine.dense)

    def distance(self, engine: Answering) -> float | None:
        """How far a network is from the dense one; None where no output of both has the same shape."""
        plain, self._metrics = self._metrics, [parse_metric("distance")]
        try:
            return self._measured(engine, lambda batch: engine.evaluate(batch)[1]).get("distance")
        except OptionError:
            return None
        finally:
            self._metrics = plain

    def begin(self, engine: Answering) -> None:
        """Measure one batch; of what nobody asked for, what says nothing of this model is left out."""
        if not self._asked and self.data.has_labels:
            rows = np.resize(np.arange(min(self._batch, self.data.count)), self._batch)
            arrays = self.data.take(rows)
            self._metrics = self._telling(engine.dense(Batch(arrays)), self._flat(arrays)[LABELS])
        self._measured(engine, engine.dense, self._batch)

    def _telling(self, outputs: Mapping[str, Any], labels: Any) -> list[Metric]:
        if self.data.numbers:
            return [one for one in self._metrics if not isinstance(one, OfNumbers) or fits(outputs, labels)]
        few = scores_of(outputs, "", labels)[0].shape[-1] <= FEW
        return [one for one in self._metrics if not (few and one.text == TOP)]

    def _measured(
        self, engine: Answering, run: Callable[[Batch], dict[str, Any]], limit: int | None = None
    ) -> dict[str, float]:
        meters: list[Meter] = [metric.meter() for metric in self._metrics]
        asks = any(DENSE in metric.needs or isinstance(metric, Function) for metric in self._metrics)
        count = min(self.data.count, limit or self.data.count)
        for start in range(0, count, self._batch):
            rows = np.arange(start, min(start + self._batch, count))
            arrays = self.data.take(np.resize(rows, self._batch) if len(rows) < self._batch else rows)
            outputs = run(Batch(arrays))
            dense, seen = engine.dense(Batch(arrays)) if asks else {}, self._flat(arrays)
            wanted = len(rows) * (_longest(seen) // max(1, _longest(arrays)))
            for meter in meters:
                meter.add(_first(outputs, wanted), _first(dense, wanted), _first(seen, wanted))
        return {name: value for meter in meters for name, value in meter.result().items()}


class Glance(Measure):
    """What a person can read of the samples held out."""

    on, each_epoch = "samples held out", False

    def __init__(self, data: HeldOut, batch: int, axes: Mapping[str, int], task: str, flat: Flat | None) -> None:
        super().__init__(data, (), batch, axes, task, flat)
        self._known: dict[str, float] | None = None

    def _usual(self, data: Samples | HeldOut, task: str) -> list[str]:
        return [one for one in _of_labels(data, task) if one != TOP] or ["distance"]

    def dense(self, engine: Answering) -> dict[str, float]:
        return dict(self._known or {})

    def begin(self, engine: Answering) -> None:
        """Labels that nobody spoke of may fit no output: then the distance is measured."""
        if self._known is not None:
            return
        try:
            super().begin(engine)
            self._known = self._measured(engine, engine.dense)
        except OptionError:
            self._known = {}
        if not self._known:
            self._metrics = [parse_metric("distance")]
            self._known = self._measured(engine, engine.dense)


def _of_labels(data: Samples | HeldOut, task: str) -> list[str]:
    """The metrics of labels: classes are counted, and numbers compared, unless they stand for yes and no."""
    if not data.has_labels:
        return []
    if data.numbers:
        return [] if task == YES_NO else ["r2", "mae"]
    return ["accuracy", TOP]


def _longest(arrays: Mapping[str, Any]) -> int:
    return max((len(array) for array in arrays.values() if array.ndim), default=1)


def _first(arrays: Mapping[str, Any], count: int) -> dict[str, Any]:
    return {name: array[:count] if array.ndim and len(array) > count else array for name, array in arrays.items()}
