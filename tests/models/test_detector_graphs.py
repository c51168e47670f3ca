"""Post-processing as ONNX graphs: what onnxruntime makes of them is what the same steps in numpy make."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.export.detector_nodes import Coding, Level
from models.export.one_stage import Choice, retina_graph
from models.export.two_stage import Feature, Pooling, bbox_graph, proposals_graph

Array = np.ndarray[Any, Any]
CODING = Coding((0.0, 0.0, 0.0, 0.0), (0.1, 0.1, 0.2, 0.2))
SIZE = np.array([64.0, 64.0])
SHAPES = {8: (8, 8), 16: (4, 4), 32: (2, 2)}


def run(proto: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, Array]:
    onnx.checker.check_model(proto, full_check=True)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    named = {name: value.astype(np.float32) for name, value in feeds.items()}
    return dict(zip([one.name for one in session.get_outputs()], session.run(None, named)))


def anchors(stride: int, shape: tuple[int, int], sizes: tuple[float, ...]) -> Array:
    y, x = (np.mgrid[: shape[0], : shape[1]] + 0.5) * stride
    half = np.array(sizes)[None, None] * stride / 2
    x, y = x[..., None], y[..., None]
    return np.stack([x - half, y - half, x + half, y + half], -1).reshape(-1, 4).astype(np.float32)


def levels(sizes: tuple[float, ...] = (3.0, 4.0)) -> list[Level]:
    made = ((at, stride, shape) for at, (stride, shape) in enumerate(SHAPES.items()))
    return [Level(f"cls{at}", f"loc{at}", anchors(stride, shape, sizes), shape) for at, stride, shape in made]


def drawn(seed: int, found: list[Level], classes: int, shift: float = -2.0) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    feeds = {}
    for one in found:
        feeds[one.cls] = random.normal(shift, 1.5, (1, one.count * classes, *one.shape)).astype(np.float32)
        feeds[one.loc] = random.normal(0, 1, (1, one.count * 4, *one.shape)).astype(np.float32)
    return feeds


# -- the same in numpy, box by box


def decode(deltas: Array, boxes: Array, coding: Coding, size: Array) -> Array:
    moved = deltas * np.array(coding.stds) + np.array(coding.means)
    wide = boxes[..., 2:] - boxes[..., :2]
    centre = boxes[..., :2] + wide / 2 + moved[..., :2] * wide
    half = np.exp(np.minimum(moved[..., 2:], coding.largest)) * wide / 2
    return np.clip(np.concatenate([centre - half, centre + half], -1), 0, np.tile(size[::-1], 2))


def overlap(one: Array, other: Array) -> float:
    sides = np.minimum(one[2:], other[2:]) - np.maximum(one[:2], other[:2])
    shared = float(np.prod(np.maximum(sides, 0)))
    areas = [float(np.prod(box[2:] - box[:2])) for box in (one, other)]
    return shared / (sum(areas) - shared) if sum(areas) else 0.0


def greedy(boxes: Array, scores: Array, threshold: float, above: float) -> list[int]:
    kept: list[int] = []
    for at in np.argsort(-scores, kind="stable"):
        if scores[at] > above and all(overlap(boxes[at], boxes[one]) <= threshold for one in kept):
            kept.append(int(at))
    return kept


def level_boxes(level: Level, feeds: dict[str, Array], classes: int, choice: Choice) -> tuple[Array, Array, Array]:
    def flat(name: str, last: int) -> Array:
        return feeds[name].reshape(level.count, last, -1).transpose(2, 0, 1).reshape(-1, last)

    scores = 1 / (1 + np.exp(-flat(level.cls, classes).astype(np.float64)))
    best = np.argsort(-scores.reshape(-1), kind="stable")[: choice.level_top_n]
    at = best // classes
    boxes = decode(flat(level.loc, 4)[at], level.anchors[at], choice.coding, SIZE)
    return boxes, scores.reshape(-1)[best], best % classes


def by_class(boxes: Array, scores: Array, labels: Array, choice: Choice) -> tuple[Array, Array, Array]:
    kept = []
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        kept += [own[at] for at in greedy(boxes[own], scores[own], choice.overlap, choice.above)]
    order = np.array(kept, int)[np.argsort(-scores[kept], kind="stable")][: choice.top_n]
    return boxes[order], scores[order], labels[order] + 1


def same(found: dict[str, Array], expected: tuple[Array, Array, Array]) -> None:
    np.testing.assert_allclose(found["boxes"], expected[0], atol=1e-3)
    np.testing.assert_allclose(found["scores"], expected[1], atol=1e-5)
    np.testing.assert_array_equal(found["labels"], expected[2])


# -- one stage


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 1000), st.sampled_from([0.3, 0.6]), st.sampled_from([5, 60]), st.sampled_from([7, 1000]))
def test_one_stage_answers_as_numpy_does(seed: int, overlaps: float, top: int, per_level: int) -> None:
    found, choice = levels(), Choice(overlaps, top, 0.05, per_level, coding=CODING)
    feeds = drawn(seed, found, 3)
    taken = [np.concatenate(one) for one in zip(*(level_boxes(level, feeds, 3, choice) for level in found))]
    same(run(retina_graph(found, 3, choice, SIZE), feeds), by_class(*taken, choice))


def test_no_box_where_no_score_is_high_enough() -> None:
    found = levels()
    answers = run(retina_graph(found, 3, Choice(0.5, 10, 0.05), SIZE), drawn(0, found, 3, shift=-30.0))
    assert answers["boxes"].shape == (0, 4)
    assert answers["labels"].shape == (0,)


def test_boxes_end_where_the_image_did_before_padding() -> None:
    found = levels()
    feeds = {**drawn(1, found, 3), "size": np.array([40.0, 50.0])}
    boxes = run(retina_graph(found, 3, Choice(0.5, 100, 0.05), SIZE), feeds)["boxes"]
    assert boxes[:, 2:].max(0).tolist() == [50, 40]


def test_boxes_that_are_too_narrow_are_left_out() -> None:
    found, feeds = levels(), drawn(2, levels(), 3)
    every = run(retina_graph(found, 3, Choice(1.0, 1000, 0.05, coding=CODING), SIZE), feeds)["boxes"]
    wide = run(retina_graph(found, 3, Choice(1.0, 1000, 0.05, narrowest=30.0, coding=CODING), SIZE), feeds)["boxes"]
    sides = (every[:, 2:] - every[:, :2]).min(1)
    assert 0 < (sides >= 30).sum() == len(wide) < len(every)


# -- two stages

FEATURES = [Feature(f"p{at}", (2, *shape), stride) for at, (stride, shape) in enumerate(SHAPES.items())]
POOLING = Pooling(3, 0, 8.0)


def bilinear(image: Array, y: float, x: float) -> Array:
    if not (-1 <= y <= image.shape[1] and -1 <= x <= image.shape[2]):
        return np.zeros(len(image))
    y, x = min(max(y, 0), image.shape[1] - 1), min(max(x, 0), image.shape[2] - 1)
    top, left = int(y), int(x)
    low, right = min(top + 1, image.shape[1] - 1), min(left + 1, image.shape[2] - 1)
    dy, dx = y - top, x - left
    upper = image[:, top, left] * (1 - dx) + image[:, top, right] * dx
    lower = image[:, low, left] * (1 - dx) + image[:, low, right] * dx
    return np.asarray(upper * (1 - dy) + lower * dy)


def aligned(feeds: dict[str, Array], box: Array) -> Array:
    """The mean of bilinear samples in every bin of one box, from the level of its size."""
    scale = np.sqrt(np.prod(box[2:] - box[:2])) / POOLING.base_scale
    feature = FEATURES[int(np.clip(np.floor(np.log2(max(scale, 1e-6))), 0, len(FEATURES) - 1))]
    x1, y1, x2, y2 = box / feature.stride - 0.5
    high, wide = (y2 - y1) / POOLING.size, (x2 - x1) / POOLING.size
    ys, xs = max(int(np.ceil(high)), 1), max(int(np.ceil(wide)), 1)
    made = np.zeros((feature.shape[0], POOLING.size, POOLING.size))
    for row, column in np.ndindex(POOLING.size, POOLING.size):
        points = [
            bilinear(feeds[feature.name][0], y1 + (row + (i + 0.5) / ys) * high, x1 + (column + (j + 0.5) / xs) * wide)
            for i in range(ys)
            for j in range(xs)
        ]
        made[:, row, column] = np.mean(points, 0)
    return made


def pictures(seed: int) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    return {one.name: random.normal(size=(1, *one.shape)).astype(np.float32) for one in FEATURES}


def test_proposals_and_their_features_are_those_of_numpy() -> None:
    found, choice = levels((2.0,)), Choice(0.7, 30, 0.0, 20, coding=CODING)
    feeds = {**drawn(3, found, 1), **pictures(3)}
    answers = run(proposals_graph(found, FEATURES, choice, 15, POOLING, "pooled", SIZE), feeds)
    boxes, scores = [], []
    for level in found:
        own, score, _ = level_boxes(level, feeds, 1, choice)
        kept = greedy(own, score, 0.7, 0.0)[:15]
        boxes.append(own[kept])
        scores.append(score[kept])
    order = np.argsort(-np.concatenate(scores), kind="stable")[:30]
    expected = np.concatenate(boxes)[order]
    np.testing.assert_allclose(answers["rois"], expected, atol=1e-3)
    pooled = np.stack([aligned(feeds, box) for box in answers["rois"].astype(np.float64)])
    np.testing.assert_allclose(answers["pooled"], pooled, atol=1e-4)
    sides = np.sqrt(np.prod(expected[:, 2:] - expected[:, :2], axis=1)) / POOLING.base_scale
    assert {0, 1, 2} <= set(np.clip(np.floor(np.log2(sides)), 0, 2).astype(int))


@pytest.mark.parametrize("shares", [False, True])
def test_two_stages_answer_as_numpy_does(shares: bool) -> None:
    random, choice = np.random.default_rng(4), Choice(0.5, 20, 0.05, coding=CODING)
    corner = random.uniform(0, 40, (25, 2))
    rois = np.concatenate([corner, corner + random.uniform(5, 25, (25, 2))], 1).astype(np.float32)
    cls, loc = random.normal(size=(25, 4)), random.normal(size=(25, 4 if shares else 16))
    feeds = {"cls": cls.astype(np.float32), "loc": loc.astype(np.float32), "rois": rois}
    answers = run(bbox_graph("cls", "loc", 4, shares, choice, SIZE), feeds)
    scores = np.exp(feeds["cls"]) / np.exp(feeds["cls"]).sum(1, keepdims=True)
    deltas = np.broadcast_to(feeds["loc"].reshape(25, -1, 4), (25, 4, 4))[:, 1:]
    boxes = decode(deltas, rois[:, None], CODING, SIZE).reshape(-1, 4)
    same(answers, by_class(boxes, scores[:, 1:].reshape(-1), np.tile(np.arange(3), 25), choice))


def test_without_proposals_there_is_no_answer() -> None:
    found = levels((2.0,))
    feeds = {**drawn(5, found, 1), **pictures(5)}
    answers = run(proposals_graph(found, FEATURES, Choice(0.7, 30, 1.0), 15, POOLING, "pooled", SIZE), feeds)
    assert answers["rois"].shape == (0, 4)
    assert answers["pooled"].shape == (0, 2, 3, 3)
    empty = {"cls": np.zeros((0, 4)), "loc": np.zeros((0, 16)), "rois": answers["rois"]}
    assert run(bbox_graph("cls", "loc", 4, False, Choice(0.5, 20), SIZE), empty)["boxes"].shape == (0, 4)
