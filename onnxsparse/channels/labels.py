"""Labels of channels: a union-find over indices of axes, closed sets of them, and those that are frozen.

Every index of every axis that may move has a label, a number. The algebra:

    fresh(shape)         new labels
    unite(a, b)          the labels at the same places are one channel, and move together
    close(labels)        whatever moves, the same channels stand here afterwards: the numbers along the rows of a stored
                         tensor, the terms of a sum, the channels of a group
    freeze(labels, why)  these stay where they are

Two channels may change places where the same copies of both are in the same closed sets, and neither is frozen
(`signatures`). That alone decides: no rule knows of permutations, nor of removal.
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

    def signatures(self) -> Array:
        """A number for every label, equal for channels of which the same copies are in the same closed sets."""
        found = np.zeros(self._count, np.uint64)
        seen: set[bytes] = set()
        for labels, along in self._closed:
            for roots, copies in self._sets(labels, along):
                content = roots.tobytes() + copies.tobytes()
                if content not in seen:
                    seen.add(content)
                    found[roots] += _mixed(np.uint64(len(seen)), copies)
        return found[self.find(np.arange(self._count))] if self._count else found

    def _sets(self, labels: Array, along: Sequence[int]) -> Iterator[tuple[Array, Array]]:
        """The channels in each closed set, and a number that says which of their copies are in it.

        Where a channel has several copies, such as the pixels that Flatten put on its axis, they are told apart by
        their order along the whole array: a set may hold the first pixel of one channel and the second of another.
        """
        rest = [axis for axis in range(labels.ndim) if axis not in along]
        lead = int(np.prod([labels.shape[axis] for axis in along], dtype=np.int64))
        channels = self.find(labels)
        copies = occurrences(channels.reshape(-1)).reshape(labels.shape)
        rows, of_rows = (one.transpose([*along, *rest]).reshape(lead, -1) for one in (channels, copies))
        for row, taken in zip(rows, of_rows):
            roots, places = np.unique(row, return_inverse=True)
            numbers = np.zeros(len(roots), np.uint64)
            np.add.at(numbers, places.reshape(-1), _mixed(np.uint64(1), taken.astype(np.uint64)))
            yield roots, numbers


def _mixed(number: np.uint64, counts: Array) -> Array:
    """A 64-bit hash of a set's number and how often a channel is in it."""
    with np.errstate(over="ignore"):
        mixed = (counts + number * _MIX[0]) * _MIX[1]
        mixed ^= mixed >> np.uint64(31)
        mixed *= _MIX[2]
        return np.asarray(mixed ^ (mixed >> np.uint64(29)))


def occurrences(labels: Array) -> Array:
    """For each place of a flat array, how many places before it have the same label."""
    order = np.argsort(labels, kind="stable")
    ranked = labels[order]
    starts = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]]) if len(ranked) else np.empty(0, np.int64)
    counts = np.arange(len(ranked)) - np.repeat(starts, np.diff(np.r_[starts, len(ranked)]))
    found = np.empty(len(labels), np.int64)
    found[order] = counts
    return found


def runs(labels: Array) -> Iterator[tuple[int, Array]]:
    """Each label of a flat array, with its places in order."""
    order = np.argsort(labels, kind="stable")
    values, starts = np.unique(labels[order], return_index=True)
    yield from zip(values.tolist(), np.split(order, starts[1:]))


__all__ = ["Labels", "occurrences", "runs"]
