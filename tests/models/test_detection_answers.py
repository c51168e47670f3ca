"""Answers of detectors from arrays of numpy, as a runtime gives them: scores, suppression, pixels of the file."""

from __future__ import annotations

import numpy as np

from models.data.batch import Batch
from models.detection.decoding import decoder

NMS = {"type": "naive", "nms_iou_thresh": 0.5}
ANCHORS = {"type": "hand_craft", "kwargs": {"anchor_ratios": [1], "anchor_scales": [2]}}
SIZES = {"pre_nms_score_thresh": 0.5, "pre_nms_top_n": 6, "post_nms_top_n": 6}


def a_batch(count=1):
    image = np.zeros((count, 3, 32, 64), np.float32)
    return Batch(image, range(count), range(count), sizes=[(32, 48)] * count, scales=[(2.0, 4.0)] * count)


def outputs(**logits):
    """One level of stride 8 with two classes: logits by class, row and column, such as c0_1_2=3.0."""
    cls = np.full((1, 2, 4, 8), -9.0, np.float32)
    for name, value in logits.items():
        at, row, column = map(int, name[1:].split("_"))
        cls[0, at, row, column] = value
    return [(cls, np.zeros((1, 4, 4, 8), np.float32))]


def retina(**more):
    merger = {"type": "retina", "kwargs": {"top_n": 3, "nms": NMS}}
    predictor = {"type": "base", "kwargs": {**SIZES, "merger": merger, **more}}
    return decoder(
        "retina_post", {"num_classes": 3, "cfg": {"anchor_generator": ANCHORS, "roi_predictor": predictor}}, [8]
    )


def test_answers_of_one_stage_are_the_best_of_all_classes_in_pixels_of_the_file():
    found = retina().answers(outputs(c0_1_2=3.0, c1_1_2=2.0, c0_3_0=1.0, c0_0_5=0.5), a_batch())[0]
    assert found.labels.tolist() == [1, 2, 1]
    np.testing.assert_allclose(found.scores, 1 / (1 + np.exp([-3.0, -2.0, -1.0])), rtol=1e-6)
    np.testing.assert_allclose(found.boxes[0], np.asarray([12, 4, 28, 20]) / (4, 2, 4, 2))
    np.testing.assert_allclose(found.boxes[2], np.asarray([0, 20, 12, 32]) / (4, 2, 4, 2))  # cut at two edges


def test_a_score_at_the_threshold_is_no_answer_nor_is_a_small_box():
    assert len(retina().answers(outputs(c0_1_2=0.0), a_batch())[0].scores) == 0
    logits = outputs(c0_1_2=1.0, c0_3_0=2.0)
    assert len(retina(roi_min_size=14).answers(logits, a_batch())[0].scores) == 1


def test_boxes_beyond_the_image_before_padding_are_cut_there():
    found = retina().answers(outputs(c0_1_5=1.0), a_batch())[0]
    np.testing.assert_allclose(found.boxes[0], np.asarray([36, 4, 48, 20]) / (4, 2, 4, 2))


def test_proposals_are_of_training_or_not():
    def phase(count):
        kwargs = {**SIZES, "nms": NMS, "merger": {"type": "rpn", "kwargs": {"top_n": count}}}
        return {"roi_predictor": {"type": "base", "kwargs": kwargs}}

    cfg = {"anchor_generator": ANCHORS, "train": phase(5), "test": phase(1)}
    made = decoder("rpn_post", {"num_classes": 2, "cfg": cfg}, [8])
    cls = outputs(c0_1_2=3.0, c0_3_0=2.0)[0][0][:, :1]
    loc = np.zeros((1, 4, 4, 8), np.float32)
    (boxes, scores), *_ = made.proposals([(cls, loc)], a_batch(), training=True)
    assert boxes.tolist() == [[12, 4, 28, 20], [0, 20, 12, 32]]
    assert scores[0] > scores[1]
    assert len(made.proposals([(cls, loc)], a_batch(), training=False)[0][0]) == 1


def test_answers_of_the_second_stage_belong_to_the_image_of_their_region():
    predictor = {"type": "faster", "kwargs": {"nms": NMS, "bbox_score_thresh": 0.5, "top_n": 5}}
    made = decoder("bbox_post", {"cfg": {"share_location": True, "bbox_predictor": predictor}}, [8])
    rois = np.asarray([[1, 8, 8, 24, 24], [0, 8, 8, 24, 24], [1, 8, 8, 24, 22]], np.float32)
    cls = np.asarray([[0, 5, 0], [9, 0, 0], [0, 4, 0]], np.float32)
    nothing, one = made.answers(cls, np.zeros((3, 4), np.float32), rois, a_batch(2))
    assert len(nothing.scores) == 0
    assert one.labels.tolist() == [1]
    np.testing.assert_allclose(one.boxes, [[2, 4, 6, 12]])
