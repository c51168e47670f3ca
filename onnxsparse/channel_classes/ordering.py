"""The order of the channels of each class that keeps most of the weights' scores under an N:M pattern.

1. A reader is a weight that is to be pruned along its reduction. Its groups of M lie along the reduction of each row;
   the channels of a class stand at some of the places there, once or in several copies.
2. All rows in which the places fall into groups in the same way are searched together. Where readers of one class see
   other groups, such as behind a Concat that is no multiple of M long, those with most scores decide, and the result is
   taken only where it is better for all of them together.
3. Columns in the same groups that belong to no channel of the class count, and stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from onnxsparse import progress
from onnxsparse.channel_classes.classes import ChannelClass, Channels, Member, order_of
from onnxsparse.graph.storage import StoredTensor
from onnxsparse.graph.weights import Use
from onnxsparse.math.values import Array
from onnxsparse.permutation_search import kept_score, search_columns

ROUNDING = 1e-9
"""Sums in another order differ by less: whole groups that change places gain nothing."""


@dataclass(frozen=True, eq=False)
class Reader:
    """A weight that is to have N of each M along its reduction, and its scores as (group, out, reduce, tap)."""

    tensor: StoredTensor
    use: Use
    n: int
    m: int
    scores: Callable[[], Array]


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows in which the channels of a class stand at the same places: one reader, group and copy."""

    scores: Array
    """(rows, places of the class and of what stands in the same groups)"""
    groups: Array
    movable: Array
    n: int
    m: int

    @property
    def key(self) -> tuple[bytes, bytes, int, int]:
        return self.groups.tobytes(), self.movable.tobytes(), self.n, self.m

    def kept(self, order: Array | None) -> float:
        whole = None if order is None else np.r_[order, np.arange(len(order), len(self.groups))]
        return kept_score(self.scores, self.n, self.m, whole, self.groups)


def best_orders(
    channels: Channels, readers: Sequence[Reader], effort: str = "quick", seed: int = 0
) -> dict[int, Array]:
    """The orders of the classes by which something is gained, by number."""
    orders: dict[int, Array] = {}
    new: dict[int, int] = {}
    done = progress.Counter("search", len(channels.classes))
    for one in channels.classes:
        done.add(1)
        parts = [part for reader in readers for part in _rows_of(one, reader, channels.by_tensor, new)]
        if not parts:
            continue
        order = _searched(parts, one.size, effort, seed)
        before, after = sum(part.kept(None) for part in parts), sum(part.kept(order) for part in parts)
        if after > before * (1 + ROUNDING):
            orders[one.number] = order
            new.update(zip(one.channels.tolist(), one.channels[order].tolist()))
    return orders


def _searched(parts: Sequence[_Rows], size: int, effort: str, seed: int) -> Array:
    """The order that the rows with most scores, of those that agree on the groups, would have."""
    alike: dict[object, list[_Rows]] = {}
    for part in parts:
        alike.setdefault(part.key, []).append(part)
    weight = {key: sum(float(part.scores.sum(dtype=np.float64)) for part in some) for key, some in alike.items()}
    some = alike[max(weight, key=lambda key: weight[key])]
    rows = some[0].scores if len(some) == 1 else np.concatenate([part.scores for part in some])
    first = some[0]
    order = search_columns(rows, first.n, first.m, effort=effort, seed=seed, groups=first.groups, movable=first.movable)
    return order[:size]


def _rows_of(
    one: ChannelClass, reader: Reader, members: Mapping[StoredTensor, list[Member]], new: Mapping[int, int]
) -> list[_Rows]:
    """The rows of a reader that meet a class, as they are after the classes before it were put in order."""
    if not any(member.tensor is reader.tensor for member in one.members):
        return []
    labels = reduction_labels(reader, members.get(reader.tensor, []))
    if labels is None or not np.isin(labels, one.channels).any():
        return []
    scores = reader.scores()
    found = []
    for group, own in enumerate(labels):
        inside = np.isin(own, one.channels)
        if inside.any():
            moved = order_of(own, new)
            rows = scores[group].transpose(0, 2, 1).reshape(-1, len(own))
            rows = rows if moved is None else rows[:, moved]
            found += _copies(one, own, inside, rows, reader)
    return found


def _copies(one: ChannelClass, own: Array, inside: Array, rows: Array, reader: Reader) -> list[_Rows]:
    """One set of rows for each copy of the channels: every channel of the class once, and what shares its groups."""
    places = np.flatnonzero(inside)
    slots = np.searchsorted(one.channels, own[places])
    by_slot = places[np.argsort(slots, kind="stable")]
    copies, rest = divmod(len(places), one.size)
    if rest or (np.bincount(slots, minlength=one.size) != copies).any():
        return []
    grid = by_slot.reshape(one.size, copies)
    found = []
    for copy in range(copies):
        at = grid[:, copy]
        beside = np.flatnonzero(np.isin(np.arange(len(own)) // reader.m, at // reader.m))
        beside = beside[~np.isin(beside, at)]
        columns = np.r_[at, beside]
        groups = np.unique(columns // reader.m, return_inverse=True)[1].reshape(-1)
        movable = np.arange(len(columns)) < one.size
        found.append(_Rows(np.ascontiguousarray(rows[:, columns]), _named(groups), movable, reader.n, reader.m))
    return found


def _named(groups: Array) -> Array:
    """Group numbers in the order in which they are met, so that equal partitions look the same."""
    values, first, which = np.unique(groups, return_index=True, return_inverse=True)
    rank = np.empty(len(values), np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(values))
    return rank[which.reshape(-1)]


def reduction_labels(reader: Reader, members: Sequence[Member]) -> Array | None:
    """The channel at each place of the reduction, for each group of a weight; None where nothing moves along it."""
    axes = reader.use.stored_axes(reader.use.runs[2])
    own = [member for member in members if member.axes[-1] in axes]
    if not own:
        return None
    member = max(own, key=lambda one: one.axes[-1])
    order = sorted(range(len(member.axes)), key=member.axes.__getitem__)
    shape = [size if axis in member.axes else 1 for axis, size in enumerate(reader.tensor.shape)]
    spread = np.broadcast_to(member.labels.transpose(order).reshape(shape), reader.tensor.shape)
    found = reader.use.matrix(np.ascontiguousarray(spread).reshape(-1))
    first = found[:, :1, :, :1]
    return np.ascontiguousarray(first[:, 0, :, 0]) if (found == first).all() else None


__all__ = ["Reader", "best_orders", "reduction_labels"]
