"""How often the model decides as the dense one does; it needs no labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse.errors import OptionError
from onnxsparse.metrics.classes import named_output, winning
from onnxsparse.metrics.metric import DENSE, Arrays, Meter, Metric, Share


@dataclass(frozen=True)
class Agreement(Metric):
    """The share of rows in which the highest score is that of the dense model."""

    name: ClassVar[str] = "agreement"
    needs: ClassVar[tuple[str, ...]] = (DENSE,)
    output: str = ""

    @property
    def text(self) -> str:
        return self.name + (f":output={self.output}" if self.output else "")

    def meter(self) -> Meter:
        return _Same(self.name, self.output)


class _Same(Share):
    def __init__(self, title: str, output: str) -> None:
        super().__init__(title)
        self._output = output

    def add(self, outputs: Arrays, dense: Arrays, batch: Arrays) -> None:
        name = self._output or _first(outputs)
        classes = named_output(outputs, name).shape[-1]
        wanted = np.argmax(named_output(dense, name).reshape(-1, classes), axis=-1)
        self.count(winning(outputs[name].reshape(-1, classes), wanted, 1))


def _first(outputs: Arrays) -> str:
    """The first float output of rank 2; without one, the first of a higher rank."""
    floats = [name for name, array in outputs.items() if array.dtype.kind == "f" and array.ndim >= 2]
    if not floats:
        raise OptionError("agreement needs a float output with a row of scores for each sample")
    return next((name for name in floats if outputs[name].ndim == 2), floats[0])
