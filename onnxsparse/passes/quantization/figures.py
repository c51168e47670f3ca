"""Figures of a quantized model beside the float one: metrics on samples, and what is lost of them.

1. With labels that fit an output the metric is the user's, or accuracy, or r2 of labels that are numbers. Without, a
   classifier is measured by how often it agrees with the float model, and others by the distance of their outputs.
2. A loss is in points of the metric (of shares in per cent), or relative to the float model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto

from onnxsparse.calibration.feeding import Feeds, Given
from onnxsparse.engines.inference import Session
from onnxsparse.errors import OptionError, brief
from onnxsparse.graph.class_axis import axis_in
from onnxsparse.math.values import Array
from onnxsparse.metrics import Metric
from onnxsparse.metrics import parse as parse_metric
from onnxsparse.metrics.choosing import LOSS, chosen, demand_labels

SHARES = ("accuracy", "top-k", "agreement")
"""Metrics that are shares of all samples; the points of a loss are per cent of them."""
RISING, FALLING = (*SHARES, "r2"), ("mae", "mse", "distance")
KEPT = 1 << 28
"""Bytes of the float model's outputs that are kept, in place of running it again."""


@dataclass(frozen=True)
class MaxLoss:
    """What may be lost of a metric."""

    most: float
    relative: bool = False

    @classmethod
    def parse(cls, given: float | str) -> MaxLoss:
        text = str(given).strip()
        try:
            found = cls(float(text.removesuffix("%")) / (100 if text.endswith("%") else 1), text.endswith("%"))
        except ValueError:
            found = cls(math.nan)
        if isinstance(given, bool) or not 0 <= found.most < math.inf:
            raise OptionError(f"--max-loss takes points of the metric, such as 0.5, or a share, 1%, not {brief(given)}")
        return found

    @property
    def text(self) -> str:
        return f"{100 * self.most:g} %" if self.relative else f"{self.most:g}"

    def told(self, lost: float) -> str:
        return f"{100 * lost:.3g} %" if self.relative else f"{lost:.3g}"

    def beside(self, lost: float) -> str:
        """What is lost beside what may be, in words; a figure that got better is no loss."""
        found = f"{self.told(lost)} is lost" if lost >= 0 else f"nothing is lost, {self.told(-lost)} is gained"
        return f"{found}, and {self.text} may be" + ("" if lost >= 0 else " lost")

    def of(self, metric: Metric, before: float, after: float) -> float:
        """What is lost, in the unit of this; it is infinite where a figure is no number."""
        name = getattr(metric, "name", "")
        if name == "distance":
            lost = after
        else:
            lost = before - after if name in RISING else after - before
            if name not in (*RISING, *FALLING):  # of a figure of somebody's own nobody knows whether more is better
                lost = abs(lost)
            if self.relative:
                lost = lost / abs(before) if before else math.inf if lost > 0 else 0.0
            elif name in SHARES:
                lost *= 100
        return lost if math.isfinite(lost) else math.inf


class Figures:
    """Metrics of models on the same samples, beside those of the float model; the first metric is what may be lost."""

    def __init__(
        self,
        dense: ModelProto,
        feeds: Feeds,
        metrics: Sequence[Metric],
        outputs: Mapping[str, int] | None = None,
        batches: int | None = None,
    ) -> None:
        self.metrics, self._batches = tuple(metrics), batches
        self._feeds, self._outputs = feeds, dict(outputs or {})
        self._session = Session(dense)
        self._dense: list[dict[str, Array]] = []
        self._known = self._measured(self._session, keep=True)
        if not self._known:
            wanted = f"float outputs with an axis of samples, and {_outputs_of(dense)}"
            raise OptionError(f"nothing can be measured: metrics read {wanted}")

    @property
    def dense(self) -> dict[str, float]:
        """Of the float model; those of its distance to itself are left out."""
        return {name: value for name, value in self._known.items() if not name.startswith("distance")}

    def __call__(self, proto: ModelProto) -> dict[str, float]:
        return self._measured(Session(proto))

    def lost(self, limit: MaxLoss, figures: Mapping[str, float]) -> float:
        """What a model with these figures loses of the first metric."""
        name = next(iter(figures))
        return limit.of(self.metrics[0], self._known[name], figures[name])

    def _measured(self, session: Session, keep: bool = False) -> dict[str, float]:
        meters = [metric.meter() for metric in self.metrics]
        for place, given in enumerate(islice(self._feeds.batches(), self._batches)):
            dense = self._of_dense(place, given)
            found = dense if session is self._session else self._run(session, given)
            if keep and sum(one.nbytes for kept in self._dense for one in kept.values()) < KEPT:
                self._dense.append(dense)
            seen = self._joined(self._feeds.steps(given.arrays), given.count)
            for meter in meters:
                meter.add(found, dense, seen)
        return {name: float(value) for meter in meters for name, value in meter.result().items()}

    def _of_dense(self, place: int, given: Given) -> dict[str, Array]:
        return self._dense[place] if place < len(self._dense) else self._run(self._session, given)

    def _run(self, session: Session, given: Given) -> dict[str, Array]:
        """The float outputs, with the samples first and no fillers, and those of all steps one after the other."""
        parts = []
        for found in self._feeds.runs(given.arrays, session):
            floats = {name: one for name, one in found.items() if isinstance(one, np.ndarray) and one.dtype.kind == "f"}
            axes = self._outputs
            parts.append({name: np.moveaxis(one, axes.get(name, 0), 0) for name, one in floats.items() if one.ndim})
        return self._joined(parts, given.count)

    def _joined(self, parts: Sequence[Mapping[str, Array]], count: int) -> dict[str, Array]:
        """What there is for each step, as rows; what is the same for all of them once."""
        first = {name: _first(one, count) for name, one in parts[0].items()}
        if len(parts) == 1:
            return first
        rows = {name for name, one in first.items() if one.ndim and name not in self._feeds.data.shared}
        joined = {name: np.concatenate([_first(part[name], count) for part in parts]) for name in rows}
        return {**first, **joined}


def _first(array: Array, count: int) -> Array:
    return array[:count] if array.ndim and len(array) > count else array


def _outputs_of(proto: ModelProto) -> str:
    """What a model gives, where none of it can be measured."""
    kinds = [(value.name, value.type.tensor_type.elem_type) for value in proto.graph.output]
    return ", ".join(f"'{name}' is {TensorProto.DataType.Name(kind).lower()}" for name, kind in kinds[:3])


def metrics_for(
    dense: ModelProto, feeds: Feeds, asked: Sequence[Any], outputs: Mapping[str, int] | None = None
) -> list[Metric]:
    """What is measured: the metrics that were asked for, or those that say something of this model and data."""
    if LOSS in asked:
        raise OptionError("--metric loss is what training makes small, and nothing is trained here; choose another")
    axes = _class_axes(dense, outputs or {})
    metrics = [chosen(one).on(axes) for one in asked or _usual(dense, feeds, outputs or {})]
    for metric in metrics:
        demand_labels(metric, feeds.data)
    return metrics


def _usual(dense: ModelProto, feeds: Feeds, outputs: Mapping[str, int]) -> list[str]:
    labels = ("r2" if feeds.data.numbers else "accuracy") if feeds.data.has_labels else ""
    if labels and _fits(dense, feeds, parse_metric(labels), outputs):
        return [labels, "distance"]
    return ["agreement", "distance"] if _classifies(dense, outputs) else ["distance"]


def _fits(dense: ModelProto, feeds: Feeds, metric: Metric, outputs: Mapping[str, int]) -> bool:
    """Whether labels that nobody spoke of belong to an output."""
    try:
        Figures(dense, feeds, [metric], outputs, batches=1)
    except OptionError:
        return False
    return True


def _classifies(dense: ModelProto, outputs: Mapping[str, int]) -> bool:
    """Whether the first float output is a row of scores for each sample, as far as the model says it."""
    axes = _class_axes(dense, outputs)
    for value in dense.graph.output:
        kind = value.type.tensor_type
        if kind.elem_type == TensorProto.FLOAT:
            sizes = [dim.dim_value for dim in kind.shape.dim]
            return len(sizes) == 2 and sizes[1] != 1 and value.name in axes
    return False


def _class_axes(dense: ModelProto, outputs: Mapping[str, int]) -> dict[str, int]:
    """Along which axis the classes of an output lie, where the graph says it; of outputs whose samples are first."""
    found = {value.name: axis_in(dense, value.name) for value in dense.graph.output if not outputs.get(value.name)}
    return {name: axis for name, axis in found.items() if axis is not None}
