"""Which stored numbers a node reads where: a weight may be cut into parts, joined with others, or have its outputs in
another order, by Split, Slice and Concat.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnxsparse.graph.elementwise import owners_of
from onnxsparse.graph.layout import Shape, size_of
from onnxsparse.graph.weights import Use
from onnxsparse.math.values import Array


@dataclass(frozen=True, eq=False)
class Placed:
    """What a node reads of a stored tensor."""

    outputs: tuple[Array, ...]
    """For each group, in the order of the node, the rows of the stored matrix, as numbers over (group, out)."""
    shape: Shape
    """Of what it reads, in the axes of the arrangement."""
    joined: tuple[int, int, int] | None = None
    """The axis along which others lie beside it, and where it starts and stops there."""

    def same(self, other: Placed) -> bool:
        """Whether outputs of both are the same outputs of the node."""
        pairs = zip(self.outputs, other.outputs)
        return self.joined == other.joined and all(np.array_equal(one, two) for one, two in pairs)

    def own(self, numbers: Array, axis: int) -> Array:
        """Of numbers of the node those that belong to this weight; `axis` is that of the joined one."""
        if self.joined is None:
            return numbers
        _, start, stop = self.joined
        return np.take(numbers, np.arange(start, stop), axis)


def placed(use: Use) -> Placed | str:
    """Where the node of a use reads it, or why that cannot be told."""
    arrangement, shape = use.arrangement, use.arrangement.shape
    axes = (*arrangement.group, *arrangement.out)
    ordered = _in_order_of_node(use)
    if isinstance(ordered, str):
        return ordered
    numbers, joined = ordered.reshape([shape[axis] for axis in axes]), None
    if use.rows is not None:
        if use.along not in axes:
            return "Split, Slice or Concat cuts it between the taps of its kernel"
        (start, stop), at = use.rows, axes.index(use.along)
        if stop - start == shape[use.along]:
            joined = (use.along, start, stop)
        else:
            numbers = np.take(numbers, np.arange(start, stop), at)
            shape = (*shape[: use.along], stop - start, *shape[use.along + 1 :])
    groups = size_of([shape[axis] for axis in arrangement.group])
    return Placed(tuple(numbers.reshape(groups, -1)), shape, joined)


def _in_order_of_node(use: Use) -> Array | str:
    """For each output of the node the row of the stored matrix."""
    atoms, (group, out, _, _) = use.layout.atoms, use.runs
    front = [*group, *out]
    rest = [atom for atom in range(len(atoms)) if atom not in front]
    sizes = [atoms[atom] for atom in front]
    numbers = np.arange(size_of(sizes)).reshape([*sizes, *(1 for _ in rest)]).transpose(np.argsort([*front, *rest]))
    for shuffle in use.shuffles:
        owners = owners_of(atoms, shuffle.atoms)
        if any(size > 1 and owners[atom] in shuffle.run and atom in rest for atom, size in enumerate(atoms)):
            return "Split, Slice and Concat put its taps into another order"
        numbers = shuffle.apply(numbers, atoms)
    return numbers.transpose([*front, *rest]).reshape(-1)
