"""Slow references: plain loops over index arrays and stable sorts. What is fast elsewhere must agree with these."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

Array = np.ndarray


def indices(shape: Sequence[int]) -> Array:
    """The flat index of every element, in the stored shape."""
    return np.arange(math.prod(shape)).reshape(shape)


def order_of_loss(scores: Array, candidates: Array) -> Array:
    """The candidates (flat indices) from first to last dropped: lower score first, then the earlier index."""
    candidates = np.sort(np.asarray(candidates).ravel())
    return candidates[np.argsort(scores.ravel()[candidates], kind="stable")]


def scores_of(real: Array) -> Array:
    """Magnitude; a negative zero is a zero."""
    return np.abs(np.asarray(real, dtype=np.float64))


def keep_n_of_m(scores: Array, rows: Array, n: int, m: int) -> Array:
    """`rows` holds flat indices as (rows, K). A tail shorter than m is kept."""
    keep = np.ones(scores.size, dtype=bool)
    for row in rows:
        for start in range(0, len(row) - m + 1, m):
            for lost in order_of_loss(scores, row[start : start + m])[: m - n]:
                keep[lost] = False
    return keep.reshape(scores.shape)


def ragged(rows: Array, m: int) -> int:
    """How many elements lie in no whole group."""
    return rows.shape[0] * (rows.shape[1] % m)


def groups(rows: Array, m: int) -> list[tuple[int, ...]]:
    """The groups as sorted tuples of flat indices: two uses with the same groups accept the same masks."""
    return sorted(
        tuple(sorted(int(i) for i in row[at : at + m])) for row in rows for at in range(0, len(row) - m + 1, m)
    )


def rounded_half_up(count: float) -> int:
    return math.floor(count + 0.5)


def keep_unstructured(scores: Array, sparsity: float) -> Array:
    keep = np.ones(scores.size, dtype=bool)
    keep[order_of_loss(scores, indices(scores.shape))[: rounded_half_up(sparsity * scores.size)]] = False
    return keep.reshape(scores.shape)


def keep_global(scores: Sequence[Array], sparsity: float) -> list[Array]:
    """Ranked over all tensors, the earlier tensor first among equals; the largest element of each (the last of
    equal ones) is no candidate."""
    entries = []
    for number, part in enumerate(scores):
        order = order_of_loss(part, indices(part.shape))
        entries += [(float(part.ravel()[i]), number, int(i)) for i in order[:-1]]
    entries.sort()
    keeps = [np.ones(part.size, dtype=bool) for part in scores]
    total = sum(part.size for part in scores)
    for _, number, i in entries[: rounded_half_up(sparsity * total)]:
        keeps[number][i] = False
    return [keep.reshape(part.shape) for keep, part in zip(keeps, scores)]


def blocks(view: Array, outs: int, along: int) -> Iterator[Array]:
    """Whole blocks of an index view (group, out, in, tap), as arrays of flat indices."""
    for group in range(view.shape[0]):
        for tap in range(view.shape[3]):
            for o in range(0, view.shape[1] - outs + 1, outs):
                for k in range(0, view.shape[2] - along + 1, along):
                    yield view[group, o : o + outs, k : k + along, tap].ravel()


def filters(view: Array) -> Iterator[Array]:
    for group in range(view.shape[0]):
        for o in range(view.shape[1]):
            yield view[group, o].ravel()


def channels(view: Array) -> Iterator[Array]:
    for group in range(view.shape[0]):
        for k in range(view.shape[2]):
            yield view[group, :, k].ravel()


def erk_densities(shapes: Sequence[Sequence[int]], sparsity: float) -> list[float]:
    """Erdős–Rényi-kernel: density ~ sum(dims) / prod(dims); layers that would pass 1 are dense, and again."""
    sizes = [math.prod(shape) for shape in shapes]
    raw = [sum(shape) / math.prod(shape) for shape in shapes]
    dense = [False] * len(shapes)
    while True:
        left = (1 - sparsity) * sum(sizes) - sum(s for s, d in zip(sizes, dense) if d)
        weight = sum(s * r for s, r, d in zip(sizes, raw, dense) if not d)
        factor = left / weight if weight else 0.0
        over = [not d and factor * r > 1 for r, d in zip(raw, dense)]
        if not any(over):
            return [1.0 if d else factor * r for r, d in zip(raw, dense)]
        dense = [d or o for d, o in zip(dense, over)]


def zeros(values: Array, zero: object = 0) -> int:
    return sum(
        1
        for value, blank in zip(values.ravel(), np.broadcast_to(np.asarray(zero), values.shape).ravel())
        if value == blank
    )


def breaks_n_of_m(blank: Array, rows: Array, n: int, m: int) -> list[tuple[int, int]]:
    """(row, group) of every whole group with more than n elements that are not blank."""
    flat = blank.ravel()
    found = []
    for number, row in enumerate(rows):
        for group in range(len(row) // m):
            if sum(1 for i in row[group * m : group * m + m] if not flat[i]) > n:
                found.append((number, group))
    return found


def affected_outputs(changes: Sequence[Array]) -> list[tuple[int, ...]]:
    """For outputs of one-hot weights: which result elements each weight element reaches."""
    return [tuple(int(i) for i in np.flatnonzero(change)) for change in changes]
