"""RoIAlign over all levels of a pyramid at once, equal to ONNX's RoiAlign (mode avg, half_pixel).

The features of all levels and images are the rows of one table, and what a bin of a region gives is a weighted sum of
some rows: places and weights are computed in numpy, as regions have no gradient, and one embedding_bag sums.

`sampling_ratio: 0` means as many points as a bin has pixels, ceil(side / bins), along each side: exactly so here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def levels_of(boxes: Array, base: float, count: int) -> Array:
    """The level that a region is pooled from: floor(log2(root of its area / base)), of those there are."""
    sides = np.maximum(boxes[:, 2:4] - boxes[:, :2], 0)
    roots = np.sqrt(sides.prod(1))
    found = np.floor(np.log2(np.maximum(roots, 1e-6) / base))
    return np.asarray(found.clip(0, count - 1), np.int64)


def roi_align(
    features: Sequence[Any], rois: Array, levels: Array, strides: Sequence[int], size: int, sampling: int
) -> Any:
    """(R, C, size, size) of tensors, one for each level; `rois` are (R, 5), the image of the batch and the box."""
    import torch
    from torch.nn import functional

    channels = features[0].shape[1]
    table = torch.cat([each.permute(0, 2, 3, 1).reshape(-1, channels) for each in features])
    shapes = [tuple(each.shape[-2:]) for each in features]
    rows, weights, offsets = bags(rois, levels, shapes, len(features[0]), strides, size, sampling)
    summed = functional.embedding_bag(
        torch.from_numpy(rows),
        table,
        torch.from_numpy(offsets),
        mode="sum",
        per_sample_weights=torch.from_numpy(weights).to(table.dtype),
    )
    return summed.reshape(len(rois), size, size, channels).permute(0, 3, 1, 2)


def bags(
    rois: Array,
    levels: Array,
    shapes: Sequence[tuple[int, ...]],
    images: int,
    strides: Sequence[int],
    size: int,
    sampling: int,
) -> tuple[Array, Array, Array]:
    """Rows of the table, their weights, and where each bin's begin, bin after bin of region after region."""
    heights, widths = np.asarray(shapes, np.int64).T
    starts = np.concatenate([[0], np.cumsum(heights * widths * images)[:-1]])
    corners = rois[:, 1:] / np.asarray(strides, np.float32)[levels][:, None] - np.float32(0.5)
    counts = np.ceil((corners[:, [3, 2]] - corners[:, [1, 0]]) / size).clip(0).astype(np.int64)  # along y, along x
    if sampling:
        counts[:] = sampling
    height, width = heights[levels], widths[levels]
    first = starts[levels] + rois[:, 0].astype(np.int64) * height * width
    found = _Bags(len(rois), size, counts)
    for tall, wide in np.unique(counts, axis=0):
        chosen = np.flatnonzero((counts == (tall, wide)).all(1))
        if tall and wide:
            y, by_y = _axis(corners[chosen, 1], corners[chosen, 3], height[chosen], size, int(tall))
            x, by_x = _axis(corners[chosen, 0], corners[chosen, 2], width[chosen], size, int(wide))
            y = y * width[chosen, None, None] + first[chosen, None, None]
            rows = y[:, :, None, :, None] + x[:, None, :, None, :]
            found.put(chosen, rows, by_y[:, :, None, :, None] * by_x[:, None, :, None, :])
    return found.rows, found.weights, found.offsets


class _Bags:
    """The rows and weights of all regions' bins, of which each region's have a length of their own."""

    def __init__(self, count: int, size: int, counts: Array) -> None:
        lengths = np.repeat(counts.prod(1) * 4, size * size)
        ends = np.cumsum(lengths)
        self.offsets = (ends - lengths).astype(np.int64)
        self.firsts = self.offsets.reshape(count, size * size)[:, 0] if count else self.offsets
        self.rows = np.zeros(int(lengths.sum()), np.int64)
        self.weights = np.zeros(len(self.rows), np.float32)

    def put(self, chosen: Array, rows: Array, weights: Array) -> None:
        flat = rows.reshape(len(chosen), -1)
        places = self.firsts[chosen][:, None] + np.arange(flat.shape[1])
        self.rows[places], self.weights[places] = flat, weights.reshape(len(chosen), -1)


def _axis(begin: Array, end: Array, length: Array, size: int, count: int) -> tuple[Array, Array]:
    """Along one axis, (R, size, 2 * count): the pixels beside each bin's points, and their weights for the mean."""
    step = ((end - begin) / np.float32(size))[:, None, None]
    bins, points = np.arange(size, dtype=np.float32)[:, None], np.arange(count, dtype=np.float32) + np.float32(0.5)
    at = begin[:, None, None] + bins * step + points * step / np.float32(count)  # rounded as in the runtime
    length = length[:, None, None]
    outside = (at < -1) | (at > length)
    at = at.clip(0, length - 1).astype(np.float32)
    low = np.floor(at).astype(np.int64)
    high, part = np.minimum(low + 1, length - 1), (at - low).astype(np.float32)
    pixels = np.concatenate([low, high], -1)
    weights = np.concatenate([1 - part, part], -1) / np.float32(count)
    return pixels, np.where(np.concatenate([outside, outside], -1), np.float32(0), weights)
