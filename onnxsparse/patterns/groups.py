"""Groups of M elements along the reduction axis, on flat blocks of memory.

In memory the members of a group lie `stride` lanes apart: lane i has position (i // stride) % M in its group. A block
holds whole groups, so all lanes are treated alike, whatever the layout, and no loop runs over groups:

    keep      compare lane i with lane i + d * stride for d = 1 .. M-1, where both are of one group; the loser of equals
              is the earlier one. A lane stays when it wins against at least M - N others.
    crowded   add up the non-zero lanes of each window of M; it is counted where a group starts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxsparse.math.values import Array

LARGEST_GROUP = 255
"""Wins and non-zeros are counted in bytes."""

WIDE = 32
"""Lanes between the members of a group, from which on rows of lanes are worth a loop of their own."""

_WORDS: dict[int, np.dtype[Any]] = {2: np.dtype(np.uint16), 4: np.dtype(np.uint32), 8: np.dtype(np.uint64)}


class Groups:
    """The work on blocks of groups, with the scratch arrays that it reuses."""

    def __init__(self, n: int, m: int) -> None:
        self.n, self.m = n, m
        self._layouts: dict[int, tuple[Array, list[Array]]] = {}
        self._limits: dict[int, Array] = {}

    def keep(self, keys: Array, stride: int) -> Array:
        """True in the lanes that stay; `keys` is flat and holds whole groups."""
        position, partners = self._layout(keys.size, stride)
        wins = position[: keys.size].copy()  # as if each lane had won against all earlier ones of its group
        larger = np.empty(keys.size, bool)
        for distance in range(1, self.m):
            _compare(keys, distance * stride, partners[distance], wins, larger)
        return np.greater_equal(wins, self.m - self.n, out=larger)

    def crowded(self, used: Array, stride: int) -> Array:
        """True for groups that use more than N lanes; `first_lanes` knows which lane an entry stands for."""
        if self._in_words(stride):
            return self._crowded_words(used)
        if stride >= WIDE:
            return self._crowded_rows(used, stride)
        counts = window_sums(used.view(np.uint8), self.m, stride)
        crowded: Array = counts > self._limit(counts.size, stride)
        return crowded

    def first_lanes(self, crowded: Array, stride: int, most: int) -> list[int]:
        """The first lane of each of the first few crowded groups."""
        found = np.flatnonzero(crowded)[:most]
        if self._in_words(stride):
            found = found * self.m
        elif stride >= WIDE:
            found = found // stride * (self.m * stride) + found % stride
        return [int(entry) for entry in found]

    def _in_words(self, stride: int) -> bool:
        return stride == 1 and self.m in _WORDS

    def _crowded_words(self, used: Array) -> Array:
        """The same where a group is a machine word of bytes: one entry for each group, instead of one for each lane."""
        word = _WORDS[self.m]
        ones = word.type(int.from_bytes(b"\x01" * self.m, "big"))
        # The product's highest byte is the sum of all bytes, on machines of either byte order.
        counts = used.view(word) * ones
        crowded: Array = counts >= word.type((self.n + 1) << (8 * self.m - 8))
        return crowded

    def _crowded_rows(self, used: Array, stride: int) -> Array:
        """The same where the members of a group lie far apart: one entry for each group, from whole rows of lanes."""
        members = used.view(np.uint8).reshape(-1, self.m, stride)
        counts = members[:, 0] + members[:, 1]
        for member in range(2, self.m):
            np.add(counts, members[:, member], out=counts)
        crowded: Array = counts.reshape(-1) > self.n
        return crowded

    def _limit(self, lanes: int, stride: int) -> Array:
        """N in the lanes where a group starts, and what no sum is above in all others."""
        known = self._limits.get(stride)
        if known is None or known.size < lanes:
            starts = np.arange(lanes, dtype=np.intp) // stride % self.m == 0
            known = self._limits[stride] = np.where(starts, np.uint8(self.n), np.uint8(LARGEST_GROUP))
        return known[:lanes]

    def _layout(self, lanes: int, stride: int) -> tuple[Array, list[Array]]:
        """The position of every lane in its group, and for every distance whether it has a partner so far on."""
        known = self._layouts.get(stride)
        if known is None or known[0].size < lanes:
            groups = -(-lanes // (self.m * stride))
            whole = np.empty((groups, self.m, stride), np.uint8)
            whole[...] = np.arange(self.m, dtype=np.uint8)[:, np.newaxis]
            position = whole.reshape(-1)[:lanes]
            known = position, [position < self.m - distance for distance in range(self.m)]
            self._layouts[stride] = known
        return known


def _compare(keys: Array, shift: int, partners: Array, wins: Array, larger: Array) -> None:
    """Every pair of lanes, `shift` apart: move the point, given to the later one, to the earlier if that is larger."""
    earlier = keys.size - shift
    beats = larger[:earlier]
    np.greater(keys[:earlier], keys[shift:], out=beats)
    np.logical_and(beats, partners[:earlier], out=beats)
    points = beats.view(np.uint8)
    np.add(wins[:earlier], points, out=wins[:earlier])
    np.subtract(wins[shift:], points, out=wins[shift:])


def window_sums(lanes: Array, width: int, stride: int) -> Array:
    """The sum of `width` lanes, `stride` apart, from every lane on that has so many after it."""
    if width == 1:
        return lanes
    half, shift = window_sums(lanes, width // 2, stride), width // 2 * stride
    even: Array = half[:-shift] + half[shift:]
    if width % 2 == 0:
        return even
    odd: Array = even[:-stride] + lanes[(width - 1) * stride :]
    return odd
