"""bbox_post: losses of the second stage, and its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from models.data.batch import Batch, Detections
from models.detection.bbox_pre import RegionTargets
from models.detection.decoding import BoxDecoder, read_bbox
from models.detection.losses import Loss, read_box_loss, read_class_loss
from models.sections import Section
from onnxsparse.dialects.msbench.builders import Total

Array = np.ndarray[Any, Any]
CLASSES = ("softmax_cross_entropy",)


@dataclass(frozen=True)
class BboxPost:
    """Losses over the regions sampled, divided by their number."""

    decoder: BoxDecoder
    cls_loss: Loss
    loc_loss: Loss

    def answers(self, cls: Any, loc: Any, rois: Array, batch: Batch) -> list[Detections]:
        return self.decoder.answers(cls, loc, rois, batch)

    def losses(self, cls: Any, loc: Any, targets: RegionTargets, total: Total) -> dict[str, Any]:
        divisor = max(total(float(len(targets.labels))), 1.0)
        found = np.flatnonzero(targets.labels)
        labels = np.zeros_like(found) if self.decoder.share_location else targets.labels[found]
        own = loc.reshape(len(targets.labels), -1, 4)[torch.from_numpy(found), torch.from_numpy(labels)]
        by_class = self.cls_loss(cls, torch.from_numpy(targets.labels))
        return {"cls_loss": by_class / divisor, "loc_loss": self._by_box(own, targets, found) / divisor}

    def _by_box(self, loc: Any, targets: RegionTargets, found: Array) -> Any:
        if not self.loc_loss.boxes:
            return self.loc_loss(loc, torch.from_numpy(targets.deltas[found]))
        moved = self.decoder.deltas.decode(torch.from_numpy(targets.rois[found, 1:]), loc, torch)
        return self.loc_loss(moved, torch.from_numpy(targets.boxes[found]))


def make(kwargs: Mapping[str, Any], strides: Sequence[int]) -> BboxPost:
    section = Section("net: bbox_post", kwargs)
    cfg = section.part("cfg")
    made = BboxPost(read_bbox(section, cfg, strides), read_class_loss(cfg, CLASSES), read_box_loss(cfg))
    for part in (cfg, section):
        part.end()
    return made
