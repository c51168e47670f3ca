"""Matching: which object each anchor or proposal is to find.

A match is the index of an object, BACKGROUND or IGNORED, one for each anchor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.detection.boxes import covered, iou
from models.sections import Section

Array = np.ndarray[Any, Any]
BACKGROUND, IGNORED = -1, -2


@dataclass(frozen=True)
class MaxIoU:
    """The object that an anchor overlaps most, by two thresholds; between them it is ignored."""

    positive: float
    negative: float
    ignore: float = 0.5
    """Background of which a region of a crowd covers at least this part is ignored."""
    low_quality: bool = False
    """The anchors that overlap an object most are matched with it in any case."""
    low_quality_threshold: float = 0.0
    """... from this overlap on. United Perception has the word, and does not use it yet."""

    def match(self, anchors: Array, counts: Sequence[int], boxes: Array, ignored: Array) -> Array:
        """One match for each anchor."""
        if not len(boxes):
            return self._without_crowds(np.full(len(anchors), BACKGROUND), anchors, ignored)
        overlaps = iou(anchors, boxes)
        nearest, best = overlaps.argmax(1), overlaps.max(1)
        found = np.where(best >= self.positive, nearest, np.where(best < self.negative, BACKGROUND, IGNORED))
        if self.low_quality:
            highest = overlaps.max(0)
            usable = (highest > 0) & (highest >= self.low_quality_threshold)
            anchor, box = np.nonzero((overlaps == highest) & usable)
            found[anchor] = box
        return self._without_crowds(found, anchors, ignored)

    def _without_crowds(self, found: Array, anchors: Array, ignored: Array) -> Array:
        if len(ignored):
            found[(found == BACKGROUND) & (covered(anchors, ignored) >= self.ignore)] = IGNORED
        return found


@dataclass(frozen=True)
class ATSS:
    """Adaptive selection: of the anchors nearest to an object, those that overlap it more than mean + std of them.

    Nearest are the `top_n` of each level by the distance of the centres; one that matches has its centre inside the
    object, and of several objects finds the one that it overlaps most.
    """

    top_n: int
    ignore: float = 0.5

    def match(self, anchors: Array, counts: Sequence[int], boxes: Array, ignored: Array) -> Array:
        """One match for each anchor; `counts` says how many of them each level has."""
        found = np.full(len(anchors), BACKGROUND)
        if len(ignored):
            found[covered(anchors, ignored) >= self.ignore] = IGNORED
        if len(boxes) and len(anchors):
            self._select(found, anchors, counts, boxes)
        return found

    def _select(self, found: Array, anchors: Array, counts: Sequence[int], boxes: Array) -> None:
        near = self._nearest(anchors, counts, boxes)
        box = np.repeat(np.arange(len(boxes)), near.shape[1])
        overlaps = iou_of_pairs(anchors[near.ravel()], boxes[box]).reshape(near.shape)
        spread = overlaps.std(1, ddof=1) if near.shape[1] > 1 else 0.0
        centres = (anchors[near, :2] + anchors[near, 2:]) / 2
        inside = ((centres > boxes[:, None, :2]) & (centres < boxes[:, None, 2:])).all(-1)
        chosen = (inside & (overlaps >= (overlaps.mean(1) + spread)[:, None]) & (overlaps > 0)).ravel()
        # In the order of their overlaps, so that the largest one is written last; of equal ones the first object.
        anchor, box, overlap = near.ravel()[chosen], box[chosen], overlaps.ravel()[chosen]
        order = np.lexsort((-box, overlap))
        found[anchor[order]] = box[order]

    def _nearest(self, anchors: Array, counts: Sequence[int], boxes: Array) -> Array:
        """For each object the anchors of each level that are nearest to it; of equal ones the first."""
        offsets = (anchors[None, :, :2] + anchors[None, :, 2:]) - (boxes[:, None, :2] + boxes[:, None, 2:])
        distances = (offsets**2).sum(-1)
        ends = np.cumsum(counts)
        found = [
            _smallest(distances[:, end - count : end], self.top_n) + end - count for count, end in zip(counts, ends)
        ]
        return np.concatenate(found, 1)


def _smallest(distances: Array, count: int) -> Array:
    """The columns of each row's smallest numbers, the first of equal ones."""
    if distances.shape[1] <= count:
        return np.broadcast_to(np.arange(distances.shape[1]), distances.shape)
    return np.argsort(distances, axis=1, kind="stable")[:, :count]


def iou_of_pairs(first: Array, second: Array) -> Array:
    """Intersection over union of each box with the one beside it."""
    sides = np.minimum(first[:, 2:], second[:, 2:]) - np.maximum(first[:, :2], second[:, :2])
    shared = np.maximum(sides, 0).prod(1)
    union = sum(np.maximum(each[:, 2:] - each[:, :2], 0).prod(1) for each in (first, second)) - shared
    return np.asarray(np.divide(shared, union, out=np.zeros_like(shared), where=union > 0))


def read_matcher(supervisor: Section) -> MaxIoU:
    """The section `matcher` of a supervisor."""
    _, kwargs = supervisor.typed("matcher", ["max_iou"])
    positive = kwargs.number("positive_iou_thresh", least=0, most=1)
    found = MaxIoU(
        positive,
        kwargs.number("negative_iou_thresh", least=0, most=positive),
        kwargs.number("ignore_iou_thresh", 0.5, least=0, most=1),
        kwargs.flag("allow_low_quality_match", False),
        kwargs.number("low_quality_thresh", 0.0, least=0, most=1),
    )
    kwargs.end()
    return found
