"""From outputs of a detector to boxes, scores and classes, in numpy: without torch, too, of onnxruntime's outputs.

Scores have to be above their threshold; everything else that suppresses is nms.py's. Boxes are cut at the edges of the
image before padding; answers are in pixels of the image file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.data.batch import Batch, Detections
from models.detection.anchors import Anchors, read_anchors
from models.detection.boxes import Deltas, clipped, read_deltas
from models.detection.nms import best_first, nms
from models.sections import Section

Array = np.ndarray[Any, Any]
Outputs = Sequence[tuple[Any, Any]]
"""(class, location) of each level."""
Proposals = Sequence[tuple[Array, Array]]
"""Boxes and scores of each image."""


@dataclass(frozen=True)
class Predictor:
    """What is taken of each level before boxes suppress each other: `roi_predictor`."""

    score_thresh: float
    pre_nms_top_n: int
    post_nms_top_n: int
    min_size: float
    nms_iou: float | None
    """Suppression within a level and over its classes, if any."""
    merged_iou: float | None
    """Suppression within a class, over all levels."""
    top_n: int
    """What is left of all levels."""


@dataclass(frozen=True)
class AnchorDecoder:
    """Boxes of an image from the outputs of a head over anchors."""

    anchors: Anchors
    deltas: Deltas
    classes: int
    """Without the background."""

    def best(self, outputs: Outputs, image: int, size: tuple[int, int], by: Predictor) -> tuple[Array, Array, Array]:
        """Boxes, scores and classes from 0, the best first."""
        shapes = shapes_of(outputs)
        anchors = np.split(self.anchors.at(shapes), np.cumsum(self.anchors.counts(shapes))[:-1])
        levels = [self._level(cls[image], loc[image], each, size, by) for (cls, loc), each in zip(outputs, anchors)]
        boxes, scores, labels = (np.concatenate(each) for each in zip(*levels))
        if by.merged_iou is None:
            kept = best_first(scores, by.top_n)
        else:
            kept = nms(boxes, scores, by.merged_iou, labels, by.top_n)
        return boxes[kept], scores[kept], labels[kept]

    def _level(
        self, cls: Array, loc: Array, anchors: Array, size: tuple[int, int], by: Predictor
    ) -> tuple[Array, Array, Array]:
        scores = sigmoid(by_anchor(cls, self.classes)).ravel()
        above = np.flatnonzero(scores > by.score_thresh)
        chosen = above[best_first(scores[above], by.pre_nms_top_n)]
        anchor, labels = chosen // self.classes, chosen % self.classes
        boxes = clipped(self.deltas.decode(anchors[anchor], by_anchor(loc, 4)[anchor]), size)
        kept = np.flatnonzero(large(boxes, by.min_size))
        if by.nms_iou is not None:
            kept = kept[nms(boxes[kept], scores[chosen][kept], by.nms_iou, None, by.post_nms_top_n)]
        kept = kept[: by.post_nms_top_n]
        return boxes[kept], scores[chosen][kept], labels[kept]


@dataclass(frozen=True)
class RetinaDecoder:
    """What RetinaNet says of the images of a batch."""

    decoder: AnchorDecoder
    predictor: Predictor

    def answers(self, outputs: Outputs, batch: Batch) -> list[Detections]:
        outputs = arrays(outputs)
        found = []
        for image, size in enumerate(sizes_of(batch)):
            boxes, scores, labels = self.decoder.best(outputs, image, size, self.predictor)
            found.append(in_file(boxes, scores, labels + 1, batch, image))
        return found


@dataclass(frozen=True)
class ProposalDecoder:
    """Regions that may hold an object; those of training are chosen by words of their own."""

    decoder: AnchorDecoder
    train: Predictor
    test: Predictor

    def proposals(self, outputs: Outputs, batch: Batch, training: bool) -> list[tuple[Array, Array]]:
        outputs, by = arrays(outputs), self.train if training else self.test
        return [self.decoder.best(outputs, image, size, by)[:2] for image, size in enumerate(sizes_of(batch))]


@dataclass(frozen=True)
class BoxDecoder:
    """What the second stage says of the regions of a batch."""

    deltas: Deltas
    share_location: bool
    score_thresh: float
    top_n: int
    nms_iou: float

    def answers(self, cls: Any, loc: Any, rois: Array, batch: Batch) -> list[Detections]:
        scores, loc = softmax(array(cls)), array(loc)
        boxes = self.deltas.decode(rois[:, None, 1:], loc.reshape(len(rois), -1, 4))
        found = []
        for image, size in enumerate(sizes_of(batch)):
            inside = rois[:, 0] == image
            found.append(in_file(*self._image(scores[inside], clipped(boxes[inside], size)), batch, image))
        return found

    def _image(self, scores: Array, boxes: Array) -> tuple[Array, Array, Array]:
        roi, label = np.nonzero(scores[:, 1:] > self.score_thresh)
        score = scores[roi, label + 1]
        box = boxes[roi, 0] if self.share_location else boxes[roi, label + 1]
        kept = nms(box, score, self.nms_iou, label, self.top_n)
        return box[kept], score[kept], label[kept] + 1


def in_file(boxes: Array, scores: Array, labels: Array, batch: Batch, image: int) -> Detections:
    """Boxes of the network's pixels in those of the image file."""
    height, width = batch.scales[image] if len(batch.scales) else (1.0, 1.0)
    scaled = boxes / np.asarray([width, height, width, height], np.float32)
    return Detections(scaled.astype(np.float32), scores.astype(np.float32), labels.astype(np.int64))


def array(value: Any) -> Array:
    """Numbers of numpy, or of a tensor with or without a gradient."""
    return value if isinstance(value, np.ndarray) else np.asarray(value.detach().cpu().numpy())


def arrays(outputs: Outputs) -> list[tuple[Array, Array]]:
    return [(array(cls), array(loc)) for cls, loc in outputs]


def shapes_of(outputs: Outputs) -> list[tuple[int, int]]:
    return [(int(cls.shape[-2]), int(cls.shape[-1])) for cls, _ in outputs]


def sizes_of(batch: Batch) -> Sequence[tuple[int, int]]:
    """Height and width of each image before padding."""
    height, width = batch.image.shape[-2:]
    return batch.sizes if len(batch.sizes) else [(int(height), int(width))] * len(batch.image)


def by_anchor(values: Array, each: int) -> Array:
    """(A * each, H, W) of one image as (H * W * A, each)."""
    height, width = values.shape[-2:]
    return values.reshape(-1, each, height, width).transpose(2, 3, 0, 1).reshape(-1, each)


def large(boxes: Array, side: float) -> Array:
    """Which boxes have sides of at least this."""
    return np.asarray(((boxes[:, 2:] - boxes[:, :2]) >= side).all(1))


def sigmoid(logits: Array) -> Array:
    with np.errstate(over="ignore"):  # exp of what is far from an object is infinite, and its inverse 0
        return np.asarray(1 / (1 + np.exp(-logits)))


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def read_predictor(section: Section, merger: str, many: int) -> Predictor:
    """The section `roi_predictor`; `many` is what is taken where nothing is said."""
    _, kwargs = section.typed("roi_predictor", ["base"])
    merged, after = _merger(kwargs, merger)
    found = Predictor(
        kwargs.number("pre_nms_score_thresh", 0.0, least=0, most=1),
        kwargs.whole("pre_nms_top_n", many),
        kwargs.whole("post_nms_top_n", many),
        kwargs.number("roi_min_size", 0.0, least=0),
        read_nms(kwargs) if kwargs.has("nms") else None,
        merged,
        after or kwargs.whole("post_nms_top_n", many),
    )
    kwargs.end()
    return found


def _merger(predictor: Section, kind: str) -> tuple[float | None, int]:
    if not predictor.has("merger"):
        return None, 0
    _, kwargs = predictor.typed("merger", [kind])
    found = read_nms(kwargs) if kwargs.has("nms") else None, kwargs.whole("top_n")
    kwargs.end()
    return found


def read_nms(section: Section) -> float:
    """The threshold of a section `nms`."""
    part = section.part("nms")
    part.word("type", ["naive"], "naive")
    found = part.number("nms_iou_thresh", least=0, most=1)
    part.end()
    return found


def read_normalization(cfg: Section) -> Deltas:
    return read_deltas(cfg.part("bbox_normalize"))


def read_retina(section: Section, cfg: Section, strides: Sequence[int]) -> RetinaDecoder:
    """What answers need of the kwargs of retina_post, of which `cfg` is a part."""
    classes = section.whole("num_classes", least=2) - 1
    decoder = AnchorDecoder(read_anchors(cfg, strides), read_normalization(cfg), classes)
    return RetinaDecoder(decoder, read_predictor(cfg, "retina", 1000))


def read_rpn(section: Section, cfg: Section, strides: Sequence[int]) -> ProposalDecoder:
    """What proposals need of the kwargs of rpn_post."""
    if section.whole("num_classes", 2) != 2:
        section.refuse("num_classes", "2, object and background", section.any("num_classes"))
    decoder = AnchorDecoder(read_anchors(cfg, strides), read_normalization(cfg), 1)
    return ProposalDecoder(decoder, *(_of_phase(cfg, name) for name in ("train", "test")))


def _of_phase(cfg: Section, name: str) -> Predictor:
    part = cfg.part(name)
    found = read_predictor(part, "rpn", 1000)
    part.end()
    return found


def read_bbox(section: Section, cfg: Section, strides: Sequence[int]) -> BoxDecoder:  # noqa: ARG001  # as the others
    """What answers need of the kwargs of bbox_post."""
    shared, deltas = cfg.flag("share_location", False), read_normalization(cfg)
    _, predictor = cfg.typed("bbox_predictor", ["faster"])
    _demand_same(predictor, shared, deltas)
    threshold = predictor.number("bbox_score_thresh", 0.0, least=0, most=1)
    found = BoxDecoder(deltas, shared, threshold, predictor.whole("top_n", 100), read_nms(predictor))
    predictor.end()
    return found


def _demand_same(predictor: Section, shared: bool, deltas: Deltas) -> None:
    """Answers are decoded by what losses were computed with; the words stand in two places."""
    if predictor.flag("share_location", shared) != shared:
        predictor.refuse("share_location", f"{str(shared).lower()} as in cfg", not shared)
    if predictor.has("bbox_normalize") and read_normalization(predictor) != deltas:
        predictor.refuse("bbox_normalize", "the same as in cfg", predictor.any("bbox_normalize"))


_READERS: dict[str, Callable[[Section, Section, Sequence[int]], Any]] = {
    "retina_post": read_retina,
    "rpn_post": read_rpn,
    "bbox_post": read_bbox,
}


def decoder(kind: str, kwargs: Mapping[str, Any], strides: Sequence[int]) -> Any:
    """What makes boxes of the outputs before a part of `net:`, for those who have no torch."""
    section = Section(f"net: {kind}", kwargs)
    return _READERS[kind](section, section.part("cfg"), strides)
