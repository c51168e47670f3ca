"""A weight of the model: one stored tensor, every use of it with the meaning of its axes, and its convolution."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import NodeProto

from onnxsparse.graph.attributes import Attributes, IdentityKey
from onnxsparse.graph.elementwise import Mask, Quantization, Shuffle, Step, complete, owners_of
from onnxsparse.graph.layout import Layout, Run, Shape, size_of
from onnxsparse.graph.operators import Arrangement
from onnxsparse.graph.storage import Array, StoredTensor
from onnxsparse.graph.stores import Home

Signature = tuple[tuple[int, int], ...]
Shape4 = tuple[int, int, int, int]


@dataclass(frozen=True, eq=False)
class Use:
    """One weight input of one node: the node, and the atoms of the stored tensor by role."""

    source: NodeProto
    op: str
    node: str
    scope: str
    slot: int
    family: str
    stored_shape: Shape
    layout: Layout
    arrangement: Arrangement
    crossed: tuple[str, ...] = ()
    quantization: Quantization | None = None
    steps: tuple[Step, ...] = ()
    shuffles: tuple[Shuffle, ...] = ()
    rows: tuple[int, int] | None = None  # where its outputs lie in a weight that is cut between them, or joined
    along: int | None = None  # the axis of the arrangement that `rows` are of

    @property
    def masks(self) -> tuple[Mask, ...]:
        return tuple(step for step in self.steps if isinstance(step, Mask))

    @property
    def key(self) -> object:
        """Two uses with the same key are one: the same input of the same node, reading the same numbers."""
        read = (self.quantization.key if self.quantization else None, tuple(step.key for step in self.steps))
        orders = tuple((shuffle.run, shuffle.order.tobytes()) for shuffle in self.shuffles)
        return (*self.reader, self.slot, self.layout, self.arrangement, self.rows, *read, orders)

    @property
    def reader(self) -> tuple[IdentityKey, str]:
        """One node, in one call of its function."""
        return IdentityKey(self.source), self.scope

    @property
    def runs(self) -> tuple[Run, Run, Run, Run]:
        """The atoms of group, out, reduce and tap."""
        roles = (self.arrangement.group, self.arrangement.out, self.arrangement.reduce, self.arrangement.tap)
        group, out, reduce, tap = (self.layout.place(role) for role in roles)
        return group, out, reduce, tap

    @property
    def shape4(self) -> Shape4:
        return self._shape4(self.layout.atoms)

    def _shape4(self, atoms: Shape) -> Shape4:
        group, out, reduce, tap = (size_of([atoms[atom] for atom in run]) for run in self.runs)
        return group, out, reduce, tap

    def matrix(self, flat: Array) -> Array:
        """The stored array, or a slab of it, as (group, out, reduce, tap); a view wherever memory allows."""
        atoms = self._slab_atoms(flat.size)
        order, _ = complete(self.layout, [atom for run in self.runs for atom in run])
        return flat.reshape(atoms).transpose(order).reshape(self._shape4(atoms))

    def restore(self, matrix: Array) -> Array:
        """The inverse of `matrix`: the flat array in stored order."""
        atoms = self._slab_atoms(matrix.size)
        order, _ = complete(self.layout, [atom for run in self.runs for atom in run])
        return matrix.reshape([atoms[atom] for atom in order]).transpose(np.argsort(order)).reshape(-1)

    def _slab_atoms(self, size: int) -> Shape:
        inner = size_of(self.layout.atoms[1:])
        return (size // inner, *self.layout.atoms[1:]) if inner else self.layout.atoms

    def broadcast(self, values: Array, cut: Shape, start: int, stop: int) -> Array:
        """A scale or zero point over the atoms `cut`, against the matrix of elements start to stop."""
        if values.size == 1:
            return values.reshape(1, 1, 1, 1)
        owners = owners_of(self.layout.atoms, cut)
        atoms = [size if values.shape[owner] > 1 else 1 for size, owner in zip(self.layout.atoms, owners)]
        inner = size_of(self.layout.atoms[1:])
        grid = values.reshape(atoms)[slice(start // inner, stop // inner) if atoms[0] > 1 else slice(None)]
        whole = [(stop - start) // inner, *self.layout.atoms[1:]]
        for run in self.runs:
            if any(atoms[atom] > 1 for atom in run):
                grid = np.broadcast_to(grid, [whole[i] if i in run else size for i, size in enumerate(grid.shape)])
        order, _ = complete(self.layout, [atom for run in self.runs for atom in run])
        shape = [size_of([grid.shape[atom] for atom in run]) for run in self.runs]
        return grid.transpose(order).reshape(shape)

    def slabs(self, limit: int, multiple: int, outputs: int = 1) -> Iterator[tuple[int, int]]:
        """Cut the stored tensor into flat ranges of about `limit` elements that cut no group of `multiple` along the
        reduction, and none of so many outputs."""
        size = size_of(self.layout.atoms)
        rows = self._slab_rows(limit, multiple, outputs)
        step = rows * size_of(self.layout.atoms[1:])
        for start in range(0, size, max(step, 1)):
            yield start, min(start + step, size)

    def _slab_rows(self, limit: int, multiple: int, outputs: int) -> int:
        lead, inner = self.layout.atoms[0], size_of(self.layout.atoms[1:])
        rows = max(1, limit // max(inner, 1))
        _, out, reduce, _ = self.runs
        run, unit = next(((run, unit) for run, unit in ((reduce, multiple), (out, outputs)) if 0 in run), ((0,), 1))
        if run[0] != 0 and lead % unit:
            return lead
        return min(max(rows // unit, 1) * unit, lead)

    @property
    def _strides(self) -> list[int]:
        strides = [1]
        for atom in reversed(self.layout.atoms[1:]):
            strides.append(strides[-1] * atom)
        return strides[::-1]

    def _signature(self, run: Run) -> Signature:
        """Sizes and strides of a run, fast to slow, neighbours in memory merged."""
        strides, merged = self._strides, list[tuple[int, int]]()
        for atom in reversed(run):
            size, stride = self.layout.atoms[atom], strides[atom]
            if size == 1:
                continue
            if merged and merged[-1][0] * merged[-1][1] == stride:
                merged[-1] = (merged[-1][0] * size, merged[-1][1])
            else:
                merged.append((size, stride))
        return tuple(merged)

    def groups_key(self, multiple: int) -> object:
        """Two uses with the same key have the same groups of `multiple` along their reduction axes."""
        signature = self._signature(self.runs[2])
        if signature and signature[0][0] % multiple == 0:
            return signature[0][1]
        return signature

    def matrix_key(self) -> object:
        """Two uses with the same key see the same matrix."""
        return tuple(self._signature(run) for run in self.runs)

    def square_key(self) -> object:
        """Two uses with the same key see the same matrix, or one of them its transpose."""
        group, out, reduce, tap = (self._signature(run) for run in self.runs)
        return group, frozenset((out, reduce)), tap

    def stored_axes(self, run: Run) -> tuple[int, ...]:
        """The axes of the stored tensor that the atoms of a run lie in."""
        owners = owners_of(self.layout.atoms, self.stored_shape)
        return tuple(
            sorted({owners[atom] for atom in run if self.layout.atoms[atom] > 1} or {owners[atom] for atom in run})
        )


@dataclass(eq=False)
class Weight:
    """A stored tensor that at least one node uses as a weight, or would, were there not `refusal`.

    `name` is what reports, plans and options call it: that of the tensor, with the scope where weights of two scopes
    have the same, and a number where that is not enough. No two weights of a model share it.
    """

    name: str
    tensor: StoredTensor
    home: Home
    uses: list[Use] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    bare: list[str] = field(default_factory=list)  # those of `others` that no mask stands before
    masked_readers: list[tuple[Mask, ...]] = field(default_factory=list)  # the masks that the rest of `others` see
    overlaps: str = ""  # another tensor that shares some bytes of the data file, but not all
    refusal: str = ""
    refused_by: str = ""
    twins: list[Weight] = field(default_factory=list)  # other names for the same bytes of a data file

    @property
    def shape(self) -> Shape:
        return self.tensor.shape

    @property
    def scope(self) -> str:
        return self.home.scope

    @property
    def storage(self) -> str:
        return self.home.storage

    @property
    def tag(self) -> str:
        return self.home.tag

    @property
    def all_uses(self) -> list[Use]:
        """The uses of these numbers, under whatever name."""
        return [*self.uses, *(use for twin in self.twins for use in twin.uses)]

    @property
    def layers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(use.node for use in self.uses))


def unique_names(weights: Sequence[Weight]) -> list[str]:
    """A name for every weight: its tensor's, with the scope where two scopes use the same."""
    counts, taken = Counter(weight.tensor.name for weight in weights), Counter[str]()
    found = []
    for weight in weights:
        own = weight.tensor.name
        name = own or f"unnamed tensor of {weight.layers[0] if weight.layers else weight.refused_by}"
        name = f"{weight.scope}/{name}" if weight.scope and counts[own] > 1 else name
        taken[name] += 1
        found.append(name if taken[name] == 1 else f"{name}#{taken[name]}")
    return found


# -- A convolution as a chip sees it: kernel, stride, dilation, channels and groups, read from the node of a use.


FAMILIES = ("Conv", "ConvTranspose")


@dataclass(frozen=True)
class Convolution:
    """`inputs` and `outputs` are channels of one group."""

    kernel: tuple[int, ...]
    inputs: int
    outputs: int
    groups: int = 1
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()

    @property
    def depthwise(self) -> bool:
        """Every input channel has filters of its own."""
        return self.groups > 1 and self.inputs == 1

    def along(self, numbers: tuple[int, ...], axis: int) -> int:
        """A stride or dilation along an axis; 1 where none is given."""
        return numbers[axis] if axis < len(numbers) else 1

    @property
    def stride(self) -> int:
        return math.prod(self.strides)


def convolution_of(use: Use) -> Convolution | None:
    """What a use says of its convolution; None for every other layer."""
    if use.family not in FAMILIES:
        return None
    group, out, inputs, taps = use.shape4
    attributes = Attributes(use.source, {})
    kernel = attributes.integers("kernel_shape") or list(use.layout.shape[2:])
    if math.prod(kernel) != taps:  # an operator with another order of axes, or attributes of a caller
        kernel = [taps]
    strides, dilations = attributes.integers("strides") or [], attributes.integers("dilations") or []
    return Convolution(tuple(kernel), inputs, out, group, tuple(strides), tuple(dilations))
