"""Metrics of classifiers: accuracy, top-k, and agreement with the dense model.

1. An output that is named is taken. Otherwise it is the first float output that has one axis more than the labels.
2. The classes lie where cross-entropy looks for them: along the second axis, or, where the others are not those of
   the labels, along the last one.
3. Among equal scores the lower class wins. NaN is no score: nothing wins where there is one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from onnxsparse.data.field import IGNORED, LABELS
from onnxsparse.errors import OptionError, nearest
from onnxsparse.losses import axis_of_labels, chosen_axis
from onnxsparse.math.values import Array
from onnxsparse.metrics.metric import DENSE, Arrays, Meter, Metric, Share

NO_ARRAYS = (
    " is an array of floats; convert models of scikit-learn with options={'zipmap': False}, or choose --metric loss"
)


def named_output(outputs: Mapping[str, Array], name: str) -> Array:
    if name not in outputs:
        raise OptionError(f"the model has no output '{name}'{nearest(name, outputs) or f' (it has {_shown(outputs)})'}")
    return outputs[name]


def scores_of(outputs: Mapping[str, Array], name: str, labels: Array) -> tuple[Array, Array]:
    """Rows of scores and the class that each row is to have; what is to be left out is left out."""
    candidates = [named_output(outputs, name)] if name else [a for a in outputs.values() if a.dtype.kind == "f"]
    fitting = (_last(array, labels) for array in candidates)
    scores = next((array for array in fitting if array is not None), None)
    if scores is None:
        raise OptionError(
            f"no float output has a row of classes for each label of {list(labels.shape)}; outputs: {_shown(outputs)}"
            + ("" if outputs else NO_ARRAYS)
        )
    used = labels.reshape(-1) != IGNORED
    return scores.reshape(-1, scores.shape[-1])[used], labels.reshape(-1)[used]


def _last(array: Array, labels: Array) -> Array | None:
    """The array with its classes along the last axis, if they are along any."""
    axis = axis_of_labels(array.shape, labels.shape)
    return None if axis is None else np.moveaxis(array, axis, -1)


def winning(scores: Array, classes: Array, k: int) -> Array:
    """For each row, whether its class is among the k best."""
    safe = np.clip(classes, 0, scores.shape[-1] - 1)
    own = np.take_along_axis(scores, safe[:, None], axis=-1)
    lower = np.arange(scores.shape[-1]) < safe[:, None]
    better = np.count_nonzero((scores > own) | ((scores == own) & lower), axis=-1)
    right: Array = (better < k) & (safe == classes) & ~np.isnan(scores).any(axis=-1)
    return right


def _shown(outputs: Mapping[str, Array]) -> str:
    return ", ".join(f"{name} {list(array.shape)}" for name, array in outputs.items()) or "none"


@dataclass(frozen=True)
class TopK(Metric):
    """The share of samples whose label is among the k highest scores."""

    name: ClassVar[str] = "top-k"
    syntax: ClassVar[str] = "top-K"
    needs: ClassVar[tuple[str, ...]] = (LABELS,)
    of_classes: ClassVar[bool] = True
    k: int = 5
    output: str = ""

    def __post_init__(self) -> None:
        if self.k < 1:
            raise OptionError(f"top-{self.k}: K is a number from 1")

    @classmethod
    def read(cls, text: str) -> TopK | None:
        short = re.fullmatch(r"top-([0-9]{1,6})(?::(.*))?", text, re.DOTALL)
        found = super().read(f"top-k:k={short[1]}" + (f",{short[2]}" if short[2] else "") if short else text)
        assert found is None or isinstance(found, TopK)
        return found

    @property
    def text(self) -> str:
        return f"top-{self.k}" + (f":output={self.output}" if self.output else "")

    def meter(self) -> Meter:
        return Hits(self.text.partition(":")[0], self.k, self.output)


class Hits(Share):
    """Counts the labels that are among the k best."""

    def __init__(self, title: str, k: int, output: str) -> None:
        super().__init__(title)
        self._k, self._output = k, output

    def add(self, outputs: Arrays, dense: Arrays, batch: Arrays) -> None:
        self.count(winning(*scores_of(outputs, self._output, batch[LABELS]), self._k))


@dataclass(frozen=True)
class Accuracy(Metric):
    """The share of samples whose label has the highest score."""

    name: ClassVar[str] = "accuracy"
    needs: ClassVar[tuple[str, ...]] = (LABELS,)
    of_classes: ClassVar[bool] = True
    output: str = ""

    @property
    def text(self) -> str:
        return self.name + (f":output={self.output}" if self.output else "")

    def meter(self) -> Meter:
        return Hits(self.name, 1, self.output)


@dataclass(frozen=True)
class Agreement(Metric):
    """The share of rows in which the highest score is that of the dense model.

    The scores of a row lie along `axis`; without one, along that of the classes.
    """

    name: ClassVar[str] = "agreement"
    needs: ClassVar[tuple[str, ...]] = (DENSE,)
    output: str = ""
    axis: int | None = field(default=None, metadata={"default": "that of the classes"})
    known: tuple[tuple[str, int], ...] = field(default=(), metadata={"option": False})

    @property
    def text(self) -> str:
        said = {"output": self.output, "axis": "" if self.axis is None else self.axis}
        given = ",".join(f"{name}={value}" for name, value in said.items() if value != "")
        return self.name + (f":{given}" if given else "")

    def on(self, axes: Mapping[str, int]) -> Agreement:
        return replace(self, known=tuple(axes.items()))

    def meter(self) -> Meter:
        return _Same(self)


class _Same(Share):
    def __init__(self, metric: Agreement) -> None:
        super().__init__(metric.name)
        self._metric = metric

    def add(self, outputs: Arrays, dense: Arrays, batch: Arrays) -> None:
        name = self._metric.output or _first(outputs)
        wanted = np.argmax(self._rows(named_output(dense, name), name), axis=-1)
        self.count(winning(self._rows(named_output(outputs, name), name), wanted, 1))

    def _rows(self, scores: Array, name: str) -> Array:
        said = dict(self._metric.known).get(name)
        axis = chosen_axis(self._metric.name, name, scores.shape, self._metric.axis, said)
        return np.moveaxis(scores, axis, -1).reshape(-1, scores.shape[axis])


def _first(outputs: Arrays) -> str:
    """The first float output of rank 2; without one, the first of a higher rank."""
    floats = [name for name, array in outputs.items() if array.dtype.kind == "f" and array.ndim >= 2]
    if not floats:
        raise OptionError("agreement needs a float output with a row of scores for each sample")
    return next((name for name in floats if outputs[name].ndim == 2), floats[0])
