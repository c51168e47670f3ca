"""The metric interface: figures of a model's outputs, gathered batch by batch; and metrics that are user functions."""

from __future__ import annotations

import numbers
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from onnxsparse.data.user_functions import import_function, names_function, running
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array
from onnxsparse.plugins import Plugin

DENSE = "dense"
"""What a metric may need beside the outputs: the dense model's, or `LABELS` in the batch."""

Arrays = Mapping[str, Array]


class Meter(ABC):
    """One measurement in progress."""

    @abstractmethod
    def add(self, outputs: Arrays, dense: Arrays, batch: Arrays) -> None:
        """Take in one batch: what the model and the dense one gave for it, and the batch with its labels."""

    @abstractmethod
    def result(self) -> dict[str, float]:
        """The figures over all that was taken in; none when that was nothing."""


class Metric(Plugin, ABC):
    """Figures of a model."""

    kind: ClassVar[str] = "metrics"
    needs: ClassVar[tuple[str, ...]] = ()
    of_classes: ClassVar[bool] = False
    """Whether the labels have to be numbers of classes."""

    @property
    @abstractmethod
    def text(self) -> str:
        """The canonical text: `parse(metric.text)` gives the same metric."""

    def on(self, axes: Mapping[str, int]) -> Metric:
        """The metric of a model that says of some outputs along which axis their classes lie."""
        return self

    @abstractmethod
    def meter(self) -> Meter:
        """Begin to measure."""


class Share(Meter):
    """How many of all were right."""

    def __init__(self, title: str) -> None:
        self._title, self._right, self._all = title, 0, 0

    def count(self, right: Array) -> None:
        self._right, self._all = self._right + int(right.sum()), self._all + right.size

    def result(self) -> dict[str, float]:
        return {self._title: self._right / self._all} if self._all else {}


# A metric that is a function of the user's: `f(outputs, batch)` gives a number, or several by name.
#
# Both are dictionaries of arrays: the model's float outputs, and its inputs with the labels under `labels`, whatever
# they are called in the data. The function is called for each batch; the results are averaged, each weighted by the
# samples of its batch. Only a name that the user typed is imported, never one from a file.


@dataclass(frozen=True)
class Function(Metric):
    """What a function of the user's makes of outputs and batch. It has no name of its own, so no text leads here."""

    function: Callable[[dict[str, Any], dict[str, Any]], Any]
    called: str

    @property
    def text(self) -> str:
        return self.called

    def meter(self) -> Meter:
        return _Average(self)


def function_metric(source: str | Callable[..., Any]) -> Function:
    """The metric of a function, or of `module:function`."""
    if not isinstance(source, str):
        return Function(source, getattr(source, "__name__", type(source).__name__))
    if not names_function(source):
        raise OptionError(f"a metric of your own is named as module:function, not {source[:60]!r}")
    return Function(import_function(source), source)


class _Named(dict[str, Any]):
    """A dictionary that says what there is when something else is asked for."""

    def __init__(self, arrays: Arrays, what: str) -> None:
        super().__init__(arrays)
        self._what = what

    def __missing__(self, name: object) -> Any:
        raise KeyError(f"no {name!r}; {self._what} {', '.join(map(repr, self)) or 'empty'}")


class _Average(Meter):
    def __init__(self, metric: Function) -> None:
        self._metric, self._sums, self._weights = metric, dict[str, float](), dict[str, int]()

    def add(self, outputs: Arrays, dense: Arrays, batch: Arrays) -> None:
        called = self._metric.called
        with running(called):
            found = self._metric.function(_Named(outputs, "the outputs are"), _Named(batch, "the batch has"))
        named = found if isinstance(found, Mapping) else {called.rpartition(":")[2]: found}
        samples = _samples(outputs)
        for name, value in named.items():
            key = str(name)
            self._sums[key] = self._sums.get(key, 0.0) + samples * _number(value, called)
            self._weights[key] = self._weights.get(key, 0) + samples

    def result(self) -> dict[str, float]:
        return {name: total / self._weights[name] for name, total in self._sums.items()}


def _samples(outputs: Arrays) -> int:
    """The length that most outputs have along their first axis."""
    lengths = [array.shape[0] for array in outputs.values() if isinstance(array, np.ndarray) and array.ndim]
    return max(set(lengths), key=lambda length: (lengths.count(length), length), default=1)


def _number(value: Any, called: str) -> float:
    if isinstance(value, numbers.Real) or (hasattr(value, "item") and getattr(value, "shape", None) == ()):
        return float(value)
    raise OptionError(f"{called} gives {type(value).__name__}; a metric gives a number, or numbers by name")
