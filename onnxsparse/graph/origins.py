"""Origins of values: the stored tensors, and views of them, that a name in the graph can stand for; see `flow`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Optional, Union

import numpy as np
from onnx import TensorProto, numpy_helper

from onnxsparse.graph.elementwise import (
    Cast,
    Dequantize,
    Mask,
    Quantization,
    Quantize,
    Shuffle,
    Step,
    decoded,
    over_atoms,
    owners_of,
    run,
    undone,
    view_of,
)
from onnxsparse.graph.layout import Layout, Shape
from onnxsparse.graph.storage import Array, StoredTensor

SMALL_CONSTANT = 1 << 20
PIECE = 1 << 18
"""Elements read at a time."""


@dataclass(frozen=True, eq=False)
class Traced:
    """One stored tensor, seen through nodes that keep every element where it can be found again."""

    tensor: StoredTensor
    layout: Layout
    crossed: tuple[str, ...] = ()
    quantization: Quantization | None = None
    steps: tuple[Step, ...] = ()
    shuffles: tuple[Shuffle, ...] = ()  # rows that Split or Slice and Concat have put into another order

    @property
    def shape(self) -> Shape:
        return self.layout.shape

    @property
    def masks(self) -> tuple[Mask, ...]:
        return tuple(step for step in self.steps if isinstance(step, Mask))

    @property
    def shuffled(self) -> frozenset[int]:
        """The stored axes whose rows are in another order."""
        found: set[int] = set()
        for shuffle in self.shuffles:
            owners = owners_of(shuffle.atoms, self.tensor.shape)
            found.update(owners[atom] for atom in shuffle.run)
        return frozenset(found)

    @property
    def kind(self) -> str:
        """The type that the value has here."""
        for step in reversed(self.steps):
            if isinstance(step, (Cast, Quantize)):
                return step.kind
            if isinstance(step, Dequantize):
                return "float32"
        return self.tensor.kind

    @property
    def key(self) -> object:
        """Two values with the same key are the same numbers in the same places."""
        orders = tuple((shuffle.atoms, shuffle.run, shuffle.order.tobytes()) for shuffle in self.shuffles)
        return (self.tensor, self.layout, tuple(step.key for step in self.steps), orders)

    def then(self, step: Step) -> Traced:
        return replace(self, steps=(*self.steps, step))

    def beside(self, values: Array, axis: int) -> Array | None:
        """Numbers that run along one axis of the value, or broadcast against it, in the order of the stored tensor."""
        found = over_atoms(values, self.layout, axis)
        return None if found is None else undone(found, self.layout.atoms, self.shuffles)

    def numbers(self) -> Array | None:
        """The numbers that the value really has here; None where they cannot be read."""
        flat = _stored(self.tensor)
        if flat is None:
            return None
        atoms = self.layout.atoms
        values = run(self.steps, flat.reshape(atoms), atoms)
        for shuffle in self.shuffles:
            values = shuffle.apply(values, atoms)
        seen = view_of(values.reshape(-1), self.layout)
        whole = self.kind.startswith(("int", "uint")) and seen.dtype.kind == "f" and bool(np.isfinite(seen).all())
        return seen.astype(_numpy_kind(self.kind)) if whole else seen

    def is_binary(self) -> bool:
        """Whether every number of the value is 0 or 1."""
        return all(bool(((piece == 0) | (piece == 1)).all()) for piece in self._pieces())

    def _pieces(self) -> Iterator[Array]:
        """The numbers in the order of the value, or in the stored order where nothing is computed on the way."""
        if not self.plain:
            numbers = self.numbers()
            yield np.full(1, np.nan) if numbers is None else numbers.reshape(-1)
            return
        # All pieces are read into the same memory: new memory costs more than what is done with it.
        memory = np.empty(min(PIECE, self.tensor.size) * self.tensor.dtype.itemsize, np.uint8)
        for at in range(0, self.tensor.size, PIECE):
            yield decoded(self.tensor.read(at, min(at + PIECE, self.tensor.size), memory), self.tensor.kind)

    @property
    def plain(self) -> bool:
        """Whether the numbers are those that are stored, perhaps in other axes."""
        return self.tensor.readable and not self.steps and not self.shuffles

    def nonzero(self) -> Array:
        """Where the value is not zero."""
        numbers = self.numbers()
        assert numbers is not None, "a mask was read when it was found"
        return np.asarray(numbers != 0)


def _stored(tensor: StoredTensor) -> Array | None:
    if tensor.readable:
        return decoded(tensor.read(), tensor.kind)
    if tensor.problem or tensor.span is not None or tensor.external or tensor.size > SMALL_CONSTANT:
        return None
    if tensor.proto.data_type in (TensorProto.STRING, TensorProto.COMPLEX64, TensorProto.COMPLEX128):
        return None
    try:  # 4-bit integers and 8-bit floats, such as scales and zero points have
        return np.asarray(numpy_helper.to_array(tensor.proto)).astype(np.float32).reshape(-1)
    except (ValueError, TypeError, KeyError):
        return None


def _numpy_kind(kind: str) -> str:
    return {"int4": "int8", "uint4": "uint8", "int2": "int8", "uint2": "uint8"}.get(kind, kind)


@dataclass(frozen=True, eq=False)
class Computed:
    """A constant that is not a plain view of one stored tensor, and the operator that made it so."""

    tensors: frozenset[StoredTensor]
    why: str

    @property
    def shape(self) -> Shape | None:
        """Where it is known."""
        return None


@dataclass(frozen=True, eq=False)
class Shaped(Computed):
    """A constant of a known shape."""

    sizes: Shape

    @property
    def shape(self) -> Shape:
        return self.sizes


@dataclass(frozen=True, eq=False)
class Part(Computed):
    """The rows start to stop of one axis of a traced constant; Concat may put the parts together again."""

    source: Traced
    axis: int
    start: int
    stop: int

    @property
    def shape(self) -> Shape:
        return tuple(self.stop - self.start if at == self.axis else size for at, size in enumerate(self.source.shape))


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


@dataclass(frozen=True, eq=False)
class Varying(Computed):
    """Something that depends on the model's inputs, and on stored tensors besides: for all but what follows such
    tensors it is a value like any other of the run. `sure`: it is as large as the stored tensor, a weight that a
    run-time value moves; otherwise it may be an activation to which a table was added."""

    sure: bool
    sizes: Shape | None = None

    @property
    def shape(self) -> Shape | None:
        return self.sizes


Value = Optional[Union[Traced, Computed]]


def computed(given: list[Traced | Computed], why: str, shape: Shape | None = None) -> Computed:
    first = next((value.why for value in given if isinstance(value, Computed)), why)
    return Computed(tensors_of(given), first) if shape is None else Shaped(tensors_of(given), first, shape)


def tensors_of(given: list[Traced | Computed]) -> frozenset[StoredTensor]:
    tensors: set[StoredTensor] = set()
    for value in given:
        tensors |= {value.tensor} if isinstance(value, Traced) else value.tensors
    return frozenset(tensors)


def carried(value: Value) -> list[Traced]:
    """The stored tensors that are still followed in a value."""
    if isinstance(value, Traced):
        return [value]
    if isinstance(value, Part):
        return [value.source]
    return list(value.pieces) if isinstance(value, Joined) else []


def small_array(value: Value) -> Array | None:
    """A constant small enough to be a shape, an axis list, a scale or a zero point."""
    if isinstance(value, Known):
        return value.array
    if isinstance(value, Traced) and value.tensor.size <= SMALL_CONSTANT:
        return value.numbers()
    return None
