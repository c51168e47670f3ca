"""What a metric is: figures of a model's outputs, gathered batch by batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from onnxsparse.plugins import Plugin
from onnxsparse.values import Array

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
    higher_is_better: ClassVar[bool] = True

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
