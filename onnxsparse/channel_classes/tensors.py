"""Labelled tensors: what the walk knows of one value, and the labels along its axes.

1. A field is an array of labels over some axes of a value: over one axis (channels), or over several (heads and what is
   inside them), where the label depends on all of them. An axis without a field is positional: nothing moves along it.
2. What is computed from a stored tensor by operators that keep every number in its place is a view of it. It has no
   fields until an operator asks for labels: only the reader knows that the input channels of a grouped convolution
   depend on the row, for example.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

import numpy as np

from onnxsparse.channel_classes.labels import Labels
from onnxsparse.math.values import Array

Axes = tuple[int, ...]
Sizes = tuple[Optional[int], ...]


@dataclass(frozen=True, eq=False)
class Field:
    """Labels over axes, in ascending order; `labels.shape` are the sizes along them."""

    axes: Axes
    labels: Array

    def moved(self, places: dict[int, int]) -> Field:
        """The same labels where every axis has another number."""
        axes = [places[axis] for axis in self.axes]
        order = sorted(range(len(axes)), key=axes.__getitem__)
        return Field(tuple(axes[at] for at in order), self.labels.transpose(order))

    def index(self, axis: int) -> int:
        return self.axes.index(axis)


@dataclass(frozen=True)
class View:
    """A stored tensor seen as a value: which of its axes each axis of the value is, None where it has one element."""

    tag: str
    axes: tuple[int | None, ...]


@dataclass(frozen=True, eq=False)
class Tensor:
    """One value of the graph. `shape` is None where not even its rank is known."""

    shape: Sizes | None
    fields: tuple[Field, ...] = ()
    views: tuple[View, ...] = ()
    numbers: Array | None = None
    uniform: bool = False
    """All its elements are equal, whatever they are."""
    flat: frozenset[int] = frozenset()
    """Axes along which all elements are equal, such as those that Expand made."""
    parts: tuple[Tensor, ...] = field(default=())
    """The tensors in a sequence or an optional."""

    @property
    def rank(self) -> int:
        return len(self.shape or ())

    @property
    def stored(self) -> bool:
        return bool(self.views)

    def size(self, axis: int) -> int | None:
        return None if self.shape is None else self.shape[axis]

    def wide(self, axis: int) -> bool:
        """Whether elements may differ along the axis."""
        return self.shape is None or (self.shape[axis] != 1 and axis not in self.flat)

    def field_on(self, axis: int) -> Field | None:
        return next((one for one in self.fields if axis in one.axes), None)


class StoredLabels:
    """The fields of one stored tensor, by the axis along which its numbers move.

    A field may depend on other axes as well: the input channels in the rows of each group. Nothing moves along these
    by that field, so its labels are a closed set for each of their indices.
    """

    def __init__(self, shape: tuple[int, ...], labels: Labels) -> None:
        self.shape, self._labels = shape, labels
        self.fields: dict[int, Field] = {}
        self.blocked: dict[int, str] = {}

    def block(self, axis: int, why: str) -> None:
        """Nothing moves along this axis, whoever asks later."""
        self.blocked.setdefault(axis, why)
        if axis in self.fields:
            self._labels.freeze(self.fields[axis].labels, why)

    def along(self, axes: Axes) -> Array:
        """The labels over `axes`, of which the last is the one to move along; in the order of `axes`."""
        moving = axes[-1]
        own = self.fields.get(moving)
        if own is None:
            labels = self._labels.fresh([self.shape[axis] for axis in axes])
            self._labels.close(labels, range(len(axes) - 1))
            self.fields[moving] = Field(axes, labels)  # the moving axis stays last, whatever the order
            if moving in self.blocked:
                self._labels.freeze(labels, self.blocked[moving])
            return labels
        extra = [axis for axis in own.axes[:-1] if axis not in axes]
        labels = collapsed(self._labels, own, extra)
        kept = [axis for axis in own.axes if axis not in extra]
        shape = [self.shape[axis] if axis in kept else 1 for axis in axes]
        ordered = labels.transpose([kept.index(axis) for axis in axes if axis in kept])
        return np.broadcast_to(ordered.reshape(shape), [self.shape[axis] for axis in axes])


def collapsed(labels: Labels, own: Field, axes: list[int]) -> Array:
    """The labels of a field without some of its axes: what lies along these is one channel from now on."""
    found = own.labels
    for axis in sorted((own.index(axis) for axis in axes), reverse=True):
        first = np.take(found, [0], axis=axis)
        labels.unite(found, first)
        found = first.squeeze(axis)
    return found


__all__ = ["Axes", "Field", "Sizes", "StoredLabels", "Tensor", "View", "collapsed"]
