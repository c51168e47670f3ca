"""Batches as tensors, in pieces that a network takes at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from onnxsparse.engines.engine import Batch
from onnxsparse.engines.torch.library import torch
from onnxsparse.errors import OptionError
from onnxsparse.graph.model import Model
from onnxsparse.math.values import Array

LABELS = "labels"
ALIKE = 1e-3


class Pieces:
    """`size` samples at a time, on a device; inputs that all samples share come whole with each piece."""

    def __init__(self, inputs: Sequence[str], device: Any, size: int) -> None:
        self._inputs, self._device, self.size = inputs, device, size
        self._shared: set[str] = set()

    def of(self, batch: Batch) -> Iterator[tuple[list[Any], Any]]:
        """Inputs and labels of each piece."""
        count = max((len(array) for array in batch.arrays.values() if array.ndim), default=1)
        for start in range(0, count, self.size):
            rows = slice(start, start + self.size)
            inputs = [self._tensor(self._part(name, batch.arrays[name], rows, count)) for name in self._inputs]
            labels = batch.arrays.get(LABELS)
            yield inputs, None if labels is None else self._tensor(labels[rows])

    def fit(self, samples: Mapping[str, Array], run: Callable[[Batch], dict[str, Array]], declared: int) -> None:
        """Find the size that a network takes: any, where two samples together give what each of them gives.

        Otherwise it is what the file declares, or one.
        """
        count = max((len(array) for array in samples.values() if array.ndim), default=1)
        self._shared = {name for name, array in samples.items() if not array.ndim or len(array) != count}
        some = Batch({name: array if name in self._shared else array[:2] for name, array in samples.items()})
        wanted = self.size
        single, together = self._tried(some, run, 1), self._tried(some, run, 2)
        if single and together and all(_alike(together.get(name), value) for name, value in single.items()):
            self.size = wanted
            return
        self.size = max(declared, 1)
        if wanted % self.size:
            raise OptionError(
                f"the model takes {self.size} samples at a time; make the batch of each process a multiple of that"
            )

    def _tried(self, batch: Batch, run: Callable[[Batch], dict[str, Array]], size: int) -> dict[str, Array] | None:
        self.size = size
        try:
            return run(batch)
        except Exception:  # whatever torch makes of a batch that the graph was not made for
            return None

    def _part(self, name: str, array: Array, rows: slice, count: int) -> Array:
        return array[rows] if array.ndim and len(array) == count and name not in self._shared else array

    def _tensor(self, array: Array) -> Any:
        plain = np.ascontiguousarray(array)
        made = torch().from_numpy(plain if plain.flags.writeable else plain.copy())
        return (made.float() if made.is_floating_point() else made).to(self._device)


def declared(model: Model, samples: Mapping[str, Array], axes: Mapping[str, int]) -> int:
    """How many samples the file says that it takes; 0 where it leaves that open, or all samples share the input.

    `axes` are those of the samples where they are not the first.
    """
    count = max((len(array) for array in samples.values() if array.ndim), default=1)
    by_rows = {name for name, array in samples.items() if array.ndim and len(array) == count}
    values = [value for value in model.proto.graph.input if value.name in by_rows]
    shapes = [(value.type.tensor_type.shape.dim, axes.get(value.name, 0)) for value in values]
    return max((dims[axis].dim_value for dims, axis in shapes if dims), default=0)


def joined(pieces: list[dict[str, Array]]) -> dict[str, Array]:
    if len(pieces) == 1:
        return pieces[0]
    return {name: np.concatenate([np.atleast_1d(piece[name]) for piece in pieces]) for name in pieces[0]}


def _alike(one: Array | None, other: Array) -> bool:
    if one is None or one.shape != other.shape:
        return False
    return bool(np.abs(one - other).max(initial=0.0) <= ALIKE * max(float(np.abs(other).max(initial=0.0)), 1e-6))
