"""Head of a region proposal network: whether there is an object at every anchor, and where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from models.networks.retina_head import OfAnchors
from models.sections import Section


class NaiveRPN(nn.Module):  # type: ignore[misc, unused-ignore]
    """(class, location) for each level, by one 3 x 3 convolution and two 1 x 1 that all levels share."""

    def __init__(self, inputs: int, planes: int, anchors: int, classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, planes, 3, 1, 1)
        self.relu = nn.ReLU(inplace=True)
        self.cls_pred = nn.Conv2d(planes, anchors * classes, 1)
        self.loc_pred = nn.Conv2d(planes, anchors * 4, 1)

    def forward(self, features: Sequence[Any]) -> list[tuple[Any, Any]]:
        shared = [self.relu(self.conv(feature)) for feature in features]
        return [(self.cls_pred(one), self.loc_pred(one)) for one in shared]


def make(kwargs: Section, in_planes: Sequence[int]) -> NaiveRPN:
    """The roi_head of a two-stage `net:`."""
    planes, head = kwargs.whole("feat_planes", 256), OfAnchors(kwargs, in_planes)
    kwargs.end()
    made = NaiveRPN(in_planes[0], planes, head.anchors, head.outputs)
    head.fill(made)
    made.num_anchors, made.num_classes = head.anchors, head.classes
    return made
