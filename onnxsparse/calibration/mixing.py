"""Samples made of samples: batches that look like the data, in any number, for a model that the dense one teaches.

1. A batch either blends two samples, a share of the one and the rest of the other, or splices them: a part of the one
   is put in its place in the other. They alternate; where an input holds no floats, batches are spliced.
2. A part is a stretch along every axis of some length. Axes of one length are cut alike in all inputs, so that a mask
   still fits the words that it is of.
3. What a step sees follows from the seed and its number alone. Inputs that all samples share stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from onnxsparse.math.values import Array

LEAST = 8
"""The length of an axis that is cut: channels of a picture, and the like, are not."""

Arrays = Mapping[str, Array]


def mixed(arrays: Arrays, own: Sequence[str], count: int, size: int, seed: int, step: int) -> dict[str, Array]:
    """The batch of a step, `size` samples made of `count`; `own` are the inputs of which each sample has its own."""
    draws = np.random.Generator(np.random.Philox(key=seed, counter=step))
    first, second = draws.integers(0, count, size), draws.integers(0, count, size)
    shares = draws.random(size)
    pairs = {name: (arrays[name][first], arrays[name][second]) for name in own}
    if step % 2 == 0 and all(one.dtype.kind == "f" for one, _ in pairs.values()):
        made = {name: _blended(*pair, shares) for name, pair in pairs.items()}
    else:
        made = _spliced(pairs, shares, draws)
    return {**arrays, **made}


def _blended(one: Array, other: Array, shares: Array) -> Array:
    weights = shares.reshape(-1, *(1,) * (one.ndim - 1)).astype(one.dtype)
    found: Array = weights * one + (1 - weights) * other
    return found


def _spliced(pairs: Mapping[str, tuple[Array, Array]], shares: Array, draws: np.random.Generator) -> dict[str, Array]:
    """Each sample with a part of its partner, about as large a one as its share says."""
    cut = {name: _axes(one.shape) for name, (one, _) in pairs.items()}
    keys = sorted({key for axes in cut.values() for key in axes.values()})
    most = max(map(len, cut.values()), default=1) or 1
    starts = {key: draws.random(len(shares)) for key in keys}
    made = {name: one.copy() for name, (one, _) in pairs.items()}
    for row, share in enumerate(shares ** (1 / most)):
        for name, (_, other) in pairs.items():
            part: list[slice] = [slice(None)] * (other.ndim - 1)
            for axis, key in cut[name].items():
                length = max(1, round(key[0] * float(share)))
                start = int(starts[key][row] * (key[0] - length + 1))
                part[axis] = slice(start, start + length)
            if cut[name]:
                made[name][row][tuple(part)] = other[row][tuple(part)]
    return made


def _axes(shape: Sequence[int]) -> dict[int, tuple[int, int]]:
    """The axes of one sample that are cut, each by its length and by how many of that length come before it."""
    found, seen = dict[int, tuple[int, int]](), dict[int, int]()
    for axis, length in enumerate(shape[1:]):
        if length >= LEAST:
            found[axis] = length, seen.get(length, 0)
            seen[length] = seen.get(length, 0) + 1
    return found


__all__ = ["mixed"]
