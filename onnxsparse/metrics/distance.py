"""How far the outputs are from those of the dense model; it needs no labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse.errors import OptionError
from onnxsparse.metrics.classes import named_output
from onnxsparse.metrics.metric import DENSE, Arrays, Meter, Metric
from onnxsparse.values import Array


@dataclass(frozen=True)
class Distance(Metric):
    """The distance of each float output from the dense model's, relative to its size; the largest of them first."""

    name: ClassVar[str] = "distance"
    needs: ClassVar[tuple[str, ...]] = (DENSE,)
    higher_is_better: ClassVar[bool] = False
    output: str = ""

    @property
    def text(self) -> str:
        return self.name + (f":output={self.output}" if self.output else "")

    def meter(self) -> Meter:
        return _Far(self.output)


class _Far(Meter):
    def __init__(self, output: str) -> None:
        self._output = output
        self._sums: dict[str, tuple[float, float]] = {}

    def add(self, outputs: Arrays, dense: Arrays, batch: Arrays) -> None:
        for name, array in self._floats(outputs).items():
            other = named_output(dense, name)
            if other.shape != array.shape:
                raise OptionError(
                    f"output '{name}' has shape {list(array.shape)}, in the dense model {list(other.shape)}"
                )
            far, size = self._sums.get(name, (0.0, 0.0))
            self._sums[name] = (far + _squares(array, other), size + _squares(other))

    def _floats(self, outputs: Arrays) -> Arrays:
        if self._output:
            return {self._output: named_output(outputs, self._output)}
        return {name: array for name, array in outputs.items() if array.dtype.kind == "f"}

    def result(self) -> dict[str, float]:
        """`distance` is the largest; where there are several outputs, each has its own as well."""
        each = {name: _relative(*sums) for name, sums in self._sums.items()}
        if not each:
            return {}
        largest = float(np.max(list(each.values())))  # of which NaN is one, unlike for `max`
        return {"distance": largest, **({f"distance:{n}": far for n, far in each.items()} if len(each) > 1 else {})}


def _squares(array: Array, less: Array | None = None) -> float:
    with np.errstate(all="ignore"):  # a model that overflows is far away, not an error
        wide = array.astype(np.float64)
        wide -= 0 if less is None else less
        return float(np.sum(wide * wide))


def _relative(far: float, size: float) -> float:
    return (far / size) ** 0.5 if size else float("nan") if far != far else float(far > 0)
