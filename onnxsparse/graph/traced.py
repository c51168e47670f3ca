"""What a name in the graph can stand for; see `flow`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Union

import numpy as np

from onnxsparse.graph.layout import Layout, Shape, size_of
from onnxsparse.graph.storage import Array, StoredTensor
from onnxsparse.graph.weights import Mask, Quantization, view_of

SMALL_CONSTANT = 1 << 20


@dataclass(frozen=True, eq=False)
class Traced:
    """One stored tensor, seen through nodes that keep every element where it can be found again."""

    tensor: StoredTensor
    layout: Layout
    crossed: tuple[str, ...] = ()
    quantization: Quantization | None = None
    masks: tuple[Mask, ...] = ()
    shuffled: frozenset[int] = frozenset()  # stored axes whose rows Slice and Concat have put into another order

    @property
    def shape(self) -> Shape:
        return self.layout.shape

    def array(self) -> Array | None:
        """The value itself, where it can be read."""
        return view_of(self.tensor.read(), self.layout) if self.tensor.readable else None


@dataclass(frozen=True, eq=False)
class Computed:
    """A constant that is not a plain view of one stored tensor, and the operator that made it so."""

    tensors: frozenset[StoredTensor]
    why: str


@dataclass(frozen=True, eq=False)
class Part(Computed):
    """The rows start to stop of one axis of a traced constant; Concat may put the parts together again."""

    source: Traced
    axis: int
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class Joined(Computed):
    """Several traced constants side by side along one axis."""

    pieces: tuple[Traced, ...]
    axis: int


@dataclass(frozen=True, eq=False)
class Known(Computed):
    """A small array of integers that was computed from others: a shape, an axis, a bound."""

    array: Array


@dataclass(frozen=True, eq=False)
class Dims(Computed):
    """The shape of a value that depends on the model's inputs, as the file declares it; None where it is free."""

    sizes: tuple[int | None, ...]


Value = Optional[Union[Traced, Computed]]


def computed(given: list[Traced | Computed], why: str) -> Computed:
    tensors: set[StoredTensor] = set()
    for value in given:
        tensors |= {value.tensor} if isinstance(value, Traced) else value.tensors
    first = next((value.why for value in given if isinstance(value, Computed)), why)
    return Computed(frozenset(tensors), first)


def small_array(value: Value) -> Array | None:
    """A constant small enough to be a shape, an axis list, a scale or a zero point."""
    if isinstance(value, Known):
        return value.array
    if isinstance(value, Traced) and value.tensor.size <= SMALL_CONSTANT:
        return value.array()
    return None


def over_atoms(values: Array, layout: Layout, axis: int) -> Array | None:
    """Per-axis numbers (or numbers that broadcast against the value) with one axis for each atom of the layout."""
    rank = len(layout.axes)
    if values.size == 1:
        return values.reshape((1,) * len(layout.atoms))
    if values.ndim == 1 and rank != 1:
        values = values.reshape([-1 if index == axis % rank else 1 for index in range(rank)])
    if values.ndim == 2 and rank == 3:
        values = values[:, None, :]
    if values.ndim != rank or any(have not in (1, full) for have, full in zip(values.shape, layout.shape)):
        return None
    order = [atom for run in layout.axes for atom in run]
    order += [atom for atom in range(len(layout.atoms)) if atom not in order]
    kept = {atom for run, have in zip(layout.axes, values.shape) if have > 1 for atom in run}
    sizes = [layout.atoms[atom] if atom in kept else 1 for atom in order]
    return values.reshape(sizes).transpose(np.argsort(order)) if size_of(sizes) == values.size else None
