"""How often the model decides as the dense one does; it needs no labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from onnxsparse.errors import OptionError
from onnxsparse.losses.axes import chosen_axis
from onnxsparse.metrics.classes import named_output, winning
from onnxsparse.metrics.metric import DENSE, Arrays, Meter, Metric, Share
from onnxsparse.values import Array


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
