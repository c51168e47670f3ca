"""Views, scalings and casts between a stored tensor and a node, and what they make of each stored number.

A value that is followed through the graph is a view of one stored tensor (`layout`) and a list of steps: casts,
factors, quantizations and masks, in the order in which the graph applies them. Every step keeps its parameters in the
stored order, with one axis for each atom that the tensor was cut into where the step stands, of full size or 1; so the
steps can be run on the stored numbers, or on one number alone, such as the one that stands for zero.

    numbers = decoded(stored) -> step -> step ... -> shuffles -> the view that the layout says
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Union

import numpy as np

from onnxsparse.graph.layout import Layout, Run, Shape, size_of
from onnxsparse.graph.storage import Array, StoredTensor

_FLOATS = {"float32": np.float32, "float64": np.float64, "float16": np.float16}
RANGES = {
    "int4": (-8, 7), "uint4": (0, 15), "int8": (-128, 127), "uint8": (0, 255),
    "int16": (-(1 << 15), (1 << 15) - 1), "uint16": (0, (1 << 16) - 1),
}  # fmt: skip
"""What QuantizeLinear saturates to."""


# -- views of memory


def view_of(flat: Array, layout: Layout) -> Array:
    """The value a stored array has under a layout."""
    order, _ = complete(layout, [atom for run in layout.axes for atom in run])
    return flat.reshape(layout.atoms).transpose(order).reshape(layout.shape)


def unview(value: Array, layout: Layout) -> Array:
    """The flat stored array whose value under `layout` is `value`."""
    order, sizes = complete(layout, [atom for run in layout.axes for atom in run])
    return value.reshape(sizes).transpose(np.argsort(order)).reshape(-1)


def complete(layout: Layout, order: list[int]) -> tuple[list[int], list[int]]:
    """Atoms of size 1 belong to no axis; they go last."""
    full = order + [atom for atom in range(len(layout.atoms)) if atom not in order]
    return full, [layout.atoms[atom] for atom in full]


def owners_of(fine: Shape, coarse: Shape) -> list[int]:
    """For each fine atom the coarse one it was split from; splitting keeps the order, so one walk pairs them."""
    owners, owner, reached = [], 0, 1
    for size in fine:
        while reached * size > coarse[owner] and owner + 1 < len(coarse):
            owner, reached = owner + 1, 1
        reached *= size
        owners.append(owner)
    return owners


def spread(values: Array, cut: Shape, atoms: Shape) -> Array:
    """Numbers over the atoms `cut`, over finer atoms; what broadcasts along an atom broadcasts along its parts."""
    if values.size == 1:
        return values.reshape((1,) * len(atoms))
    owners = owners_of(atoms, cut)
    return values.reshape([size if values.shape[owner] > 1 else 1 for size, owner in zip(atoms, owners)])


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


# -- rows in another order


@dataclass(frozen=True, eq=False)
class Shuffle:
    """Rows that Split or Slice and Concat put into another order: row j is row `order[j]` of a stored run of atoms."""

    atoms: Shape
    run: Run
    order: Array

    def undo(self, values: Array, atoms: Shape) -> Array:
        """Numbers that stand beside the shuffled value (one axis for each of `atoms`), in the stored order."""
        return self._permuted(values, atoms, np.argsort(self.order))

    def apply(self, values: Array, atoms: Shape) -> Array:
        """Numbers in the stored order, as the shuffled value has them."""
        return self._permuted(values, atoms, self.order)

    def _permuted(self, values: Array, atoms: Shape, order: Array) -> Array:
        owners = owners_of(atoms, self.atoms)
        run = [atom for coarse in self.run for atom, owner in enumerate(owners) if owner == coarse]
        if all(values.shape[atom] == 1 for atom in run):
            return values
        whole = [atoms[atom] if atom in run else size for atom, size in enumerate(values.shape)]
        front = run + [atom for atom in range(len(whole)) if atom not in run]
        moved = np.broadcast_to(values, whole).transpose(front)
        rows = moved.reshape((self.order.size, *moved.shape[len(run) :]))
        return rows[order].reshape(moved.shape).transpose(np.argsort(front))


def undone(values: Array, atoms: Shape, shuffles: Sequence[Shuffle]) -> Array:
    for shuffle in reversed(shuffles):
        values = shuffle.undo(values, atoms)
    return values


# -- steps


@dataclass(frozen=True, eq=False)
class Cast:
    kind: str

    @property
    def key(self) -> object:
        return ("cast", self.kind)

    def apply(self, numbers: Array, atoms: Shape) -> Array:
        return as_kind(numbers, self.kind)


@dataclass(frozen=True, eq=False)
class Scale:
    """A product with a constant factor, or a quotient by one."""

    cut: Shape
    factor: Array
    divides: bool = False

    @property
    def key(self) -> object:
        return ("scale", self.cut, self.factor.shape, self.factor.tobytes(), self.divides)

    def apply(self, numbers: Array, atoms: Shape) -> Array:
        factor = spread(self.factor, self.cut, atoms)
        return np.asarray(numbers / factor if self.divides else numbers * factor).astype(numbers.dtype)


@dataclass(frozen=True, eq=False)
class Quantize:
    cut: Shape
    scale: Array
    zero_point: Array
    kind: str

    @property
    def key(self) -> object:
        return ("quantize", self.cut, self.scale.tobytes(), self.zero_point.tobytes(), self.kind)

    def apply(self, numbers: Array, atoms: Shape) -> Array:
        scaled = numbers / spread(self.scale, self.cut, atoms)
        zero = spread(self.zero_point, self.cut, atoms).astype(np.float64)
        if self.kind not in RANGES:
            return np.asarray(scaled + zero)  # 8-bit floats: what matters here is that zero stays zero
        low, high = RANGES[self.kind]
        codes = np.clip(np.rint(scaled) + zero, low, high)
        return np.asarray(codes)  # a NaN stays one, so that nobody takes it for a code


@dataclass(frozen=True, eq=False)
class Dequantize:
    cut: Shape
    scale: Array
    zero_point: Array

    @property
    def key(self) -> object:
        return ("dequantize", self.cut, self.scale.tobytes(), self.zero_point.tobytes())

    def apply(self, numbers: Array, atoms: Shape) -> Array:
        zero = spread(self.zero_point, self.cut, atoms).astype(np.float64)
        wide = numbers.astype(np.float64) - zero
        return np.asarray(wide * spread(self.scale, self.cut, atoms)).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Quantization:
    """Scale and zero point of an integer tensor. Both have one axis for each of `atoms` (the stored tensor cut as it
    was where they applied), of full size or 1."""

    atoms: Shape
    scale: Array
    zero_point: Array

    @property
    def key(self) -> object:
        return (self.atoms, self.scale.shape, self.scale.tobytes(), self.zero_point.shape, self.zero_point.tobytes())


class Numbers(Protocol):
    """A constant whose numbers can be computed."""

    @property
    def tensor(self) -> StoredTensor: ...

    @property
    def key(self) -> object: ...

    @property
    def plain(self) -> bool: ...

    @property
    def layout(self) -> Layout: ...

    def nonzero(self) -> Array: ...


@dataclass(frozen=True, eq=False)
class Mask:
    """A constant of zeros and ones that a node multiplies the weight with, in the axes it has at that node."""

    value: Numbers
    shape: Shape  # of the mask beside the weight: as many axes as that has
    at: Layout  # the weight's own layout at the node
    shuffles: tuple[Shuffle, ...] = ()

    @property
    def tensor(self) -> StoredTensor:
        return self.value.tensor

    @property
    def key(self) -> object:
        return ("mask", self.value.key, self.shape, self.at)

    @property
    def plain(self) -> bool:
        """Whether the mask is stored as the weight is, and nothing happens to either before they meet."""
        return self.value.plain and not self.shuffles and self.at == self.value.layout == Layout.stored(self.shape)

    def stored(self) -> Array:
        """The mask in the weight's stored order, True = keep."""
        keep = unview(np.broadcast_to(self.value.nonzero().reshape(self.shape), self.at.shape), self.at)
        if not self.shuffles:
            return keep
        return undone(keep.reshape(self.at.atoms), self.at.atoms, self.shuffles).reshape(-1)

    def apply(self, numbers: Array, atoms: Shape) -> Array:
        return np.where(self.stored().reshape(atoms), numbers, np.zeros((), numbers.dtype))


Step = Union[Cast, Scale, Quantize, Dequantize, Mask]


def run(steps: Sequence[Step], numbers: Array, atoms: Shape) -> Array:
    """What the steps make of numbers that have one axis for each atom, of full size or 1."""
    with np.errstate(all="ignore"):
        for step in steps:
            numbers = step.apply(numbers, atoms)
    return numbers


def arrives(steps: Sequence[Step], zero: Array, atoms: Shape) -> Array:
    """What the stored number `zero` becomes behind the steps; masks leave a zero what it is, wherever they stand."""
    numbers = zero
    with np.errstate(all="ignore"):
        for step in steps:
            if not isinstance(step, Mask) or (numbers != 0).any():
                numbers = step.apply(numbers, atoms)
    return numbers


# -- kinds of numbers


def decoded(numbers: Array, kind: str) -> Array:
    """Stored numbers as numpy computes with them: the bits of a bfloat16 become a float32."""
    if kind == "bfloat16":
        return np.asarray(numbers.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return numbers


def as_kind(numbers: Array, kind: str) -> Array:
    """A Cast; whole numbers wrap around as they do in C."""
    if kind == "bfloat16":
        bits = numbers.astype(np.float32).view(np.uint32).astype(np.uint64)
        rounded = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16) << np.uint64(16)
        finite = np.isfinite(numbers.astype(np.float32))
        return np.where(finite, rounded.astype(np.uint32).view(np.float32), numbers.astype(np.float32))
    return numbers.astype(_FLOATS.get(kind, kind))
