"""retina_post: what RetinaNet's outputs mean, in training and in answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from models.data.batch import Batch, Detections
from models.detection.decoding import (
    AnchorDecoder,
    Outputs,
    RetinaDecoder,
    read_retina,
    shapes_of,
)
from models.detection.losses import Loss, overlaps, read_box_loss, read_class_loss
from models.detection.matching import ATSS, IGNORED, read_matcher
from models.sections import Section
from onnxsparse.dialects.msbench.builders import Total

Array = np.ndarray[Any, Any]
CLASSES = ("quality_focal_loss", "sigmoid_focal_loss", "sigmoid_cross_entropy")
NO_BOXES = np.zeros((0, 4), np.float32)


@dataclass(frozen=True)
class Targets:
    """What the anchors of a batch are to find, as places in (N * A) rows."""

    valid: Array
    """(N * A,): false where an anchor is ignored."""
    positive: Array
    labels: Array
    """From 0, of the positive ones."""
    anchors: Array
    boxes: Array


@dataclass(frozen=True)
class RetinaPost:
    """Losses of one stage by focal losses over all anchors, divided by how many of them find an object."""

    predictor: RetinaDecoder
    matcher: Any
    cls_loss: Loss
    loc_loss: Loss

    @property
    def decoder(self) -> AnchorDecoder:
        return self.predictor.decoder

    @property
    def num_classes(self) -> int:
        return self.decoder.classes + 1

    @property
    def num_anchors(self) -> int:
        return self.decoder.anchors.each

    def anchors(self, shapes: Sequence[tuple[int, int]]) -> Array:
        return self.decoder.anchors.at(shapes)

    def answers(self, outputs: Outputs, batch: Batch) -> list[Detections]:
        return self.predictor.answers(outputs, batch)

    def losses(self, outputs: Outputs, batch: Batch, total: Total) -> dict[str, Any]:
        targets = self.targets(shapes_of(outputs), batch)
        divisor = max(total(float(len(targets.positive))), 1.0)
        cls, loc = (flat(outputs, at, width) for at, width in ((0, self.decoder.classes), (1, 4)))
        positive, labels = torch.from_numpy(targets.positive), torch.from_numpy(targets.labels)
        anchors, wanted = torch.from_numpy(targets.anchors), torch.from_numpy(targets.boxes)
        moved = self.decoder.deltas.decode(anchors, loc[positive], torch)
        quality = overlaps(moved.detach(), wanted)[0] if self.cls_loss.quality else torch.ones(len(labels))
        target = torch.zeros_like(cls).index_put((positive, labels), quality.to(cls))
        if not targets.valid.all():
            valid = torch.from_numpy(targets.valid)
            cls, target = cls[valid], target[valid]
        if self.loc_loss.boxes:
            by_box = self.loc_loss(moved, wanted)
        else:
            by_box = self.loc_loss(loc[positive], torch.from_numpy(self._encoded(targets)))
        return {"cls_loss": self.cls_loss(cls, target) / divisor, "loc_loss": by_box / divisor}

    def _encoded(self, targets: Targets) -> Array:
        return self.decoder.deltas.encode(targets.anchors, targets.boxes)

    def targets(self, shapes: Sequence[tuple[int, int]], batch: Batch) -> Targets:
        anchors, counts = self.anchors(shapes), self.decoder.anchors.counts(shapes)
        matches = match_batch(self.matcher, anchors, counts, batch)
        image, anchor = np.nonzero(matches >= 0)
        box = matches[image, anchor]
        firsts = np.cumsum([0, *(len(each) for each in batch.boxes)])[:-1]
        boxes, labels = np.concatenate(batch.boxes), np.concatenate(batch.labels)
        chosen = firsts[image] + box
        return Targets(
            (matches != IGNORED).ravel(),
            image * len(anchors) + anchor,
            labels[chosen].astype(np.int64) - 1,
            anchors[anchor],
            boxes[chosen].astype(np.float32),
        )


def match_batch(matcher: Any, anchors: Array, counts: Sequence[int], batch: Batch) -> Array:
    """(N, A) matches."""
    crowds = batch.ignored if len(batch.ignored) else [NO_BOXES] * len(batch.boxes)
    return np.stack([matcher.match(anchors, counts, boxes, crowd) for boxes, crowd in zip(batch.boxes, crowds)])


def flat(outputs: Outputs, at: int, width: int) -> Any:
    """(N, A * width, H, W) of all levels as (N * A of all levels, width)."""
    count = len(outputs[0][at])
    levels = [
        each[at].reshape(count, -1, width, *each[at].shape[-2:]).permute(0, 3, 4, 1, 2).reshape(count, -1, width)
        for each in outputs
    ]
    return torch.cat(levels, 1).reshape(-1, width)


def make(kwargs: Mapping[str, Any], strides: Sequence[int]) -> RetinaPost:
    section = Section("net: retina_post", kwargs)
    cfg = section.part("cfg")
    predictor = read_retina(section, cfg, strides)
    made = RetinaPost(predictor, _read_supervisor(cfg), read_class_loss(cfg, CLASSES), read_box_loss(cfg))
    for part in (cfg, section):
        part.end()
    return made


def _read_supervisor(cfg: Section) -> Any:
    kind, kwargs = cfg.typed("roi_supervisor", ["atss", "retina"])
    if kind == "atss":
        matcher: Any = ATSS(kwargs.whole("top_n", 9), kwargs.number("ignore_iou_thresh", 0.5, least=0, most=1))
    else:
        matcher = read_matcher(kwargs)
    kwargs.end()
    return matcher
