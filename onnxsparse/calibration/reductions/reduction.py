"""The interface of reductions: what the uses of one layer sum up, as rows of inputs that its matrix is multiplied with.

    sums[:, outputs[b]] = rows[b] @ matrix[outputs[b]].T        rows[b] (positions, K), matrix (groups * outs, K)

A block b is what shares its rows: a group of a convolution, a matrix of a batch, a direction of a recurrent layer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxsparse.graph.weights import Use
from onnxsparse.math.values import Array

Values = Mapping[str, Array]


@dataclass(frozen=True, eq=False)
class Reduction(ABC):
    """What the uses of one layer sum up."""

    uses: tuple[Use, ...]
    """Whose matrices stand side by side in the matrix of the layer."""
    inputs: tuple[str, ...]
    """Values of the graph that rows are made of."""
    result: str
    """The value of the graph that the sums make up, with or without a bias; its gradient weighs errors. Empty where no
    value is that: behind a fused activation, in fused attention and in recurrent layers."""
    outputs: tuple[Array, ...]
    """For each block the rows of the matrix that it computes, as numbers over (group, out)."""

    @abstractmethod
    def rows(self, values: Values, dense: Values | None = None, most: int | None = None) -> Sequence[Array]:
        """For each block (positions, K), float32; K has the taps outside and the input channels inside.

        `dense`: the values of the dense net, where they differ: recurrent layers take their hidden states from it.
        `most`: of each sample at most so many positions, evenly spread.
        """

    @abstractmethod
    def by_output(self, value: Array) -> Sequence[Array]:
        """`result` or its gradient, for each block (positions, outputs of the block); positions as in all rows."""

    @property
    def dense_inputs(self) -> tuple[str, ...]:
        """Values of the graph that are read of the dense net."""
        return ()

    @property
    def weighs_positions(self) -> bool:
        """Whether its positions count by their gradients: see `calibration.sensitivity`."""
        return False

    @property
    def fed_back(self) -> str:
        """The value that the node gives at one step and reads at the next; empty where there are no steps."""
        return ""

    @property
    def takes_bias(self) -> tuple[bool, ...]:
        """For each block whether one number for each output may be added to the sums of all its rows."""
        return (True,) * len(self.outputs)

    @property
    def columns(self) -> tuple[slice, ...]:
        """Where the matrix of each use lies in that of the layer."""
        ends = np.cumsum([0, *(use.shape4[2] * use.shape4[3] for use in self.uses)]).tolist()
        return tuple(slice(start, end) for start, end in zip(ends, ends[1:]))

    @property
    def width(self) -> int:
        """K: how many inputs one output sums up."""
        return sum(use.shape4[2] * use.shape4[3] for use in self.uses)

    def matrix(self, *stored: Array) -> Array:
        """Stored numbers of each use, or what stands for them one by one, as (groups * outs, K)."""
        parts = [_by_rows(use, numbers) for use, numbers in zip(self.uses, stored)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, 1)

    def restored(self, matrix: Array) -> tuple[Array, ...]:
        """A matrix as it is stored: for each use its numbers in their order."""
        found = []
        for use, columns in zip(self.uses, self.columns):
            group, out, inputs, taps = use.shape4
            shaped = matrix[:, columns].reshape(group, out, taps, inputs)
            found.append(use.restore(shaped.transpose(0, 1, 3, 2)))
        return tuple(found)


def _by_rows(use: Use, numbers: Array) -> Array:
    group, out, _, _ = use.shape4
    return use.matrix(numbers.reshape(-1)).transpose(0, 1, 3, 2).reshape(group * out, -1)


@dataclass(frozen=True, eq=False)
class Operand:
    """A value of the graph as the numbers that a node multiplies: integers with a scale and a zero point are
    dequantised. Those may be stored, or values of the graph, too.
    """

    name: str
    scale: str = ""
    zero_point: str = ""
    axis: int = 0
    """Along which a scale of several numbers runs."""
    stored: Values | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """What has to be given when it is read."""
        names = (self.name, self.scale, self.zero_point)
        return tuple(name for name in names if name and name not in (self.stored or {}))

    def read(self, values: Values) -> Array:
        numbers = array_of(self.name, self.stored, values).astype(np.float32, copy=False)
        if self.zero_point:
            numbers = numbers - self._beside(numbers, array_of(self.zero_point, self.stored, values))
        if self.scale:
            numbers = numbers * self._beside(numbers, array_of(self.scale, self.stored, values))
        return numbers

    def _beside(self, numbers: Array, own: Array) -> Array:
        own = own.astype(np.float32)
        if own.size == 1:
            return own.reshape(())
        if own.ndim > 1:
            return own
        return own.reshape([-1 if axis == self.axis % numbers.ndim else 1 for axis in range(numbers.ndim)])


def array_of(name: str, first: Values | None, second: Values) -> Array:
    """An array by its name; the first mapping may be one that reads them from a file."""
    return np.asarray(first[name] if first is not None and name in first else second[name])


def spread(numbers: Array, axes: range, most: int | None) -> Array:
    """Of all places in some axes at most so many, evenly spread, in one axis; the numbers as they are, if they are few
    enough."""
    sizes = numbers.shape[axes.start : axes.stop]
    count = int(np.prod(sizes))
    if not most or count <= most:
        return numbers
    places = np.unravel_index(np.arange(most) * count // most, sizes)
    index: list[Any] = [slice(None)] * axes.start
    taken: Array = numbers[(*index, *places)]
    return taken
