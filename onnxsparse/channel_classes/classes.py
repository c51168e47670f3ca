"""Channel classes of a model: the channels that may change places, and the stored tensors that hold their numbers.

1. Two channels are of one class where the same copies of both are in the same closed sets, and nothing freezes them.
2. A member of a class is a stored tensor with the axes along which numbers of these channels lie.
3. What no class holds is blocked, with the first reason that was found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from onnx import ModelProto

from onnxsparse.channel_classes.bare import bare_copy
from onnxsparse.channel_classes.labels import Labels, occurrences
from onnxsparse.channel_classes.rules import table
from onnxsparse.channel_classes.tensors import Axes, Field, Tensor
from onnxsparse.channel_classes.walk import Walk
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import StoredTensor
from onnxsparse.graph.stores import keys
from onnxsparse.math.values import Array


@dataclass(frozen=True, eq=False)
class Member:
    """A stored tensor with labels along some of its axes; the last is the one that its numbers move along."""

    tensor: StoredTensor
    name: str
    axes: Axes
    labels: Array
    """The channel of every index along `axes`, in their order; the number of a channel is its smallest label."""

    @property
    def depends(self) -> bool:
        """Whether the channels along the moving axis are other ones for each index of the others."""
        return len(self.axes) > 1


@dataclass(frozen=True, eq=False)
class ChannelClass:
    """Channels that may change places with each other, in the order in which the file has them first."""

    number: int
    channels: Array
    members: tuple[Member, ...]

    @property
    def size(self) -> int:
        return len(self.channels)


@dataclass(frozen=True, eq=False)
class Channels:
    """The channel classes of an opened model, and why what is in none of them may not move."""

    members: tuple[Member, ...]
    classes: tuple[ChannelClass, ...]
    reasons: Mapping[int, str] = field(repr=False)
    """Why a channel is frozen, by channel."""
    values: Mapping[str, tuple[Field, ...]] = field(default_factory=dict, repr=False)
    """The channels along the axes of the values of the graph, by name; bodies and functions have their own."""

    @cached_property
    def by_tensor(self) -> dict[StoredTensor, list[Member]]:
        found: dict[StoredTensor, list[Member]] = {}
        for member in self.members:
            found.setdefault(member.tensor, []).append(member)
        return found

    @cached_property
    def _class_of(self) -> Array:
        """The number of the class of each channel, -1 for those in none."""
        found = np.full(max((int(one.channels.max()) + 1 for one in self.classes), default=0), -1)
        for one in self.classes:
            found[one.channels] = one.number
        return found

    def why(self, member: Member) -> str:
        """The first reason why none of the channels of a member can change places; '' where some can."""
        own = np.unique(member.labels)
        classes = np.sort(self._class_of[own[own < len(self._class_of)]])
        if ((classes[1:] == classes[:-1]) & (classes[1:] >= 0)).any():
            return ""
        reasons = (self.reasons[int(channel)] for channel in own if int(channel) in self.reasons)
        return next(reasons, "no two of its channels are alike in every layer that they meet")

    def rearranged(self, orders: Mapping[int, Array]) -> dict[StoredTensor, list[tuple[Axes, Array]]]:
        """What moves in each stored tensor where the channels of classes are put into other orders.

        `orders[number][i]` is the channel of that class, by its place in `channels`, that stands at place i afterwards.
        Of each move: axes of the stored tensor, and for every index over these axes, in their order, the index from
        which its numbers come. Several moves of one tensor are made one after the other, in any order.
        """
        new: dict[int, int] = {}
        for one in self.classes:
            if one.number in orders:
                new.update(zip(one.channels.tolist(), one.channels[orders[one.number]].tolist()))
        moves: dict[StoredTensor, list[tuple[Axes, Array]]] = {}
        for member in self.members:
            order = order_of(member.labels, new)
            if order is not None:
                moves.setdefault(member.tensor, []).append((member.axes, order))
        return moves


def order_of(labels: Array, new: Mapping[int, int]) -> Array | None:
    """For each index over the axes of a member the one that its numbers come from; None where nothing moves.

    Where a channel has several copies, such as the pixels that Flatten put on its axis, they keep their order. What
    depends on other axes moves within each of their indices.
    """
    roots, places = np.unique(labels, return_inverse=True)
    wanted = np.array([new.get(int(root), int(root)) for root in roots], np.int64)
    if np.array_equal(roots, wanted):
        return None
    rows = labels.reshape(-1, labels.shape[-1])
    target = wanted[places.reshape(-1)].reshape(rows.shape)
    base = np.arange(rows.shape[0])[:, None] * (int(roots.max()) + 1)
    have, want = (rows + base).reshape(-1), (target + base).reshape(-1)
    have_order = np.lexsort((occurrences(have), have))
    want_order = np.lexsort((occurrences(want), want))
    if not np.array_equal(have[have_order], want[want_order]):
        raise AssertionError("a permutation took a channel to where it is not")
    order = np.empty(have.size, np.int64)
    order[want_order] = have_order
    return order


def analyse(model: Model, shapes: Mapping[str, Sequence[int]] | None = None) -> Channels:
    """The channel classes of an opened model; `shapes` are those of its inputs where the file leaves sizes open."""
    walk = Walk(table(), _opset(model.proto), _twins(model))
    outputs, scope = walk.graph(bare_copy(model, shapes or {}).graph)
    for output in outputs:
        walk.freeze(output, "it is an output of the model")
    return replace(_classes(model, walk), values={name: _fields(walk, one) for name, one in scope.names.items()})


def _fields(walk: Walk, tensor: Tensor) -> tuple[Field, ...]:
    """The channels along the axes of a value, those of stored tensors that it is a view of included."""
    found = [Field(own.axes, walk.labels.find(own.labels)) for own in tensor.fields]
    for view in tensor.views:
        places = {axis: at for at, axis in enumerate(view.axes) if axis is not None}
        for own in walk.stored[view.tag].fields.values():
            if all(axis in places for axis in own.axes):
                found.append(Field(own.axes, walk.labels.find(own.labels)).moved(places))
    return tuple(found)


def _twins(model: Model) -> dict[str, str]:
    """Of several names for the same bytes of a data file, the tag of the first."""
    stores = model.flow.stores
    return {stores.homes[one].tag: stores.homes[twins[0]].tag for twins in stores.twins() for one in twins}


def _opset(proto: ModelProto) -> int:
    return max((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), default=0)


def _classes(model: Model, walk: Walk) -> Channels:
    homes, names = model.flow.stores.homes, keys(model.flow.stores)
    by_tag = {home.tag: tensor for tensor, home in homes.items()}
    owned = [
        (by_tag[tag], own) for tag, stored in walk.stored.items() for own in stored.fields.values() if tag in by_tag
    ]
    labels = walk.labels
    for stored in walk.stored.values():
        _keep_rows_alike(labels, list(stored.fields.values()))
    for tensor, own in owned:
        if not tensor.readable:
            labels.freeze(own.labels, f"its numbers cannot be read: {tensor.problem or tensor.kind}")
    members = []
    for tensor, own in owned:
        title, name = names.get(tensor, ("", tensor.name))
        members.append(Member(tensor, f"{title}/{name}" if title else name, own.axes, labels.find(own.labels)))
    reasons = labels.frozen()
    return Channels(tuple(members), tuple(_grouped(labels, members, reasons)), reasons)


def _keep_rows_alike(labels: Labels, fields: Sequence[Field]) -> None:
    """Rows may change places only with rows that have the same channels along the others' axes."""
    for own in fields:
        for axis in own.axes[:-1]:
            rows = next((one for one in fields if one.axes[-1] == axis), None)
            if rows is None:
                continue
            if len(rows.axes) > 1:
                labels.freeze(rows.labels, "its numbers would move along two axes that depend on each other")
                continue
            content = np.moveaxis(labels.find(own.labels), own.axes.index(axis), 0).reshape(len(rows.labels), -1)
            _, alike = np.unique(content, axis=0, return_inverse=True)
            for number in np.unique(alike):
                labels.close(rows.labels[alike.reshape(-1) == number])


def _grouped(labels: Labels, members: Sequence[Member], reasons: Mapping[int, str]) -> list[ChannelClass]:
    """Channels of stored tensors with equal signatures, at least two of them."""
    signatures = labels.signatures()
    channels = np.unique(np.concatenate([member.labels.reshape(-1) for member in members] or [np.empty(0, np.int64)]))
    free = channels[~np.isin(channels, np.fromiter(reasons, np.int64, len(reasons)))]
    _, first, which, counts = np.unique(signatures[free], return_index=True, return_inverse=True, return_counts=True)
    ranks = np.argsort(np.argsort(first))[which.reshape(-1)]
    order = np.argsort(ranks, kind="stable")
    sizes = counts[np.argsort(first)]
    found = [own for own in np.split(free[order], np.cumsum(sizes)[:-1]) if len(own) > 1]
    held = _members_of(members, found)
    return [ChannelClass(at, own, tuple(members[one] for one in held[at])) for at, own in enumerate(found)]


def _members_of(members: Sequence[Member], found: Sequence[Array]) -> list[list[int]]:
    """For each class the numbers of the members that hold channels of it."""
    channels = np.concatenate([*found, np.empty(0, np.int64)])
    numbers = np.repeat(np.arange(len(found)), [len(own) for own in found])
    order = np.argsort(channels)
    held: list[list[int]] = [[] for _ in found]
    for at, member in enumerate(members):
        own = np.unique(member.labels)
        places = np.searchsorted(channels, own, sorter=order)
        near = order[np.minimum(places, len(order) - 1)] if len(order) else places[:0]
        for number in np.unique(numbers[near[channels[near] == own[: len(near)]]]).tolist():
            held[number].append(at)
    return held


__all__ = ["ChannelClass", "Channels", "Member", "analyse", "order_of"]
