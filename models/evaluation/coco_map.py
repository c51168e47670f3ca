"""COCO's mean average precision in numpy, the evaluator `COCO`: the figures of pycocotools, to the last few digits.

| figure | what it is |
|---|---|
| mAP | AP over the IoU thresholds .50, .55 ... .95 and all categories, at most 100 detections each an image |
| mAP50, mAP75 | AP at one threshold |
| mAP_small, mAP_medium, mAP_large | mAP of objects up to 32 x 32 pixels, up to 96 x 96, and above |
| AR1, AR10, AR100, AR_small, ... | recall, over the same thresholds, of the first 1, 10 and 100 detections |

1. In an image and category, detections take objects in the order of their scores: each the free object that it overlaps
   most, if by the threshold at least; of equal ones the last. What falls on a crowd, or on an object of another size
   than is asked for, counts neither way; a crowd may be taken by many.
2. A figure without any object is -1. Detections of classes beyond the categories of the annotations count neither way:
   a network may know more.
3. Categories are gone through one by one, and all images of one at once: the detections that overlap something are
   matched in rounds, the first of every image, then the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.data.batch import Array, Batch, Detections
from models.data.coco import Coco
from onnxsparse.errors import OptionError, brief

THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0, 1, 101)
AREAS = np.asarray([(0, 1e10), (0, 32**2), (32**2, 96**2), (96**2, 1e10)])
SIZES = ("", "small", "medium", "large")
MOST = 100
FIRST = (1, 10, MOST)
PAIRS = 1 << 20
"""Overlaps computed at a time."""


class Found:
    """Detections in the pixels of the files, gathered; boxes are kept as x, y, width, height."""

    def __init__(self, coco: Coco) -> None:
        self._places = {name: place for place, name in enumerate(coco.ids)}
        self._classes, self._path = len(coco.categories), coco.path
        self._parts: list[tuple[Array, Array, Array, Array]] = []

    def add(self, batch: Batch, answers: Sequence[Detections]) -> None:
        for name, one in zip(batch.ids, answers):
            if name not in self._places:
                raise OptionError(f"{self._path} has no image {brief(name)}, which the test images have")
            labels = np.asarray(one.labels, np.int64)
            known = (labels >= 1) & (labels <= self._classes)
            boxes = np.asarray(one.boxes, np.float64).reshape(-1, 4)[known]
            corners = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)
            place = np.full(len(boxes), self._places[name], np.int64)
            self._parts.append((place, labels[known], np.asarray(one.scores, np.float64)[known], corners))

    def whole(self) -> tuple[Array, Array, Array, Array]:
        """The image, class, score and box of each."""
        nothing = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros((0, 4)))
        image, label, score, corners = (np.concatenate(part) for part in zip(nothing, *self._parts))
        return image, label, score, corners


class CocoMap:
    """Gathers detections, and says what they are worth."""

    main = "mAP"

    def __init__(self, coco: Coco) -> None:
        self._coco, self._found = coco, Found(coco)

    def add(self, batch: Batch, answers: Sequence[Detections]) -> None:
        self._found.add(batch, answers)

    def figures(self) -> dict[str, float]:
        coco = self._coco
        rank = np.empty(len(coco.ids), np.int64)
        rank[np.asarray(sorted(range(len(coco.ids)), key=lambda place: coco.ids[place]), np.int64)] = np.arange(
            len(rank)
        )
        objects = rank[np.repeat(np.arange(len(coco.ids)), np.diff(coco.begins))]
        image, label, score, corners = self._found.whole()
        image = rank[image]
        precision = np.full((len(coco.categories), len(AREAS), len(THRESHOLDS), len(RECALLS)), -1.0)
        recall = np.full((len(coco.categories), len(AREAS), len(FIRST), len(THRESHOLDS)), -1.0)
        for kind in range(len(coco.categories)):
            mine, theirs = np.flatnonzero(label == kind + 1), np.flatnonzero(coco.classes == kind + 1)
            category = _Category(
                _Objects(objects[theirs], coco.corners[theirs], coco.areas[theirs], coco.crowd[theirs]),
                _first(image[mine], score[mine], corners[mine]),
            )
            category.fill(precision[kind], recall[kind])
        return summary(precision, recall)


def summary(precision: Array, recall: Array) -> dict[str, float]:
    """The figures, by the tables (category, area, threshold, recall) and (category, area, first, threshold)."""
    found = {"mAP": _mean(precision[:, 0])}
    found.update({f"mAP{percent}": _mean(precision[:, 0, place]) for percent, place in ((50, 0), (75, 5))})
    found.update({f"mAP_{size}": _mean(precision[:, place]) for place, size in enumerate(SIZES) if size})
    found.update({f"AR{most}": _mean(recall[:, 0, place]) for place, most in enumerate(FIRST)})
    found.update({f"AR_{size}": _mean(recall[:, place, -1]) for place, size in enumerate(SIZES) if size})
    return found


def _mean(table: Array) -> float:
    known = table[table > -1]
    return float(np.mean(known)) if known.size else -1.0


@dataclass(frozen=True)
class _Objects:
    """The objects of a category, those of an image side by side."""

    image: Array
    corners: Array
    areas: Array
    crowd: Array


@dataclass(frozen=True)
class _Detected:
    """The detections of a category by image, the best of each first."""

    image: Array
    place: Array
    """The place among those of its image."""
    score: Array
    corners: Array


def _first(image: Array, score: Array, corners: Array) -> _Detected:
    """The first hundred of every image."""
    order = np.lexsort((-score, image))
    image, score, corners = image[order], score[order], corners[order]
    place = np.arange(len(image)) - np.searchsorted(image, image)
    kept = place < MOST
    return _Detected(image[kept], place[kept], score[kept], corners[kept])


class _Category:
    """Matches the detections of a category with its objects, and adds them up."""

    def __init__(self, objects: _Objects, found: _Detected) -> None:
        order = np.argsort(objects.image, kind="stable")
        self.objects = _Objects(*(getattr(objects, name)[order] for name in ("image", "corners", "areas", "crowd")))
        self.found = found
        areas = self.objects.areas
        self.ignored = self.objects.crowd | (areas < AREAS[:, :1]) | (areas > AREAS[:, 1:])

    def fill(self, precision: Array, recall: Array) -> None:
        wanted = (~self.ignored).sum(axis=1)
        matched, aside = self._matched()
        order = np.argsort(-self.found.score, kind="stable")
        matched, aside, place = matched[..., order], aside[..., order], self.found.place[order]
        right, wrong = matched & ~aside, ~matched & ~aside
        for size in np.flatnonzero(wanted):
            for first, most in enumerate(FIRST):
                recall[size, first] = (right[size] & (place < most)).sum(axis=1) / wanted[size]
            for threshold in range(len(THRESHOLDS)):
                precision[size, threshold] = _precision(right[size, threshold], wrong[size, threshold], wanted[size])

    def _matched(self) -> tuple[Array, Array]:
        """(area, threshold, detection): whether it has an object, and whether it counts neither way."""
        shape = (len(AREAS), len(THRESHOLDS), len(self.found.image))
        matched, aside = np.zeros(shape, bool), np.zeros(shape, bool)
        area = self.found.corners[:, 2] * self.found.corners[:, 3]
        outside = (area < AREAS[:, :1]) | (area > AREAS[:, 1:])
        taken = np.zeros((len(AREAS), len(THRESHOLDS), len(self.objects.image)), bool)
        for detection, candidates, overlap in self._rounds():
            chosen, any_chosen = self._choose(candidates, overlap, taken)
            matched[..., detection] = any_chosen
            aside[..., detection] = any_chosen & np.take_along_axis(self.ignored[:, None], chosen, axis=2)
            size, threshold, which = np.nonzero(any_chosen)
            taken[size, threshold, chosen[size, threshold, which]] = True
        return matched, aside | (~matched & outside[:, None])

    def _choose(self, candidates: Array, overlap: Array, taken: Array) -> tuple[Array, Array]:
        """(area, threshold, detection): the object each takes, and whether it takes one."""
        free = ~taken[..., candidates] | self.objects.crowd[candidates]
        fits = free & (overlap >= np.minimum(THRESHOLDS, 1 - 1e-10)[:, None, None])
        counted = fits & ~self.ignored[:, None][..., candidates]
        fits = np.where(counted.any(axis=-1, keepdims=True), counted, fits)
        value = np.where(fits, overlap, -1.0)[..., ::-1]
        column = candidates.shape[1] - 1 - np.argmax(value, axis=-1)
        return candidates[np.arange(len(candidates)), column], np.asarray(fits.any(axis=-1))

    def _rounds(self) -> Any:
        """Detections, at most one of an image, with the objects they overlap enough, (n, k) with 0 overlap as fill."""
        detection, candidate, overlap = self._overlaps()
        detections, begin, count = np.unique(detection, return_index=True, return_counts=True)
        image = self.found.image[detections]
        turn = np.arange(len(detections)) - np.searchsorted(image, image)
        order = np.argsort(turn, kind="stable")
        for one in np.split(order, np.cumsum(np.bincount(turn))[:-1]) if len(turn) else []:
            columns = np.arange(count[one].max())
            there = columns < count[one][:, None]
            pairs = np.where(there, begin[one][:, None] + columns, 0)
            yield detections[one], candidate[pairs], np.where(there, overlap[pairs], -1.0)

    def _overlaps(self) -> tuple[Array, Array, Array]:
        """Pairs of a detection and an object of its image that overlap by the lowest threshold."""
        begins = np.searchsorted(self.objects.image, self.found.image)
        counts = np.searchsorted(self.objects.image, self.found.image, side="right") - begins
        ends = np.cumsum(counts)
        pieces = np.searchsorted(ends, np.arange(0, ends[-1] if len(ends) else 0, PAIRS))
        parts = [self._pairs(part, begins, counts) for part in np.split(np.arange(len(counts)), pieces[1:])]
        detection, candidate, overlap = (np.concatenate(one) for one in zip(*parts))
        return detection, candidate, overlap

    def _pairs(self, part: Array, begins: Array, counts: Array) -> tuple[Array, Array, Array]:
        number = counts[part]
        detection = np.repeat(part, number)
        within = np.arange(len(detection)) - np.repeat(np.cumsum(number) - number, number)
        candidate = np.repeat(begins[part], number) + within
        crowd = self.objects.crowd[candidate]
        overlap = iou(self.found.corners[detection], self.objects.corners[candidate], crowd)
        enough = overlap >= THRESHOLDS[0]
        return detection[enough], candidate[enough], overlap[enough]


def iou(found: Array, objects: Array, crowd: Array) -> Array:
    """Overlap of boxes x, y, width, height, pair by pair; with a crowd it is the share of the detection inside."""
    ends = np.minimum(found[:, :2] + found[:, 2:], objects[:, :2] + objects[:, 2:])
    sides = ends - np.maximum(found[:, :2], objects[:, :2])
    common = np.where((sides > 0).all(axis=1), sides[:, 0] * sides[:, 1], 0.0)
    area, other = found[:, 2] * found[:, 3], objects[:, 2] * objects[:, 3]
    union = np.where(crowd, area, area + other - common)
    return np.divide(common, union, out=np.zeros(len(common)), where=common > 0)


def _precision(right: Array, wrong: Array, wanted: int) -> Array:
    """The best precision at each recall or beyond."""
    hits, misses = np.cumsum(right, dtype=np.float64), np.cumsum(wrong, dtype=np.float64)
    precision = hits / (hits + misses + np.spacing(1))
    precision = np.maximum.accumulate(precision[::-1])[::-1]
    place = np.searchsorted(hits / wanted, RECALLS, side="left")
    return np.append(precision, 0.0)[place]
