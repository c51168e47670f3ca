"""Boxes, suppression, matching and sampling against slow loops: numpy alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.detection.anchors import Anchors
from models.detection.boxes import Deltas, clipped, iou
from models.detection.matching import ATSS, BACKGROUND, IGNORED, MaxIoU
from models.detection.nms import nms
from models.detection.sampling import NaiveSampler

NONE = np.zeros((0, 4), np.float32)
SEEDS = st.integers(0, 2**32 - 1)


def some_boxes(draws, count, degenerate=True):
    corners = draws.integers(0, 60, (count, 2))
    sides = draws.integers(0 if degenerate else 1, 40, (count, 2))
    return np.concatenate([corners, corners + sides], 1).astype(np.float32)


def slow_iou(first, second):
    width = max(0.0, min(first[2], second[2]) - max(first[0], second[0]))
    height = max(0.0, min(first[3], second[3]) - max(first[1], second[1]))
    union = sum((each[2] - each[0]) * (each[3] - each[1]) for each in (first, second)) - width * height
    return width * height / union if union > 0 else 0.0


@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_overlaps_are_those_of_a_loop_and_boxes_without_area_overlap_with_nothing(seed):
    draws = np.random.default_rng(seed)
    first, second = some_boxes(draws, 7), some_boxes(draws, 5)
    slow = [[slow_iou(one, other) for other in second] for one in first]
    np.testing.assert_allclose(iou(first, second), slow, atol=1e-6)


@given(SEEDS, st.sampled_from([Deltas(), Deltas((0.1, 0.0, -0.2, 0.0), (0.1, 0.1, 0.2, 0.2))]))
@settings(max_examples=20, deadline=None)
def test_deltas_are_undone(seed, deltas):
    draws = np.random.default_rng(seed)
    anchors, boxes = (some_boxes(draws, 9, degenerate=False) for _ in range(2))
    np.testing.assert_allclose(deltas.decode(anchors, deltas.encode(anchors, boxes)), boxes, atol=2e-4)


def test_deltas_of_boxes_without_area_and_of_what_an_untrained_network_says_are_finite():
    flat = np.asarray([[3, 3, 3, 3]], np.float32)
    assert np.isfinite(Deltas().encode(flat, flat + 1)).all()
    assert np.isfinite(Deltas().decode(np.asarray([[3, 3, 4, 4]], np.float32), np.full((1, 4), 1e4, np.float32))).all()


def test_boxes_are_cut_at_the_edges_of_an_image_by_height_and_width():
    assert clipped(np.asarray([[-5, -5, 50, 50]], np.float32), (20, 30)).tolist() == [[0, 0, 30, 20]]


def test_anchors_lie_around_the_centres_of_cells():
    anchors = Anchors((0.5, 2.0), (4.0, 8.0), (8, 16))
    found = anchors.at([(2, 3), (1, 1)])
    assert len(found) == sum(anchors.counts([(2, 3), (1, 1)])) == 28
    np.testing.assert_allclose((found[:4, :2] + found[:4, 2:]) / 2, 4.0, atol=1e-5)
    np.testing.assert_allclose((found[4:8, :2] + found[4:8, 2:])[0] / 2, (12.0, 4.0), atol=1e-5)
    sides = found[:, 2:] - found[:, :2]
    np.testing.assert_allclose(np.sqrt(sides.prod(1))[:4], (32, 64, 32, 64), rtol=1e-5)
    np.testing.assert_allclose((sides[:, 1] / sides[:, 0])[:4], (0.5, 0.5, 2, 2), rtol=1e-5)


def slow_nms(boxes, scores, threshold, labels, top_n):
    kept = []
    for at in np.argsort(-scores, kind="stable"):
        over = (iou(boxes[at : at + 1], boxes[kept])[0] > threshold) & (labels[kept] == labels[at]) if kept else []
        if not np.any(over):
            kept.append(at)
    return kept[:top_n]


@given(SEEDS, st.integers(0, 300), st.sampled_from([None, 1, 20]), st.sampled_from([0.0, 0.3, 0.5]))
@settings(max_examples=25, deadline=None)
def test_suppression_is_that_of_a_loop(seed, count, top_n, threshold):
    draws = np.random.default_rng(seed)
    boxes, scores = some_boxes(draws, count), draws.integers(0, 50, count).astype(np.float32) / 50
    labels = draws.integers(0, 3, count)
    assert nms(boxes, scores, threshold, labels, top_n).tolist() == slow_nms(boxes, scores, threshold, labels, top_n)


def test_a_box_that_overlaps_by_exactly_the_threshold_is_kept():
    boxes = np.asarray([[0, 0, 10, 10], [0, 0, 10, 5]], np.float32)
    scores = np.asarray([0.9, 0.8], np.float32)
    assert len(nms(boxes, scores, 0.5)) == 2
    assert len(nms(boxes, scores, 0.49)) == 1


def slow_atss(anchors, counts, boxes, top_n):
    """The candidates of each object level by level, then the object that each anchor overlaps most."""
    best = [(0.0, BACKGROUND)] * len(anchors)
    for box, (left, top, right, bottom) in enumerate(boxes):
        near, first = [], 0
        for count in counts:
            x, y = (left + right) / 2, (top + bottom) / 2
            order = sorted(
                range(first, first + count),
                key=lambda at: (sum(anchors[at][0::2]) / 2 - x) ** 2 + (sum(anchors[at][1::2]) / 2 - y) ** 2,
            )
            near, first = near + order[:top_n], first + count
        overlaps = np.asarray([slow_iou(anchors[at], boxes[box]) for at in near])
        for at, overlap in zip(near, overlaps):
            x, y = sum(anchors[at][0::2]) / 2, sum(anchors[at][1::2]) / 2
            inside = left < x < right and top < y < bottom
            if inside and overlap >= overlaps.mean() + overlaps.std(ddof=1) and overlap > best[at][0]:
                best[at] = (overlap, box)
    return [box for _, box in best]


@given(SEEDS, st.sampled_from([1, 4, 9]))
@settings(max_examples=15, deadline=None)
def test_adaptive_selection_is_that_of_a_loop(seed, top_n):
    draws = np.random.default_rng(seed)
    # Off the grid, so that no two distances or overlaps are equal but for rounding.
    boxes = some_boxes(draws, 4, degenerate=False) + draws.uniform(0, 0.4, (4, 4)) + [0, 0, 3, 3]
    anchors = Anchors((1.0,), (2.0, 3.0), (8, 16))
    shapes = [(8, 8), (4, 4)]
    every, counts = anchors.at(shapes).astype(np.float64), anchors.counts(shapes)
    every = every + draws.uniform(0, 0.01, (len(every), 1))
    found = ATSS(top_n).match(every, counts, boxes, NONE)
    assert found.tolist() == slow_atss(every, counts, boxes, top_n)


ANCHORS = np.asarray([[0, 0, 10, 10], [0, 0, 10, 6], [0, 0, 10, 4], [40, 40, 50, 50]], np.float32)
OBJECT = ANCHORS[:1]


def test_thresholds_say_what_finds_an_object_what_is_background_and_what_neither():
    assert MaxIoU(0.7, 0.5).match(ANCHORS, [4], OBJECT, NONE).tolist() == [0, IGNORED, BACKGROUND, BACKGROUND]
    assert MaxIoU(0.5, 0.5).match(ANCHORS, [4], OBJECT, NONE).tolist() == [0, 0, BACKGROUND, BACKGROUND]


@pytest.mark.parametrize("matcher", [MaxIoU(0.7, 0.3), ATSS(9)])
def test_without_objects_all_is_background_but_crowds(matcher):
    crowd = np.asarray([[38, 38, 60, 60]], np.float32)
    assert matcher.match(ANCHORS, [4], NONE, NONE).tolist() == [BACKGROUND] * 4
    assert matcher.match(ANCHORS, [4], NONE, crowd).tolist() == [BACKGROUND] * 3 + [IGNORED]


def test_the_best_anchors_of_an_object_find_it_in_any_case_above_the_lower_threshold():
    far = ANCHORS[1:]
    assert MaxIoU(0.7, 0.3, low_quality=True).match(far, [3], OBJECT, NONE).tolist() == [0, IGNORED, BACKGROUND]
    strict = MaxIoU(0.7, 0.3, low_quality=True, low_quality_threshold=0.65)
    assert strict.match(far, [3], OBJECT, NONE).tolist() == [IGNORED, IGNORED, BACKGROUND]


def test_an_object_that_no_anchor_touches_is_found_by_none():
    away = np.asarray([[90, 90, 95, 95]], np.float32)
    assert MaxIoU(0.7, 0.3, low_quality=True).match(ANCHORS, [4], away, NONE).tolist() == [BACKGROUND] * 4


@given(SEEDS, st.integers(0, 40), st.integers(0, 40))
@settings(max_examples=20, deadline=None)
def test_samples_are_drawn_by_the_seed_with_a_share_of_positives_at_most(seed, positives, negatives):
    matches = np.asarray([2] * positives + [IGNORED] * 5 + [BACKGROUND] * negatives)
    drawn = NaiveSampler(16, 0.25).sample(matches, seed, 0)
    assert len(set(drawn.tolist())) == len(drawn) <= 16
    assert (matches[drawn] >= 0).sum() == min(positives, 4)
    assert (matches[drawn] == BACKGROUND).sum() == min(negatives, 16 - min(positives, 4))
    assert drawn.tolist() == NaiveSampler(16, 0.25).sample(matches, seed, 0).tolist()


@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_proposals_are_drawn_by_their_boxes_whatever_their_order(seed):
    random = np.random.default_rng(seed)
    boxes = random.uniform(-5, 400, (40, 4)).astype(np.float32)
    order = random.permutation(40)
    first, other = (
        NaiveSampler(10, 0.5).sample(np.full(40, BACKGROUND), seed, 1, one) for one in (boxes, boxes[order])
    )
    assert len(first) == 10
    assert {*first.tolist()} == {*order[other].tolist()}
