"""What detectors learn from and answer: losses against slow formulas, RoIAlign against the runtime's, refusals."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from threading import Barrier, Thread

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from onnx import TensorProto, helper

from models.data.batch import Batch
from models.detection import bbox_post, bbox_pre, losses, retina_post, rpn_post, teaching
from models.detection.roi_align import levels_of, roi_align
from onnxsparse.errors import OptionError

STRIDES = [8, 16]
SHAPES = [(6, 8), (3, 4)]
NORMALIZE = {"means": [0, 0, 0, 0], "stds": [0.1, 0.1, 0.2, 0.2]}
NMS = {"type": "naive", "nms_iou_thresh": 0.5}
PREDICTOR = {"pre_nms_score_thresh": 0.05, "pre_nms_top_n": 50, "post_nms_top_n": 20, "roi_min_size": 0}


def typed(kind, **kwargs):
    return {"type": kind, "kwargs": kwargs}


def max_iou(positive, negative, **more):
    return typed("max_iou", positive_iou_thresh=positive, negative_iou_thresh=negative, **more)


def retina(cls_loss=None, loc_loss=None, supervisor=None, **more):
    cfg = {
        "cls_loss": cls_loss or typed("quality_focal_loss", gamma=2.0),
        "loc_loss": loc_loss or typed("iou_loss", loss_type="giou"),
        "anchor_generator": typed("hand_craft", anchor_ratios=[1], anchor_scales=[2, 3]),
        "roi_supervisor": supervisor or typed("atss", top_n=9),
        "roi_predictor": typed("base", **PREDICTOR, merger=typed("retina", top_n=10, nms=NMS)),
    }
    return {"num_classes": 4, "cfg": {**cfg, **more}}


def rpn():
    part = {"roi_predictor": typed("base", **PREDICTOR, nms=NMS, merger=typed("rpn", top_n=12))}
    supervisor = typed(
        "rpn",
        allowed_border=-1,
        matcher=max_iou(0.7, 0.3, ignore_iou_thresh=0.5, allow_low_quality_match=True, low_quality_thresh=0.3),
        sampler=typed("naive", batch_size=16, positive_percent=0.5),
    )
    cfg = {
        "cls_loss": {"type": "sigmoid_cross_entropy"},
        "loc_loss": {"type": "l1_loss"},
        "anchor_generator": typed("hand_craft", anchor_ratios=[0.5, 1], anchor_scales=[2]),
        "roi_supervisor": supervisor,
        "train": part,
        "test": part,
    }
    return {"num_classes": 2, "cfg": cfg}


def pre():
    supervisor = typed(
        "faster",
        bbox_normalize=NORMALIZE,
        matcher=max_iou(0.5, 0.5),
        sampler=typed("naive", batch_size=8, positive_percent=0.5),
    )
    fpn = {"fpn_levels": [0, 1], "base_scale": 14}
    return {
        "cfg": {"bbox_supervisor": supervisor, "fpn": fpn, "roipooling": {"method": "roialignpool", "pool_size": 7}}
    }


def post(shared=False):
    predictor = typed(
        "faster", bbox_normalize=NORMALIZE, share_location=shared, nms=NMS, bbox_score_thresh=0.0, top_n=5
    )
    return {
        "cfg": {
            "cls_loss": typed("softmax_cross_entropy", class_dim=-1),
            "loc_loss": {"type": "l1_loss"},
            "share_location": shared,
            "bbox_normalize": NORMALIZE,
            "bbox_predictor": predictor,
        }
    }


def a_batch(objects=(2, 0, 1)):
    """Images of 48 x 64 with so many objects each; the first has a crowd."""
    draws = np.random.default_rng(0)
    corners = [draws.uniform(0, 24, (count, 2)) for count in objects]
    boxes = [np.concatenate([each, each + draws.uniform(14, 24, each.shape)], 1).astype(np.float32) for each in corners]
    none = np.zeros((0, 4), np.float32)
    return Batch(
        np.zeros((len(objects), 3, 48, 64), np.float32),
        list(range(len(objects))),
        [7 * at for at in range(len(objects))],
        [np.arange(1, count + 1) for count in objects],
        boxes,
        [np.asarray([[40, 20, 64, 48]], np.float32), *[none] * (len(objects) - 1)],
        [(48, 64)] * len(objects),
        [(2.0, 0.5)] * len(objects),
    )


def part_of(batch, at):
    cut = {name: getattr(batch, name)[at] for name in ("image", "keys", "seeds", "labels", "boxes", "ignored")}
    return replace(batch, **cut, sizes=batch.sizes[at], scales=batch.scales[at])


def some_outputs(count, classes, anchors=2, seed=0):
    torch.manual_seed(seed)
    return [
        tuple(torch.randn(count, anchors * width, *shape).requires_grad_() for width in (classes, 4))
        for shape in SHAPES
    ]


def alone(value):
    return value


def in_two(call):
    """Run a function of (which half, total) as two processes would, each with the sum of both."""
    gate, values, found = Barrier(2, timeout=20), {}, {}

    def run(which):
        def total(value):
            values[which] = value
            gate.wait()
            both = values[0] + values[1]
            gate.wait()
            return both

        found[which] = call(which, total)

    threads = [Thread(target=run, args=(which,)) for which in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return {name: float((found[0][name] + found[1][name]).detach()) for name in found[0]}


def numbers(found):
    return {name: float(value.detach()) for name, value in found.items()}


RETINAS = {
    "improved": retina(),
    "focal": retina(
        typed("sigmoid_focal_loss", alpha=0.25, gamma=2.0),
        typed("smooth_l1_loss", beta=0.11),
        typed("retina", matcher=max_iou(0.5, 0.4, allow_low_quality_match=True)),
        bbox_normalize=NORMALIZE,
    ),
    "plain": retina({"type": "sigmoid_cross_entropy"}, {"type": "l1_loss"}),
}


@pytest.mark.parametrize("name", RETINAS)
@pytest.mark.parametrize("objects", [(2, 0, 1), (0, 0)])
def test_losses_of_one_stage_are_finite_with_and_without_objects_and_so_are_gradients(name, objects):
    made, outputs = retina_post.make(RETINAS[name], STRIDES), some_outputs(len(objects), 3)
    found = made.losses(outputs, a_batch(objects), alone)
    sum(found.values()).backward()
    assert all(torch.isfinite(each.grad).all() for level in outputs for each in level)
    assert (numbers(found)["loc_loss"] > 0) == any(objects)
    assert numbers(found)["cls_loss"] > 0


@pytest.mark.parametrize("name", RETINAS)
def test_losses_of_one_stage_fall_when_outputs_follow_them(name):
    made, outputs, batch = retina_post.make(RETINAS[name], STRIDES), some_outputs(3, 3), a_batch()
    optimizer = torch.optim.Adam([each for level in outputs for each in level], 0.3)
    for _ in range(40):
        optimizer.zero_grad()
        sum(made.losses(outputs, batch, alone).values()).backward()
        optimizer.step()
    answers = made.answers(outputs, batch)
    for image, objects in enumerate(batch.boxes):
        for box, label in zip(objects, batch.labels[image]):
            scaled = box / (0.5, 2, 0.5, 2)  # answers are in the pixels of the file
            near = np.abs(answers[image].boxes - scaled).max(1) < 8
            assert label in answers[image].labels[near]


def test_the_parts_of_two_processes_add_up_to_the_loss_of_one():
    made, batch, outputs = retina_post.make(retina(), STRIDES), a_batch((2, 0, 1)), some_outputs(3, 3)
    cuts = [slice(0, 1), slice(1, 3)]

    def one_stage(which, total):
        levels = [tuple(each[cuts[which]] for each in level) for level in outputs]
        return made.losses(levels, part_of(batch, cuts[which]), total)

    assert in_two(one_stage) == pytest.approx(numbers(made.losses(outputs, batch, alone)), rel=1e-5)
    taught = [tuple(each.detach() for each in level) for level in some_outputs(3, 3, seed=1)]

    def label_free(which, total):
        halves = ([tuple(each[cuts[which]] for each in level) for level in of] for of in (outputs, taught))
        return teaching.one_stage(*halves, total)

    assert in_two(label_free) == pytest.approx(numbers(teaching.one_stage(outputs, taught, alone)), rel=1e-5)
    torch.manual_seed(0)
    answer, wanted = (tuple(torch.randn(7, width) for width in (4, 16)) for _ in range(2))
    regions = [slice(0, 2), slice(2, 7)]

    def second_stage(which, total):
        return teaching.second_stage(*(tuple(each[regions[which]] for each in of) for of in (answer, wanted)), total)

    assert in_two(second_stage) == pytest.approx(numbers(teaching.second_stage(answer, wanted, alone)), rel=1e-5)


class SecondStage:
    """The losses of a two-stage detector with heads that are constant, of some images."""

    def __init__(self):
        self.rpn, self.pre, self.post = rpn_post.make(rpn(), STRIDES), bbox_pre.make(pre(), STRIDES), None
        self.post = bbox_post.make(post(), STRIDES)
        torch.manual_seed(3)
        self.head = torch.nn.Linear(3 * 49, 4 + 16)

    def losses(self, outputs, features, batch, total):
        found = dict(self.rpn.losses(outputs, batch, total))
        rois, targets = self.pre.sample(self.rpn.proposals(outputs, batch, True), batch)
        heads = self.head(self.pre.pool(features, rois).flatten(1))
        return {**found, **self.post.losses(heads[:, :4], heads[:, 4:], targets, total)}


def test_the_parts_of_two_processes_add_up_in_two_stages_too():
    net, batch, outputs = SecondStage(), a_batch((2, 0, 1)), some_outputs(3, 1)
    features = [torch.randn(3, 3, *shape) for shape in SHAPES]
    cuts = [slice(0, 2), slice(2, 3)]

    def half(which, total):
        levels = [tuple(each[cuts[which]] for each in level) for level in outputs]
        own = [each[cuts[which]] for each in features]
        return net.losses(levels, own, part_of(batch, cuts[which]), total)

    whole = net.losses(outputs, features, batch, alone)
    assert in_two(half) == pytest.approx(numbers(whole), rel=1e-5)
    assert len(whole) == 4


@pytest.mark.parametrize("objects", [(2, 0, 1), (0, 0)])
def test_two_stages_have_finite_losses_and_gradients_with_and_without_objects(objects):
    net, outputs = SecondStage(), some_outputs(len(objects), 1)
    features = [torch.randn(len(objects), 3, *shape, requires_grad=True) for shape in SHAPES]
    sum(net.losses(outputs, features, a_batch(objects), alone).values()).backward()
    given = [*(each for level in outputs for each in level), *features, net.head.weight]
    assert all(torch.isfinite(each.grad).all() for each in given)


@pytest.mark.parametrize("shared", [False, True])
def test_answers_of_the_second_stage_are_decoded_boxes_in_pixels_of_the_file(shared):
    batch, made = a_batch((1,)), bbox_post.make(post(shared), STRIDES)
    rois = np.asarray([[0, 8, 8, 24, 24], [0, 30, 30, 46, 60]], np.float32)
    cls = torch.tensor([[0.0, 0, 9, 0], [9.0, 0, 0, 0]])
    answer = made.answers(cls, torch.zeros(2, 4 if shared else 16), rois, batch)[0]
    assert answer.labels[0] == 2
    assert len(answer.boxes) == 5  # every class has a score above 0: the best, whatever their class
    np.testing.assert_allclose(answer.boxes[0], np.asarray([8, 8, 24, 24]) / (0.5, 2, 0.5, 2), rtol=1e-5)
    assert (np.diff(answer.scores) <= 0).all()


def test_formulas_of_focal_losses_and_generalized_overlap():
    logits, target = torch.tensor([0.3, -2.0]), torch.tensor([1.0, 0.0])
    p = 1 / (1 + np.exp([-0.3, 2.0]))
    wanted = [-0.25 * (1 - p[0]) ** 2 * np.log(p[0]), -0.75 * p[1] ** 2 * np.log(1 - p[1])]
    np.testing.assert_allclose(losses.sigmoid_focal(logits, target), wanted, rtol=1e-5)
    y = 0.6
    entropy = -(y * np.log(p[0]) + (1 - y) * np.log(1 - p[0]))
    np.testing.assert_allclose(
        losses.quality_focal(logits[:1], torch.tensor([y])), [abs(y - p[0]) ** 2 * entropy], rtol=1e-5
    )
    apart = torch.tensor([[0.0, 0, 2, 2], [0.0, 0, 2, 2]]), torch.tensor([[3.0, 0, 5, 2], [1.0, 0, 3, 2]])
    iou, giou = losses.overlaps(*apart)
    np.testing.assert_allclose(iou, [0, 2 / 6], rtol=1e-5)
    np.testing.assert_allclose(giou, [-2 / 10, 2 / 6], rtol=1e-5)
    row = torch.tensor([[1.0, 2.0, 0.5]])
    share = torch.tensor([[0.1 / 3, 0.9 + 0.1 / 3, 0.1 / 3]])
    smoothed = -(share * row.log_softmax(-1)).sum()
    np.testing.assert_allclose(losses.softmax_entropy(row, torch.tensor([1]), 0.1), [smoothed], rtol=1e-5)


def test_boxes_without_area_give_no_nan_in_the_loss_nor_in_its_gradient():
    flat = torch.tensor([[3.0, 3, 3, 3], [0, 0, 0, 5]], requires_grad=True)
    (1 - losses.overlaps(flat, flat.detach())[1]).sum().backward()
    assert torch.isfinite(flat.grad).all()


def test_a_network_that_says_what_its_teacher_says_has_nothing_to_learn_and_another_has_gradients():
    outputs, taught = some_outputs(2, 3), some_outputs(2, 3, seed=1)
    with torch.no_grad():
        same = teaching.one_stage(outputs, outputs, alone)
    assert numbers(same) == pytest.approx(dict.fromkeys(same, 0.0), abs=1e-6)
    sum(
        teaching.one_stage(outputs, [tuple(each.detach() for each in level) for level in taught], alone).values()
    ).backward()
    assert all(each.grad.abs().sum() > 0 for level in outputs for each in level)


@pytest.mark.parametrize("width", [4, 16])
def test_the_second_stage_learns_from_its_teacher_too(width):
    torch.manual_seed(0)
    answer, wanted = ((torch.randn(6, 4).requires_grad_(), torch.randn(6, width).requires_grad_()) for _ in range(2))
    fixed = tuple(each.detach() for each in wanted)
    same = teaching.second_stage(wanted, fixed, alone)
    assert numbers(same) == pytest.approx(dict.fromkeys(same, 0.0), abs=1e-6)
    sum(teaching.second_stage(answer, fixed, alone).values()).backward()
    assert all(each.grad.abs().sum() > 0 for each in answer)


def onnx_roi_align(feature, rois, stride, sampling):
    node = helper.make_node(
        "RoiAlign",
        ["x", "rois", "at"],
        ["y"],
        output_height=7,
        output_width=7,
        sampling_ratio=sampling,
        spatial_scale=1 / stride,
        coordinate_transformation_mode="half_pixel",
    )
    names = (("x", TensorProto.FLOAT, list(feature.shape)), ("rois", TensorProto.FLOAT, [None, 4]))
    inputs = [helper.make_tensor_value_info(*each) for each in (*names, ("at", TensorProto.INT64, [None]))]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "pool", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": feature, "rois": rois[:, 1:], "at": rois[:, 0].astype(np.int64)})[0]


@pytest.mark.parametrize("sampling", [0, 1, 2])
def test_roi_align_over_all_levels_is_that_of_the_runtime(sampling):
    draws = np.random.default_rng(0)
    features = [draws.standard_normal((2, 3, *shape)).astype(np.float32) for shape in ((24, 32), (12, 16), (6, 8))]
    corners = draws.uniform(-8, 90, (40, 2))  # some of them beyond the image
    boxes = np.concatenate([corners, corners + draws.uniform(0, 90, (40, 2))], 1)
    boxes[0, 2:] = boxes[0, :2]  # and one without area
    rois = np.concatenate([draws.integers(0, 2, (40, 1)), boxes], 1).astype(np.float32)
    levels = levels_of(rois[:, 1:], 12.0, 3)
    assert set(levels) == {0, 1, 2}
    found = roi_align([torch.from_numpy(each) for each in features], rois, levels, (4, 8, 16), 7, sampling).numpy()
    for level, stride in enumerate((4, 8, 16)):
        own = levels == level
        wanted = onnx_roi_align(features[level], rois[own], stride, sampling)
        np.testing.assert_allclose(found[own], wanted, rtol=0, atol=4e-6)


def test_gradients_of_roi_align_are_those_of_differences():
    torch.manual_seed(0)
    features = [torch.randn(2, 2, *shape, dtype=torch.float64, requires_grad=True) for shape in ((4, 5), (2, 3))]
    rois = np.asarray([[0, 1, 2, 9, 13], [1, 0, 0, 20, 16], [1, 3, 3, 3, 3]], np.float32)
    levels = levels_of(rois[:, 1:], 8.0, 2)
    assert torch.autograd.gradcheck(lambda *each: roi_align(each, rois, levels, (4, 8), 2, 0), features)


def test_no_region_at_all_is_pooled_to_nothing():
    features = [torch.randn(1, 3, *shape) for shape in SHAPES]
    made = bbox_pre.make(pre(), STRIDES)
    assert made.pool(features, made.rois([(np.zeros((0, 4), np.float32), np.zeros(0, np.float32))])).shape == (
        0,
        3,
        7,
        7,
    )


MAKES = {
    "retina_post": (retina_post.make, retina),
    "rpn_post": (rpn_post.make, rpn),
    "BboxFC_Pre": (bbox_pre.make, pre),
    "bbox_post": (bbox_post.make, post),
}
WRONG = [
    ("retina_post", ["cfg", "cls_loss", "type"], "quality_focal", "quality_focal_loss"),
    ("retina_post", ["cfg", "cls_loss", "kwargs", "gama"], 2, "gamma"),
    ("retina_post", ["cfg", "loc_loss", "kwargs", "loss_type"], "ciou", "giou"),
    ("retina_post", ["cfg", "anchor_generator", "type"], "kmeans", "hand_craft"),
    ("retina_post", ["cfg", "anchor_generator", "kwargs", "anchor_ratios"], "1", "list"),
    ("retina_post", ["cfg", "roi_supervisor", "kwargs", "topn"], 9, "top_n"),
    ("retina_post", ["cfg", "roi_predictor", "kwargs", "merger", "kwargs", "nms", "nms_iou_thresh"], 2, "at most 1"),
    ("retina_post", ["cfg", "ancor_generator"], {}, "anchor_generator"),
    ("rpn_post", ["num_classes"], 3, "2"),
    ("rpn_post", ["cfg", "roi_supervisor", "kwargs", "matcher", "kwargs", "negative_iou_thresh"], 0.8, "at most 0.7"),
    ("rpn_post", ["cfg", "roi_supervisor", "kwargs", "sampler", "kwargs", "batch_size"], 0, "whole number"),
    ("rpn_post", ["cfg", "train", "roi_predictor", "kwargs", "pre_nms_topn"], 5, "pre_nms_top_n"),
    ("BboxFC_Pre", ["cfg", "fpn", "fpn_levels"], [0, 2], "levels"),
    ("BboxFC_Pre", ["cfg", "roipooling", "method"], "psroipool", "roialignpool"),
    ("bbox_post", ["cfg", "cls_loss", "type"], "sigmoid_cross_entropy", "softmax_cross_entropy"),
    ("bbox_post", ["cfg", "bbox_predictor", "kwargs", "share_location"], True, "false as in cfg"),
    ("bbox_post", ["cfg", "bbox_predictor", "kwargs", "bbox_normalize"], {"stds": [1, 1, 1, 1]}, "the same as in cfg"),
]


@pytest.mark.parametrize(("part", "path", "value", "said"), WRONG)
def test_what_is_not_known_is_refused_by_name(part, path, value, said):
    make, kwargs = MAKES[part]
    given = copy.deepcopy(kwargs())
    make(given, STRIDES)
    inner = given
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(OptionError, match=f"{part}.*{re.escape(said)}") as error:
        make(given, STRIDES)
    assert path[-1] in str(error.value)
    assert "\n" not in str(error.value)
