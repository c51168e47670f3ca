"""The share of samples whose class is among the best k."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.data.field import LABELS
from onnxsparse.errors import OptionError
from onnxsparse.metrics.classes import scores_of, winning
from onnxsparse.metrics.metric import Arrays, Meter, Metric, Share


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
