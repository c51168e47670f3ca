"""Labels of channels: a union-find over indices of axes, closed sets of them, and those that are frozen.

Every index of every axis that may move has a label, a number. The algebra:

    fresh(shape)         new labels
    unite(a, b)          the labels at the same places are one channel, and move together
    close(labels)        whatever moves, the same channels stand here afterwards: the numbers along the rows of a stored
                         tensor, the terms of a sum, the channels of a group
    freeze(labels, why)  these stay where they are

Two channels may change places where the same copies of both are in the same closed sets, and neither is frozen
(`signatures`). That alone decides: no rule knows of permutations, nor of removal.

A value may hold copies of a channel, such as the pixels that Flatten puts on its axis. The k-th copy of one changes
places with the k-th copy of the other, in every value: where a slice takes the first copy of one and the second of
another, these two stay. What is a copy is known only after the walk, when all that is one channel has been united.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from onnxsparse.math.values import Array

_MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class Labels:
    def __init__(self) -> None:
        self._parent: Array = np.arange(1024, dtype=np.int64)
        self._count = 0
        self._closed: list[tuple[Array, tuple[int, ...]]] = []
        self._frozen: list[tuple[Array, str]] = []
        self._taken: list[tuple[Array, Array]] = []

    def fresh(self, shape: Sequence[int]) -> Array:
        size = int(np.prod(shape, dtype=np.int64))
        first, self._count = self._count, self._count + size
        while len(self._parent) < self._count:
            self._parent = np.concatenate([self._parent, np.arange(len(self._parent), 2 * len(self._parent))])
        return np.arange(first, self._count, dtype=np.int64).reshape(shape)

    def find(self, labels: Array) -> Array:
        """The channel of each label: the smallest label of all that were united with it."""
        found = self._parent[labels]
        while True:
            above = self._parent[found]
            if np.array_equal(above, found):
                break
            found = above
        self._parent[labels.reshape(-1)] = found.reshape(-1)
        return found

    def unite(self, one: Array, other: Array) -> None:
        one, other = (part.reshape(-1) for part in np.broadcast_arrays(one, other))
        while True:
            left, right = self.find(one), self.find(other)
            apart = left != right
            if not apart.any():
                return
            low, high = np.minimum(left, right)[apart], np.maximum(left, right)[apart]
            np.minimum.at(self._parent, high, low)

    def close(self, labels: Array, along: Sequence[int] = ()) -> None:
        """The labels are a closed set; one for every index of the axes `along`, where these are given."""
        self._closed.append((labels, tuple(along)))

    def freeze(self, labels: Array, why: str) -> None:
        if labels.size:
            self._frozen.append((labels.reshape(-1), why))

    def frozen(self) -> dict[int, str]:
        """The channels that are frozen, each with the first reason."""
        found: dict[int, str] = {}
        for labels, why in self._frozen:
            for root in np.unique(self.find(labels)).tolist():
                found.setdefault(root, why)
        return found

    def keep_copies(self, labels: Array, places: Array) -> None:
        """Only these places of a value go on, in this order: of all that change places the same copies of each."""
        self._taken.append((labels.reshape(-1), places.reshape(-1)))

    def signatures(self) -> Array:
        """A number for every label, equal for channels of which the same copies are in the same closed sets."""
        found = np.zeros(self._count, np.uint64)
        sets = [self._sets(labels, along) for labels, along in self._closed if labels.size]
        if sets:
            sizes = np.concatenate([np.full(len(one), one.shape[1]) for one, _ in sets])
            members, keys = (np.concatenate([one[at].reshape(-1) for one in sets]) for at in (0, 1))
            places = np.repeat(np.arange(len(sizes)), sizes)
            contents = _sums(places, _mixed(_mixed(members) + keys), len(sizes))
            found += _sums(members, _mixed(contents[places] + keys), self._count)
        for number, (channels, kinds) in enumerate(self._copies()):
            found[channels] += _mixed(kinds + np.uint64(number))
        return found[self.find(np.arange(self._count))] if self._count else found

    def _sets(self, labels: Array, along: Sequence[int]) -> tuple[Array, Array]:
        """The channels in each closed set, and a number for the copy of each that is in it.

        Copies are told apart by their order along the whole array: a set may hold the first pixel of one channel and
        the second of another.
        """
        rest = [axis for axis in range(labels.ndim) if axis not in along]
        lead = int(np.prod([labels.shape[axis] for axis in along], dtype=np.int64))
        channels = self.find(labels)
        copies = occurrences(channels.reshape(-1)).reshape(labels.shape)
        rows, keys = (one.transpose([*along, *rest]).reshape(lead, -1) for one in (channels, _mixed(copies)))
        return rows, keys

    def _copies(self) -> Iterator[tuple[Array, Array]]:
        """Where some channels go on with other copies than others: the repeated ones, and a number for their copies."""
        for labels, places in self._taken:
            roots = self.find(labels)
            yield from _unlike(roots, roots[places], occurrences(roots)[places])


def _unlike(before: Array, after: Array, keys: Array) -> Iterator[tuple[Array, Array]]:
    """The channels that are repeated in `before`, and a number for their keys, in order; none if all have the same."""
    channels, counts = np.unique(before, return_counts=True)
    if len(channels) == len(before):
        return
    at = np.searchsorted(channels, after)
    kinds = _sums(at, _mixed(_mixed(occurrences(after)) + keys.astype(np.uint64)), len(channels))
    taken = np.zeros(len(channels), bool)
    taken[at] = True
    if len(np.unique(kinds[taken & (counts > 1)])) > 1:
        yield channels[counts > 1], kinds[counts > 1]


def _sums(places: Array, numbers: Array, size: int) -> Array:
    """The sum of all numbers with the same place."""
    found = np.zeros(size, np.uint64)
    np.add.at(found, places, numbers)
    return found


def _mixed(numbers: Array) -> Array:
    """A 64-bit hash of each number."""
    with np.errstate(over="ignore"):
        mixed = (numbers.astype(np.uint64) + np.uint64(1)) * _MIX[0]
        mixed ^= mixed >> np.uint64(31)
        mixed *= _MIX[1]
        mixed ^= mixed >> np.uint64(29)
        mixed *= _MIX[2]
        return np.asarray(mixed ^ (mixed >> np.uint64(32)))


def occurrences(labels: Array) -> Array:
    """For each place of a flat array, how many places before it have the same label."""
    order = np.argsort(labels, kind="stable")
    ranked = labels[order]
    starts = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]]) if len(ranked) else np.empty(0, np.int64)
    counts = np.arange(len(ranked)) - np.repeat(starts, np.diff(np.r_[starts, len(ranked)]))
    found = np.empty(len(labels), np.int64)
    found[order] = counts
    return found


__all__ = ["Labels", "occurrences"]
