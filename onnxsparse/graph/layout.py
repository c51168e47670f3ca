"""Axis layout: how the axes of a value lie in the stored tensor that it came from.

A stored tensor is cut into *atoms*: axes of its C-order memory, from slow to fast. A value seen through Transpose,
Reshape, Squeeze and Unsqueeze is a list of axes, each a run of atoms. The algebra:

    stored(shape)      every axis is one atom
    transpose(perm)    permutes the axes
    reshape(shape)     regroups the runs; an atom is split where a new axis ends inside it
    place(axes)        the atoms of some axes, in order

A reshape whose axis ends at a place that divides no atom has no such form, and `reshape` returns None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Shape = tuple[int, ...]
Run = tuple[int, ...]


def size_of(shape: Sequence[int]) -> int:
    size = 1
    for dim in shape:
        size *= dim
    return size


@dataclass(frozen=True)
class Layout:
    """The atoms' sizes in memory order, and for each axis of the value the atoms it runs over, slow to fast."""

    atoms: Shape
    axes: tuple[Run, ...]

    @classmethod
    def stored(cls, shape: Shape) -> Layout:
        return cls(tuple(shape), tuple((axis,) for axis in range(len(shape))))

    @property
    def shape(self) -> Shape:
        return tuple(size_of([self.atoms[atom] for atom in run]) for run in self.axes)

    def transpose(self, perm: Sequence[int]) -> Layout:
        return Layout(self.atoms, tuple(self.axes[axis] for axis in perm))

    def reshape(self, shape: Shape) -> Layout | None:
        """The same elements in the same order under other axes, or None where no atom can be split that way."""
        if size_of(shape) != size_of(self.atoms) or 0 in shape:
            return None
        splitter = _Splitter(self)
        runs = []
        for dim in shape:
            run = splitter.take(dim)
            if run is None:
                return None
            runs.append(run)
        return splitter.finish(runs)

    def place(self, axes: Sequence[int]) -> Run:
        return tuple(atom for axis in axes for atom in self.axes[axis])


class _Splitter:
    """Walks the value's atoms in order and cuts them as the new axes demand."""

    def __init__(self, layout: Layout) -> None:
        self._pieces = {atom: [size] for atom, size in enumerate(layout.atoms)}
        self._queue = [(atom, size) for run in layout.axes for atom in run for size in [layout.atoms[atom]]][::-1]

    def take(self, dim: int) -> list[tuple[int, int]] | None:
        """The pieces (atom, index of the piece in it) that make up one new axis of `dim` elements."""
        run = []
        while dim > 1:
            while self._queue[-1][1] == 1:
                self._queue.pop()
            atom, size = self._queue.pop()
            if size > dim:
                if size % dim:
                    return None
                self._pieces[atom][-1:] = [dim, size // dim]
                self._queue.append((atom, size // dim))
                run.append((atom, len(self._pieces[atom]) - 2))
                break
            if dim % size:
                return None
            run.append((atom, len(self._pieces[atom]) - 1))
            dim //= size
        return run

    def finish(self, runs: list[list[tuple[int, int]]]) -> Layout:
        first: dict[int, int] = {}
        sizes: list[int] = []
        for atom in sorted(self._pieces):
            first[atom] = len(sizes)
            sizes.extend(self._pieces[atom])
        return Layout(tuple(sizes), tuple(tuple(first[atom] + piece for atom, piece in run) for run in runs))
