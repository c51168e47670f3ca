"""BboxFC_Pre: the regions that the second stage looks at, what they are to find, and their pooled features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.data.batch import Batch
from models.detection.boxes import Deltas
from models.detection.decoding import Proposals, read_normalization
from models.detection.matching import MaxIoU, read_matcher
from models.detection.roi_align import levels_of, roi_align
from models.detection.sampling import NaiveSampler, read_sampler
from models.sections import Section

Array = np.ndarray[Any, Any]
NO_BOXES = np.zeros((0, 4), np.float32)


@dataclass(frozen=True)
class RegionTargets:
    """What the regions sampled are to find."""

    labels: Array
    """(R,), 0 is the background."""
    deltas: Array
    """(R, 4), normalized; of the background zeros."""
    boxes: Array
    rois: Array


@dataclass(frozen=True)
class BboxPre:
    """Regions are (R, 5): the image of the batch, and the box in its pixels."""

    strides: Sequence[int]
    """Of the levels used."""
    levels: Sequence[int]
    base_scale: float
    pool_size: int
    sampling_ratio: int
    deltas: Deltas
    matcher: MaxIoU
    sampler: NaiveSampler

    def rois(self, proposals: Proposals) -> Array:
        """All proposals of all images."""
        return numbered([boxes for boxes, _ in proposals])

    def sample(self, proposals: Proposals, batch: Batch) -> tuple[Array, RegionTargets]:
        """Some proposals of each image and its objects, by the image's seed, and what they are to find."""
        found = [self._image(boxes, batch, at) for at, (boxes, _) in enumerate(proposals)]
        rois = numbered([boxes for boxes, _, _ in found])
        labels, wanted = (np.concatenate([each[at] for each in found]) for at in (1, 2))
        deltas = np.where(labels[:, None] > 0, self.deltas.encode(rois[:, 1:], wanted), np.float32(0))
        return rois, RegionTargets(labels, deltas.astype(np.float32), wanted, rois)

    def _image(self, boxes: Array, batch: Batch, at: int) -> tuple[Array, Array, Array]:
        """Boxes, classes, and the objects' boxes; of the background its own."""
        objects = batch.boxes[at].astype(np.float32)
        crowds = batch.ignored[at] if len(batch.ignored) else NO_BOXES
        boxes = np.concatenate([boxes, objects])
        matches = self.matcher.match(boxes, [len(boxes)], objects, crowds)
        chosen = self.sampler.sample(matches, batch.seeds[at], 1, boxes)
        boxes, matches = boxes[chosen], matches[chosen]
        labels, wanted, found = np.zeros(len(boxes), np.int64), boxes.copy(), matches >= 0
        labels[found], wanted[found] = batch.labels[at][matches[found]], objects[matches[found]]
        return boxes, labels, wanted

    def level(self, rois: Array) -> Array:
        """The place, among the levels used, that each region is pooled from."""
        return levels_of(rois[:, 1:], self.base_scale, len(self.levels))

    def pool(self, features: Sequence[Any], rois: Array) -> Any:
        """(R, C, pool_size, pool_size); of features there is one for each level used."""
        return roi_align(features, rois, self.level(rois), self.strides, self.pool_size, self.sampling_ratio)


def numbered(boxes: Sequence[Array]) -> Array:
    """(R, 5) of the boxes of each image."""
    images = np.repeat(np.arange(len(boxes), dtype=np.float32), [len(each) for each in boxes])
    return np.concatenate([images[:, None], np.concatenate([*boxes, NO_BOXES])], 1).astype(np.float32)


def make(kwargs: Mapping[str, Any], strides: Sequence[int]) -> BboxPre:
    section = Section("net: BboxFC_Pre", kwargs)
    cfg = section.part("cfg")
    _, supervisor = cfg.typed("bbox_supervisor", ["faster"])
    deltas, matcher, sampler = read_normalization(supervisor), read_matcher(supervisor), read_sampler(supervisor)
    fpn, pooling = cfg.part("fpn"), cfg.part("roipooling")
    levels = fpn.wholes("fpn_levels", list(range(min(4, len(strides)))))
    if not levels or levels != list(range(levels[0], levels[0] + len(levels))) or levels[-1] >= len(strides):
        fpn.refuse("fpn_levels", f"a list of following levels of the {len(strides)} of the neck", levels)
    pooling.word("method", ["roialignpool"], "roialignpool")
    scale = fpn.number("base_scale", 56.0, least=1e-3)
    size, sampling = pooling.whole("pool_size", 7), pooling.whole("sampling_ratio", 0, least=0)
    for part in (supervisor, fpn, pooling, cfg, section):
        part.end()
    return BboxPre([strides[level] for level in levels], levels, scale, size, sampling, deltas, matcher, sampler)
