"""Post-processing as ONNX graphs: what onnxruntime makes of them is what decoding in numpy makes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from models.data.batch import Batch, Detections
from models.detection.anchors import Anchors
from models.detection.boxes import Deltas
from models.detection.decoding import AnchorDecoder, BoxDecoder, Predictor, RetinaDecoder
from models.export.detector_nodes import Level
from models.export.one_stage import retina_graph
from models.export.two_stage import Feature, Pooling, bbox_graph, proposals_graph

Array = np.ndarray[Any, Any]
DELTAS = Deltas(stds=(0.1, 0.1, 0.2, 0.2))
SIZE = np.array([64.0, 64.0])
SHAPES = {8: (8, 8), 16: (4, 4), 32: (2, 2)}


def run(proto: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, Array]:
    onnx.checker.check_model(proto, full_check=True)
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 3  # an input with a default makes a warning
    session = onnxruntime.InferenceSession(proto.SerializeToString(), quiet, providers=["CPUExecutionProvider"])
    named = {name: value.astype(np.float32) for name, value in feeds.items()}
    return dict(zip([one.name for one in session.get_outputs()], session.run(None, named)))


def decoder(classes: int, scales: tuple[float, ...] = (3.0, 4.0)) -> AnchorDecoder:
    return AnchorDecoder(Anchors((1.0, 0.5), scales, tuple(SHAPES)), DELTAS, classes)


def levels(of: AnchorDecoder) -> list[Level]:
    shapes = list(SHAPES.values())
    anchors = np.split(of.anchors.at(shapes), np.cumsum(of.anchors.counts(shapes))[:-1])
    return [Level(f"cls_{at}", f"loc_{at}", anchors[at], shape) for at, shape in enumerate(shapes)]


def drawn(seed: int, of: AnchorDecoder, shift: float = -2.0) -> dict[str, Array]:
    random, feeds = np.random.default_rng(seed), {}
    for one in levels(of):
        feeds[one.cls] = random.normal(shift, 1.5, (1, one.count * of.classes, *one.shape)).astype(np.float32)
        feeds[one.loc] = random.normal(0, 1, (1, one.count * 4, *one.shape)).astype(np.float32)
    return feeds


def outputs(feeds: dict[str, Array]) -> list[tuple[Array, Array]]:
    return [(feeds[f"cls_{at}"], feeds[f"loc_{at}"]) for at in range(len(SHAPES))]


def batch(height: int = 64, width: int = 64) -> Batch:
    return Batch(np.zeros((1, 3, 64, 64), np.float32), [0], [0], sizes=[(height, width)])


def same(found: dict[str, Array], expected: Detections) -> None:
    """In one order, but that scores which rounding alone tells apart may have changed places."""
    np.testing.assert_allclose(found["scores"], expected.scores, atol=1e-5)
    ties = np.cumsum(np.diff(expected.scores, prepend=1.0) < -1e-6)
    ours, theirs = (
        np.lexsort((*boxes.round(2).T, labels, ties))
        for boxes, labels in ((found["boxes"], found["labels"]), (expected.boxes, expected.labels))
    )
    np.testing.assert_allclose(found["boxes"][ours], expected.boxes[theirs], atol=1e-3)
    np.testing.assert_array_equal(found["labels"][ours], expected.labels[theirs])


# -- one stage

PREDICTORS = {
    "by class": Predictor(0.05, 1000, 1000, 0.0, None, 0.5, 100),
    "few of each level": Predictor(0.05, 30, 20, 0.0, None, 0.5, 100),
    "few": Predictor(0.05, 1000, 1000, 0.0, None, 0.3, 7),
    "in each level": Predictor(0.05, 1000, 15, 0.0, 0.5, None, 100),
    "in each level and by class": Predictor(0.05, 1000, 25, 0.0, 0.7, 0.4, 100),
    "only large ones": Predictor(0.05, 30, 20, 24.0, None, 0.5, 100),
    "no suppression": Predictor(0.3, 1000, 1000, 0.0, None, None, 1000),
}


@pytest.mark.parametrize("name", PREDICTORS)
def test_one_stage_answers_as_numpy_does(name: str) -> None:
    of, by = decoder(3), PREDICTORS[name]
    feeds = drawn(1, of)
    expected = RetinaDecoder(of, by).answers(outputs(feeds), batch())[0]
    assert 7 <= len(expected.scores) <= by.top_n
    same(run(retina_graph(levels(of), 3, DELTAS, by, SIZE), feeds), expected)


@settings(deadline=None, max_examples=10)
@example(391, 3, 20, 20)  # two scores are the same but for rounding
@given(st.integers(0, 1000), st.integers(1, 4), st.integers(20, 64), st.integers(20, 64))
def test_boxes_end_where_the_image_did_before_padding(seed: int, classes: int, height: int, width: int) -> None:
    of, by = decoder(classes), PREDICTORS["by class"]
    feeds = drawn(seed, of)
    expected = RetinaDecoder(of, by).answers(outputs(feeds), batch(height, width))[0]
    feeds["size"] = np.array([height, width])
    same(run(retina_graph(levels(of), classes, DELTAS, by, SIZE), feeds), expected)


def test_no_box_where_no_score_is_high_enough() -> None:
    of = decoder(3)
    graph = retina_graph(levels(of), 3, DELTAS, PREDICTORS["by class"], SIZE)
    same(run(graph, drawn(0, of, shift=-30.0)), Detections())


# -- two stages

FEATURES = [Feature(f"feature_{at}", (1, 2, *shape), stride) for at, (stride, shape) in enumerate(SHAPES.items())]
POOLING = Pooling(3, 0, 8.0)
PROPOSALS = Predictor(0.0, 20, 15, 0.0, 0.7, None, 30)


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


def level_of(box: Array) -> int:
    root = np.sqrt(np.prod(box[2:] - box[:2]))
    return int(np.clip(np.floor(np.log2(max(root, 1e-6) / POOLING.base_scale)), 0, len(FEATURES) - 1))


def aligned(feeds: dict[str, Array], box: Array) -> Array:
    """The mean of bilinear samples in every bin of one box, from the level of its size."""
    feature = FEATURES[level_of(box)]
    x1, y1, x2, y2 = box / feature.stride - 0.5
    high, wide = (y2 - y1) / POOLING.size, (x2 - x1) / POOLING.size
    ys, xs = max(int(np.ceil(high)), 1), max(int(np.ceil(wide)), 1)
    made = np.zeros((feature.shape[1], POOLING.size, POOLING.size))
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
    return {one.name: random.normal(size=one.shape).astype(np.float32) for one in FEATURES}


def test_proposals_and_their_features_are_those_of_numpy() -> None:
    of = decoder(1, (2.0,))
    feeds = {**drawn(3, of), **pictures(3)}
    answers = run(proposals_graph(levels(of), FEATURES, DELTAS, PROPOSALS, POOLING, "pooled", SIZE), feeds)
    expected = of.best(outputs(feeds), 0, (64, 64), PROPOSALS)[0]
    np.testing.assert_allclose(answers["rois"], expected, atol=1e-3)
    pooled = np.stack([aligned(feeds, box) for box in answers["rois"].astype(np.float64)])
    np.testing.assert_allclose(answers["pooled"], pooled, atol=1e-4)
    assert {level_of(box) for box in expected} == {0, 1, 2}


@pytest.mark.parametrize("shares", [False, True])
def test_two_stages_answer_as_numpy_does(shares: bool) -> None:
    random, by = np.random.default_rng(4), BoxDecoder(DELTAS, shares, 0.05, 20, 0.5)
    corner = random.uniform(0, 40, (25, 2))
    rois = np.concatenate([corner, corner + random.uniform(5, 25, (25, 2))], 1).astype(np.float32)
    cls, loc = random.normal(size=(25, 4)), random.normal(size=(25, 4 if shares else 16))
    feeds = {"cls": cls.astype(np.float32), "loc": loc.astype(np.float32), "rois": rois}
    numbered = np.concatenate([np.zeros((25, 1), np.float32), rois], 1)
    expected = by.answers(feeds["cls"], feeds["loc"], numbered, batch())[0]
    same(run(bbox_graph("cls", "loc", 4, by, SIZE), feeds), expected)


def test_without_proposals_there_is_no_answer() -> None:
    of, none = decoder(1, (2.0,)), Predictor(1.0, 20, 15, 0.0, 0.7, None, 30)
    feeds = {**drawn(5, of), **pictures(5)}
    answers = run(proposals_graph(levels(of), FEATURES, DELTAS, none, POOLING, "pooled", SIZE), feeds)
    assert answers["pooled"].shape == (0, 2, 3, 3)
    empty = {"cls": np.zeros((0, 4)), "loc": np.zeros((0, 16)), "rois": answers["rois"]}
    same(run(bbox_graph("cls", "loc", 4, BoxDecoder(DELTAS, False, 0.0, 20, 0.5), SIZE), empty), Detections())
