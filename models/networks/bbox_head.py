"""Second stage of a two-stage detector: class and location of each region, from its pooled features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from models.networks.initializers import Initializer
from models.sections import Section

POOLING = ("roialignpool",)


class BboxFC(nn.Module):  # type: ignore[misc, unused-ignore]
    """(R, C, size, size) to class (R, classes) and location (R, 4), or (R, 4 * classes), classes outermost."""

    def __init__(self, inputs: int, size: int, planes: int, classes: int, boxes: int) -> None:
        super().__init__()
        self.fc6, self.fc7 = nn.Linear(inputs * size * size, planes), nn.Linear(planes, planes)
        self.relu = nn.ReLU(inplace=True)
        self.cls_pred, self.loc_pred = nn.Linear(planes, classes), nn.Linear(planes, 4 * boxes)

    def forward(self, pooled: Any) -> tuple[Any, Any]:
        x = self.relu(self.fc7(self.relu(self.fc6(pooled.flatten(1)))))
        return self.cls_pred(x), self.loc_pred(x)


def make(kwargs: Section, in_planes: Sequence[int]) -> BboxFC:
    """The bbox_head of a `net:` part."""
    planes, classes, cfg = kwargs.whole("feat_planes", 1024), kwargs.whole("num_classes", least=2), kwargs.part("cfg")
    cfg.word("class_activation", ("softmax",), "softmax")
    shared = cfg.flag("share_location", False)
    pooling = cfg.part("roipooling")
    pooling.word("method", POOLING, "roialignpool")
    size = pooling.whole("pool_size", 7)
    pooling.whole("sampling_ratio", 0, 0)
    for part in (pooling, cfg):
        part.end()
    fill = Initializer(kwargs.part("initializer")) if kwargs.has("initializer") else None
    kwargs.end()
    made = BboxFC(in_planes[0], size, planes, classes, 1 if shared else classes)
    if fill is not None:
        fill(made)
    nn.init.normal_(made.cls_pred.weight, std=0.01)  # all classes alike, and boxes that stay where proposals are
    nn.init.normal_(made.loc_pred.weight, std=0.001)
    made.num_classes, made.share_location, made.pool_size = classes, shared, size
    return made
