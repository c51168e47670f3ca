"""rpn_post: losses of a region proposal network on sampled anchors, and the proposals that it makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from models.data.batch import Batch
from models.detection.decoding import (
    AnchorDecoder,
    Outputs,
    ProposalDecoder,
    read_rpn,
    shapes_of,
    sizes_of,
)
from models.detection.losses import Loss, read_box_loss, read_class_loss
from models.detection.matching import IGNORED, MaxIoU, read_matcher
from models.detection.retina_post import flat, match_batch
from models.detection.sampling import NaiveSampler, read_sampler
from models.sections import Section
from onnxsparse.dialects.msbench.builders import Total

Array = np.ndarray[Any, Any]
CLASSES = ("sigmoid_cross_entropy", "sigmoid_focal_loss")


@dataclass(frozen=True)
class RpnPost:
    """Losses over the anchors sampled, divided by their number."""

    predictor: ProposalDecoder
    matcher: MaxIoU
    sampler: NaiveSampler
    border: float
    """How far an anchor may lie outside its image and be trained; below 0, as far as it will."""
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

    def proposals(self, outputs: Outputs, batch: Batch, training: bool) -> list[tuple[Array, Array]]:
        return self.predictor.proposals(outputs, batch, training)

    def losses(self, outputs: Outputs, batch: Batch, total: Total) -> dict[str, Any]:
        anchors, matches = self._matches(outputs, batch)
        drawn = [self.sampler.sample(each, seed, 0) for each, seed in zip(matches, batch.seeds)]
        divisor = max(total(float(sum(map(len, drawn)))), 1.0)
        rows = torch.from_numpy(np.concatenate([at * len(anchors) + each for at, each in enumerate(drawn)]))
        logits = flat(outputs, 0, 1)[rows, 0]
        found = [each[each_drawn] >= 0 for each, each_drawn in zip(matches, drawn)]
        target = torch.from_numpy(np.concatenate(found)).to(logits)
        by_box = self._by_box(flat(outputs, 1, 4), anchors, matches, drawn, batch)
        return {"rpn_cls_loss": self.cls_loss(logits, target) / divisor, "rpn_loc_loss": by_box / divisor}

    def _matches(self, outputs: Outputs, batch: Batch) -> tuple[Array, Array]:
        shapes = shapes_of(outputs)
        anchors, counts = self.anchors(shapes), self.decoder.anchors.counts(shapes)
        matches = match_batch(self.matcher, anchors, counts, batch)
        if self.border >= 0:
            for each, (height, width) in zip(matches, sizes_of(batch)):
                edges = np.asarray([width, height], np.float32) + self.border
                inside = (anchors[:, :2] >= -self.border).all(1) & (anchors[:, 2:] <= edges).all(1)
                each[~inside] = IGNORED
        return anchors, matches

    def _by_box(self, loc: Any, anchors: Array, matches: Array, drawn: Sequence[Array], batch: Batch) -> Any:
        positive = [each_drawn[each[each_drawn] >= 0] for each, each_drawn in zip(matches, drawn)]
        rows = torch.from_numpy(np.concatenate([at * len(anchors) + each for at, each in enumerate(positive)]))
        boxes = np.concatenate([wanted[each[chosen]] for wanted, each, chosen in zip(batch.boxes, matches, positive)])
        own = anchors[np.concatenate(positive)]
        if self.loc_loss.boxes:
            moved = self.decoder.deltas.decode(torch.from_numpy(own), loc[rows], torch)
            return self.loc_loss(moved, torch.from_numpy(boxes.astype(np.float32)))
        return self.loc_loss(loc[rows], torch.from_numpy(self.decoder.deltas.encode(own, boxes)))


def make(kwargs: Mapping[str, Any], strides: Sequence[int]) -> RpnPost:
    section = Section("net: rpn_post", kwargs)
    cfg = section.part("cfg")
    predictor = read_rpn(section, cfg, strides)
    _, supervisor = cfg.typed("roi_supervisor", ["rpn"])
    matcher, sampler = read_matcher(supervisor), read_sampler(supervisor)
    border = supervisor.number("allowed_border", -1)
    made = RpnPost(predictor, matcher, sampler, border, read_class_loss(cfg, CLASSES), read_box_loss(cfg))
    for part in (supervisor, cfg, section):
        part.end()
    return made
