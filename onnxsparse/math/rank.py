"""Top-k selection: the exact k smallest keys of one or many streams, without sorting and in bounded memory.

Keys are unsigned integers or floats >= 0, whose bits have the same order. A stream is a function that starts anew on
each call. Among equal keys the earlier go first: earlier stream, then earlier position.

    1. A strided sample of at most SAMPLE keys gives a bracket (low, high) around the key of rank k.
    2. One pass counts the keys below, at and above its ends, and collects the few between them, where k is looked up.
    3. Should the sample mislead, the range that holds rank k is cut by 2**12 with each further pass.

The result never depends on the sample; only the number of passes does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onnxsparse.math.values import BLOCK, Array

Stream = Callable[[], Iterable[Array]]

SAMPLE = 1 << 16
MOST_COLLECTED = 1 << 25
BIN_BITS = 12
WORD = 8
RARE = 4
"""Among so many words of mask, one that holds a chosen key is rare."""
NORMAL = {np.dtype(np.float32): range(1 << 23, 0xFF << 23), np.dtype(np.float64): range(1 << 52, 0x7FF << 52)}
"""The bits of the floats that are neither infinite nor so small that a processor may take them for 0."""
SPREAD = 4
"""Standard deviations of the sample that the bracket reaches to each side."""


@dataclass(frozen=True)
class Cut:
    """Where the k smallest end: at a key (its bits). Per stream: how many are smaller, and how many equal ones go."""

    key: int
    below: tuple[int, ...]
    ties: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """How many of each stream are among the k smallest."""
        return tuple(below + ties for below, ties in zip(self.below, self.ties))


@dataclass(frozen=True)
class Sample:
    """Keys from all over the streams, for streams where even a look at all of them costs; and how many keys there are.

    `run` is how many keys in a row are neighbours in their stream: as those are alike, the sample says less.
    """

    keys: Array
    total: int
    run: int = 1


@dataclass(frozen=True)
class _Range:
    """Keys from low to high, both included, as integers."""

    low: int
    high: int


@dataclass
class _Tally:
    """How many keys of a stream lie below a range, at its ends and between them; those between, while they are few."""

    below: int = 0
    at_low: int = 0
    between: int = 0
    at_high: int = 0
    collected: list[Array] = field(default_factory=list)


def threshold(stream: Stream, count: int, sampled: Sample | None = None) -> tuple[int, int, int]:
    """The key at which the `count` smallest of a stream end, how many keys are smaller, and how many equal ones go."""
    found = cut([stream], count, sampled)
    return found.key, found.below[0], found.ties[0]


def cut(streams: Sequence[Stream], count: int, sampled: Sample | None = None) -> Cut:
    """Where the `count` smallest keys of all streams together end."""
    given = sampled or _sample(streams)
    if count <= 0 or given.total == 0:
        return Cut(0, (0,) * len(streams), (0,) * len(streams))
    count, largest = min(count, given.total), int(np.iinfo(_bits(given.keys).dtype).max)
    pieces = [_in_pieces(stream, given.keys.dtype) for stream in streams]
    return _cut_by_bracket(pieces, count, _bracket(given, count, largest), largest)


def kept(chunks: Iterable[Array], key: int, ties: int) -> Iterator[Array]:
    """For each chunk of a stream, True where a key stays: larger than the cut, or equal but after `ties` equal ones."""
    for chunk in chunks:
        keep, ties = kept_of(chunk, key, ties)
        yield keep


def kept_of(chunk: Array, key: int, ties: int) -> tuple[Array, int]:
    """The same for one chunk, and how many equal keys have yet to go."""
    keys, (at,) = _comparable(chunk, key)
    smaller: Array = keys < at
    keep = np.logical_not(smaller, out=smaller)
    if ties == 0:
        return keep, 0
    equal = keys == at
    found = int(np.count_nonzero(equal))
    if found > ties:
        keep[np.flatnonzero(equal)[:ties]] = False
    elif found:
        np.greater(keep, equal, out=keep)
    return keep, ties - min(ties, found)


def smallest(keys: Array, count: int) -> Array:
    """True at the `count` smallest of a 1-D array."""
    key, _, ties = threshold(lambda: (keys,), count)
    return ~next(kept((keys,), key, ties))


def runs(size: int, length: int, stride: int) -> Iterator[tuple[int, int]]:
    """Where the runs of a sample lie: one in each stride, and not all in the same columns of a matrix."""
    for index, at in enumerate(range(0, size, stride)):
        room = min(stride, size - at) - length
        start = at + index * 2654435761 % (room + 1) if room > 0 else at
        yield start, min(start + length, size)


def _bits(keys: Array) -> Array:
    return keys if keys.dtype.kind == "u" else keys.view(f"u{keys.itemsize}")


def _comparable(keys: Array, *ends: int) -> tuple[Array, list[Any]]:
    """Keys and some ends, given as bits, in the type that compares fastest.

    Floats are twice as fast as their bits and, among normal numbers, in the same order.
    """
    bits = _bits(keys)
    if keys.dtype in NORMAL and all(end in NORMAL[keys.dtype] for end in ends):
        return keys, [bits.dtype.type(end).view(keys.dtype) for end in ends]
    return bits, [bits.dtype.type(end) for end in ends]


def _in_pieces(stream: Stream, dtype: np.dtype[Any]) -> Stream:
    """A stream in pieces that fit the cache; floats of several types are compared in the widest."""

    def pieces() -> Iterator[Array]:
        for chunk in stream():
            for start in range(0, chunk.size, BLOCK):
                yield chunk[start : start + BLOCK].astype(dtype, copy=False)

    return pieces


def _sample(streams: Sequence[Stream]) -> Sample:
    """Every so-manieth key, and how many keys there are."""
    picked: list[Array] = []
    stride, seen, size = 1, 0, 0
    for chunk in (chunk for stream in streams for chunk in stream()):
        picked.append(chunk[-seen % stride :: stride].copy())
        seen, size = seen + chunk.size, size + picked[-1].size
        while size > SAMPLE:
            picked, stride = [np.concatenate(picked)[::2]], stride * 2
            size = picked[0].size
    return Sample(np.concatenate(picked or [np.zeros(0, np.uint32)]), seen)


def _bracket(given: Sample, count: int, largest: int) -> _Range:
    """Two keys of the sample, several standard deviations to each side of rank `count`."""
    bits, share = _bits(given.keys), count / given.total
    ordered, middle = np.sort(bits), share * bits.size
    margin = 0.0
    if bits.size < given.total:
        margin = SPREAD * (_deviation(bits, ordered[math.ceil(middle) - 1], share, given.run) + 1)
    first, last = math.ceil(middle - margin) - 1, math.ceil(middle + margin) - 1
    return _Range(int(ordered[first]) if first >= 0 else 0, int(ordered[last]) if last < bits.size else largest)


def _deviation(bits: Array, middle: Any, share: float, run: int) -> float:
    """The standard deviation of how many keys of the sample are at most `middle`: by how much the next run differs."""
    alone = math.sqrt(bits.size * share * (1 - share))
    if run == 1:
        return alone
    runs = bits[: bits.size - bits.size % run].reshape(-1, run)
    steps = np.diff(np.count_nonzero(runs <= middle, axis=1))
    return max(alone, math.sqrt(int(np.square(steps).sum()) / 2))


def _cut_by_bracket(streams: Sequence[Stream], count: int, bracket: _Range, largest: int) -> Cut:
    tallies = _look(streams, bracket)
    lower, upper = [tally.below for tally in tallies], [tally.below + tally.at_low for tally in tallies]
    if count <= sum(lower):
        return _cut_by_bins(streams, count, _Range(0, bracket.low - 1), [0] * len(streams))
    if count <= sum(upper):
        return _finished(bracket.low, lower, [tally.at_low for tally in tallies], count)
    lower, upper = upper, [below + tally.between for below, tally in zip(upper, tallies)]
    if count <= sum(upper):
        if any(tally.between and not tally.collected for tally in tallies):
            return _cut_by_bins(streams, count, _Range(bracket.low + 1, bracket.high - 1), lower)
        return _cut_collected([tally.collected for tally in tallies], count, lower)
    lower, upper = upper, [below + tally.at_high for below, tally in zip(upper, tallies)]
    if count <= sum(upper):
        return _finished(bracket.high, lower, [tally.at_high for tally in tallies], count)
    return _cut_by_bins(streams, count, _Range(bracket.high + 1, largest), upper)


def _look(streams: Sequence[Stream], bracket: _Range) -> list[_Tally]:
    """Count every stream; what is collected is dropped, all of it, when it becomes too much."""
    tallies, room = [_Tally() for _ in streams], MOST_COLLECTED
    for tally, keys in ((tally, keys) for tally, stream in zip(tallies, streams) for keys in stream()):
        between = _count_around(tally, keys, bracket)
        room -= between.size
        if room >= 0:
            tally.collected.append(between)
    if room < 0:
        for tally in tallies:
            tally.collected.clear()
    return tallies


def _count_around(tally: _Tally, keys: Array, bracket: _Range) -> Array:
    """Add a piece to the tally; return the bits of its keys strictly between the ends."""
    keys, (low, high) = _comparable(keys, bracket.low, bracket.high)
    inside, below = keys <= high, keys < low
    missed = int(np.count_nonzero(below))
    closed = _few(keys, np.not_equal(inside, below, out=inside))
    if closed is None:
        return _count_ties(tally, keys, low, high)
    at_low = int(np.count_nonzero(closed == low))
    at_high = int(np.count_nonzero(closed == high)) if low < high else 0
    between: Array = closed[(closed > low) & (closed < high)] if at_low or at_high else closed
    tally.below += missed
    tally.at_low += at_low
    tally.at_high += at_high
    tally.between += between.size
    return _bits(between)


def _few(keys: Array, chosen: Array) -> Array | None:
    """The chosen keys, found by words of the mask; None where they are not few."""
    whole = keys.size - keys.size % WORD
    words = np.flatnonzero(chosen[:whole].view(np.uint64) != 0)
    if words.size * WORD * RARE > keys.size:
        return None
    around, mask = (part[:whole].reshape(-1, WORD).take(words, axis=0) for part in (keys, chosen))
    return np.concatenate([around[mask], keys[whole:][chosen[whole:]]])


def _count_ties(tally: _Tally, keys: Array, low: Any, high: Any) -> Array:
    """The same where many keys may equal one of the ends: those are counted, never collected."""
    to_low = keys <= low
    below, reached = int(np.count_nonzero(keys < low)), int(np.count_nonzero(to_low))
    tally.below += below
    tally.at_low += reached - below
    if low == high:
        return _bits(keys[:0])
    before_high = keys < high
    tally.at_high += int(np.count_nonzero(keys <= high)) - int(np.count_nonzero(before_high))
    between = _bits(keys[np.not_equal(before_high, to_low, out=before_high)])
    tally.between += between.size
    return between


def _cut_collected(collected: list[list[Array]], count: int, below: list[int]) -> Cut:
    parts = [np.concatenate(pieces) if pieces else None for pieces in collected]
    everything = np.concatenate([part for part in parts if part is not None])
    place = count - sum(below) - 1
    key = np.partition(everything, place)[place]
    smaller = [0 if part is None else int(np.count_nonzero(part < key)) for part in parts]
    equal = [0 if part is None else int(np.count_nonzero(part == key)) for part in parts]
    return _finished(int(key), [a + b for a, b in zip(below, smaller)], equal, count)


def _cut_by_bins(streams: Sequence[Stream], count: int, within: _Range, below: list[int]) -> Cut:
    """Cut the range that holds rank `count`, below which each stream has a known number of keys, until it is a key."""
    while True:
        shift = max(0, (within.high - within.low).bit_length() - BIN_BITS)
        bins = np.stack([_binned(stream, within, shift) for stream in streams])
        reached = np.cumsum(bins.sum(axis=0))
        place = int(np.searchsorted(reached, count - sum(below)))
        below = [known + int(more) for known, more in zip(below, bins[:, :place].sum(axis=1))]
        low = within.low + (place << shift)
        if shift == 0:
            return _finished(low, below, [int(found) for found in bins[:, place]], count)
        within = _Range(low, min(within.high, low + (1 << shift) - 1))


def _binned(stream: Stream, within: _Range, shift: int) -> Array:
    bins = np.zeros(1 << BIN_BITS, np.int64)
    for bits in map(_bits, stream()):
        low, high = bits.dtype.type(within.low), bits.dtype.type(within.high)
        inside = bits[(bits >= low) & (bits <= high)] - low
        bins += np.bincount((inside >> bits.dtype.type(shift)).astype(np.intp), minlength=bins.size)
    return bins


def _finished(key: int, below: list[int], equal: list[int], count: int) -> Cut:
    """Share the ties: the earlier stream first."""
    left, ties = count - sum(below), []
    for found in equal:
        ties.append(min(left, found))
        left -= ties[-1]
    return Cut(key, tuple(below), tuple(ties))
