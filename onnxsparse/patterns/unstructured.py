"""Unstructured sparsity: any element may be zero, or any that leaves no output empty."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse.math import rank
from onnxsparse.math.values import Array, Values, erase_block, storage_axes, stored_order
from onnxsparse.patterns.pattern import Index, Pattern, RankedBlocks, Shape4, Violations
from onnxsparse.scores import Score


@dataclass(frozen=True)
class Unstructured(Pattern):
    """Any element may be zero; exactly floor(sparsity * elements + 0.5) are."""

    name: ClassVar[str] = "unstructured"

    @property
    def text(self) -> str:
        return "unstructured"

    def units(self, shape: Shape4) -> int:
        return int(np.prod(shape, dtype=np.int64))

    def unit_size(self, shape: Shape4) -> int:
        return 1

    def unit_scores(self, values: Values, score: Score) -> Array:
        return stored_order(score.value(values)).reshape(-1)

    def unit_chunks(self, values: Values, score: Score) -> Iterator[Array]:
        if not score.elementwise:
            yield self.unit_scores(values, score)
            return
        for block in values.blocks():
            yield self.unit_scores(block, score)

    def select(self, values: Values, score: Score, drop: int) -> Array:
        mask = np.empty_like(values.stored, dtype=bool)
        for index, keep in self._kept(values, score, drop):
            mask[index] = keep
        return mask

    def prune(self, values: Values, score: Score, drop: int, out: Array) -> None:
        for index, keep in self._kept(values, score, drop):
            erase_block(values[index], keep, out[index])

    def violations(self, zero: Array, drop: int) -> Violations:
        return Violations(self.missing(int(np.count_nonzero(zero)), drop), (), zero.size)

    def check(self, values: Values, drop: int) -> Violations:
        zeros = sum(int(np.count_nonzero(block.is_zero())) for block in values.blocks())
        return Violations(self.missing(zeros, drop), (), values.stored.size)

    def missing(self, zeros: int, drop: int) -> int:
        """How many zeros there are too few."""
        return max(0, drop - zeros)

    def _kept(self, values: Values, score: Score, drop: int) -> Iterator[tuple[Index, Array]]:
        """Pieces, each with its mask."""
        blocks = RankedBlocks(values, score)
        key, _, ties = rank.threshold(blocks.ranks, drop)
        for index, keep in zip(blocks.indices(), rank.kept(blocks.ranks(), key, ties)):
            yield index, blocks.unflatten(keep, index)


# Unstructured zeros that leave no output empty.
#
# 1. The largest element of every output, by score, is no candidate; among equals the last in stored order.
# 2. Of all others the smallest go, wherever they are: exactly floor(sparsity * elements + 0.5), or all of them.
# What it does not do: repair an output that was zero before. Its largest element is kept, and is zero.


@dataclass(frozen=True)
class Alive(Pattern):
    """Any element may be zero, but every output keeps its largest."""

    name: ClassVar[str] = "alive"

    @property
    def text(self) -> str:
        return "alive"

    def units(self, shape: Shape4) -> int:
        return math.prod(shape)

    def unit_size(self, shape: Shape4) -> int:
        return 1

    def drop_count(self, shape: Shape4, sparsity: float | None) -> int:
        outputs = shape[0] * shape[1] if math.prod(shape) else 0
        return min(super().drop_count(shape, sparsity), math.prod(shape) - outputs)

    def unit_scores(self, values: Values, score: Score) -> Array:
        return stored_order(score.value(values)).reshape(-1)

    def select(self, values: Values, score: Score, drop: int) -> Array:
        keep = np.empty_like(values.stored, dtype=bool)
        keep[...] = True
        if keep.size == 0:
            return keep
        axes = storage_axes(values.stored)
        ranks = score.rank(values)
        free = ~_largest(ranks, axes).transpose(axes).reshape(-1)
        flat = np.ones(keep.size, bool)
        flat[free] = ~rank.smallest(ranks.transpose(axes).reshape(-1)[free], drop)
        keep.transpose(axes)[...] = flat.reshape([keep.shape[axis] for axis in axes])
        return keep

    def violations(self, zero: Array, drop: int) -> Violations:
        return Violations(max(0, drop - int(np.count_nonzero(zero))), (), zero.size)


def _largest(ranks: Array, axes: tuple[int, ...]) -> Array:
    """True at the last of the largest elements of every output."""
    order = (0, 1, *sorted((2, 3), key=axes.index))
    rows = ranks.transpose(order).reshape(ranks.shape[0] * ranks.shape[1], -1)
    last = rows.shape[1] - 1 - np.argmax(rows[:, ::-1], axis=1)
    found = np.zeros(rows.shape, bool)
    found[np.arange(len(rows)), last] = True
    whole: Array = found.reshape([ranks.shape[axis] for axis in order]).transpose(np.argsort(order))
    return whole


def empty_outputs(zero: Array) -> list[tuple[int, int]]:
    """Which outputs (group, out) have no number at all, of an array that is True where a weight is zero."""
    empty = zero.all(axis=(2, 3)) if zero.size else np.zeros(zero.shape[:2], bool)
    return [(int(group), int(out)) for group, out in np.argwhere(empty)]
