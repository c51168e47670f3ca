from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from models.data.batch import Batch, Detections
from models.data.coco import Coco
from models.evaluation.accuracy import Accuracy
from models.evaluation.coco_api import CocoApi
from models.evaluation.coco_map import CocoMap
from onnxsparse.errors import OptionError


def truth(rows: Sequence[tuple[int, int, Sequence[float], bool]], images: int = 4, categories: int = 3) -> Coco:
    """Annotations (image, class, x y width height, crowd); the ids of images fall, those of categories have gaps."""
    rows = sorted(rows, key=lambda row: row[0])
    corners = np.asarray([row[2] for row in rows], np.float64).reshape(-1, 4)
    counts = np.bincount([row[0] for row in rows] or [0], minlength=images) * bool(rows)
    return Coco(
        "truth.json",
        [100 - 7 * one for one in range(images)],
        [""] * images,
        np.full((images, 2), 300),
        [3 * one + 2 for one in range(categories)],
        [""] * categories,
        np.concatenate([[0], np.cumsum(counts)]),
        np.asarray([row[1] for row in rows], np.int64),
        corners,
        corners[:, 2] * corners[:, 3],
        np.asarray([row[3] for row in rows], bool),
    )


def add(evaluator: Any, coco: Coco, found: Sequence[tuple[int, int, Sequence[float], float]]) -> None:
    for image in range(len(coco.ids)):
        mine = [row for row in found if row[0] == image]
        boxes = np.asarray([row[2] for row in mine], np.float64).reshape(-1, 4)
        corners = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)
        scores, labels = np.asarray([row[3] for row in mine]), np.asarray([row[1] for row in mine], np.int64)
        evaluator.add(
            Batch(np.zeros((1, 3, 1, 1), np.float32), [image], [0], ids=[coco.ids[image]]),
            [Detections(corners, scores, labels)],
        )


SIDES = st.sampled_from([0, 1, 10, 32, 33, 60, 96, 97, 150])
BOXES = st.tuples(
    st.integers(0, 6).map(lambda one: 10.0 * one), st.integers(0, 3).map(lambda one: 7.5 * one), SIDES, SIDES
)
OBJECTS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 3), BOXES, st.sampled_from([False, False, True])), max_size=14
)
FOUND = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3), BOXES, st.sampled_from([0.1, 0.5, 0.9])), max_size=25)


@settings(max_examples=40, deadline=None)
@given(OBJECTS, FOUND)
@example([], [])
@example([(0, 1, (0, 0, 10, 10), False)], [])
@example([], [(0, 1, (0, 0, 10, 10), 0.5)])
@example([(0, 1, (0, 0, 40, 40), True)], [(0, 1, (0, 0, 20, 20), 0.5), (0, 1, (5, 5, 20, 20), 0.5)])
def test_numpy_says_what_pycocotools_says(objects: Any, found: Any) -> None:
    coco = truth(objects)
    mine, reference = CocoMap(coco), CocoApi(coco)
    for evaluator in (mine, reference):
        add(evaluator, coco, found)
    wanted = reference.figures()
    assert mine.figures() == pytest.approx(wanted, abs=1e-9)
    assert mine.main in wanted


def test_many_detections_of_one_image_are_cut_after_a_hundred() -> None:
    random = np.random.default_rng(0)
    objects = [
        (one % 4, 1 + one % 3, [*random.uniform(0, 200, 2), *random.uniform(5, 90, 2)], False) for one in range(90)
    ]
    near = [
        (image, kind, np.abs(np.asarray(box) + random.normal(0, 4, 4)).tolist(), float(np.round(random.random(), 1)))
        for image, kind, box, _ in objects
        for _ in range(18)
    ]
    coco = truth(objects)
    mine, reference = CocoMap(coco), CocoApi(coco)
    for evaluator in (mine, reference):
        add(evaluator, coco, near)
    assert mine.figures() == pytest.approx(reference.figures(), abs=1e-9)
    assert 0 < mine.figures()["mAP"] < 1


@pytest.mark.parametrize("evaluator", [CocoMap, CocoApi])
def test_classes_that_the_annotations_do_not_have_count_neither_way(evaluator: Any) -> None:
    coco = truth([(0, 1, (0, 0, 9, 9), False)])
    mine = evaluator(coco)
    add(mine, coco, [(0, 4, (0, 0, 9, 9), 0.9), (0, 1, (0, 0, 9, 9), 0.5)])
    assert mine.figures()["mAP"] == pytest.approx(1)


def test_an_image_that_the_annotations_do_not_have_is_refused() -> None:
    coco = truth([(0, 1, (0, 0, 9, 9), False)])
    with pytest.raises(OptionError, match="no image 5"):
        CocoMap(coco).add(Batch(np.zeros((1, 3, 1, 1)), [0], [0], ids=[5]), [Detections()])


def test_accuracy_counts_the_first_k() -> None:
    accuracy = Accuracy([1, 2])
    labels = [np.asarray([one]) for one in (0, 1, 2, 9)]
    scores = [[0.1, 0.2, 0.3], [0.5, 0.5, 0.1], [np.nan, 0.0, np.nan], [1.0, 2.0, 3.0]]
    accuracy.add(Batch(np.zeros((4, 3, 1, 1)), range(4), range(4), labels), scores)
    assert accuracy.figures() == {"top1": 0.0, "top2": 0.25}
    assert accuracy.main == "top1"
