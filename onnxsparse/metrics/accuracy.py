"""The accuracy of a classifier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.data.field import LABELS
from onnxsparse.metrics.metric import Meter, Metric
from onnxsparse.metrics.top_k import Hits


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
