"""Boxes: overlaps, and deltas by which a network moves a box.

Boxes are x1, y1, x2, y2; those of no area overlap with nothing, and give no NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.sections import Section

Array = np.ndarray[Any, Any]
LARGEST = math.log(1000 / 16)
"""The logarithm of the largest factor by which a box grows: exp of what an untrained network says would overflow."""
SMALLEST = 1e-3
"""Pixels that a side has at least where it is divided by."""


def areas(boxes: Array) -> Array:
    sides = np.maximum(boxes[..., 2:] - boxes[..., :2], 0)
    return np.asarray(sides[..., 0] * sides[..., 1])


def intersections(first: Array, second: Array) -> Array:
    """The areas that each of the first boxes shares with each of the second."""
    width = np.minimum(first[:, None, 2], second[None, :, 2]) - np.maximum(first[:, None, 0], second[None, :, 0])
    height = np.minimum(first[:, None, 3], second[None, :, 3]) - np.maximum(first[:, None, 1], second[None, :, 1])
    return np.asarray(np.maximum(width, 0) * np.maximum(height, 0))


def iou(first: Array, second: Array) -> Array:
    """Intersection over union of each of the first boxes with each of the second."""
    shared = intersections(first, second)
    union = areas(first)[:, None] + areas(second)[None, :] - shared
    return np.asarray(np.divide(shared, union, out=np.zeros_like(shared), where=union > 0))


def covered(boxes: Array, regions: Array) -> Array:
    """The largest part of each box that one of the regions covers."""
    if not len(regions):
        return np.zeros(len(boxes), np.float32)
    area, shared = areas(boxes), intersections(boxes, regions).max(1)
    return np.asarray(np.divide(shared, area, out=np.zeros_like(shared), where=area > 0))


def clipped(boxes: Array, size: tuple[int, int]) -> Array:
    """Boxes cut at the edges of an image of this height and width."""
    height, width = size
    return np.stack([boxes[..., at].clip(0, (width, height)[at % 2]) for at in range(4)], -1)


@dataclass(frozen=True)
class Deltas:
    """Offsets of the centre by the size of a box and logarithms of the factors of its sides, normalized."""

    means: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
    stds: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)

    def encode(self, anchors: Array, boxes: Array) -> Array:
        """What moves each of the anchors to the box beside it."""
        sides, target = (np.maximum(each[:, 2:] - each[:, :2], SMALLEST) for each in (anchors, boxes))
        centres = ((boxes[:, :2] + boxes[:, 2:]) - (anchors[:, :2] + anchors[:, 2:])) / 2
        found = np.concatenate([centres / sides, np.log(target / sides)], 1)
        return np.asarray((found - np.asarray(self.means)) / np.asarray(self.stds), anchors.dtype)

    def decode(self, anchors: Any, deltas: Any, functions: Any = np) -> Any:
        """The anchors moved; `functions` is numpy, or torch where these are its tensors."""
        moved = [deltas[..., at] * self.stds[at] + self.means[at] for at in range(4)]
        sides = [anchors[..., at + 2] - anchors[..., at] for at in range(2)]
        centres = [(anchors[..., at] + anchors[..., at + 2]) * 0.5 + moved[at] * sides[at] for at in range(2)]
        halves = [functions.exp(moved[at + 2].clip(None, LARGEST)) * sides[at] * 0.5 for at in range(2)]
        corners = [centres[at] - halves[at] for at in range(2)] + [centres[at] + halves[at] for at in range(2)]
        return functions.stack(corners, -1)


def read_deltas(section: Section) -> Deltas:
    """The section `bbox_normalize`."""
    means, stds = section.numbers("means", [0.0] * 4, 4), section.numbers("stds", [1.0] * 4, 4, above=0.0)
    section.end()
    return Deltas(tuple(means), tuple(stds))
