"""RetinaNet's head: class and location of every anchor, by convolutions that all levels of a pyramid share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from models.networks.initializers import Initializer, prior_bias
from models.networks.normalization import Normalize
from models.sections import Section


class Tower(nn.Module):  # type: ignore[misc, unused-ignore]
    """Convolutions that all levels share, with normalization of each level's own where there is any, and ReLUs."""

    def __init__(self, inputs: int, planes: int, count: int, levels: int, norm: Any) -> None:
        super().__init__()
        widths = [inputs] + [planes] * (count - 1)
        self.convs = nn.ModuleList(nn.Conv2d(width, planes, 3, 1, 1, bias=norm is None) for width in widths)
        norms = (nn.ModuleList(norm(planes) for _ in widths) for _ in range(levels if norm is not None else 0))
        self.norms = nn.ModuleList(norms)

    def forward(self, x: Any, level: int) -> Any:
        for place, conv in enumerate(self.convs):
            x = conv(x)
            if len(self.norms):
                x = self.norms[level][place](x)
            x = nn.functional.relu(x)
        return x


class RetinaHead(nn.Module):  # type: ignore[misc, unused-ignore]
    """(class, location) for each level: (N, A * classes, H, W) and (N, A * 4, H, W), anchors outermost."""

    def __init__(self, inputs: int, planes: int, anchors: int, classes: int, count: int, levels: int, norm: Any):
        super().__init__()
        self.cls_tower = Tower(inputs, planes, count, levels, norm)
        self.loc_tower = Tower(inputs, planes, count, levels, norm)
        self.cls_pred = nn.Conv2d(planes, anchors * classes, 3, 1, 1)
        self.loc_pred = nn.Conv2d(planes, anchors * 4, 3, 1, 1)

    def forward(self, features: Sequence[Any]) -> list[tuple[Any, Any]]:
        return [
            (self.cls_pred(self.cls_tower(feature, level)), self.loc_pred(self.loc_tower(feature, level)))
            for level, feature in enumerate(features)
        ]


def make(kind: str, kwargs: Section, in_planes: Sequence[int]) -> RetinaHead:
    """The roi_head of a `net:` part: RetinaHeadWithBN or RetinaHead."""
    planes, head = kwargs.whole("feat_planes", 256), OfAnchors(kwargs, in_planes)
    count = kwargs.whole("num_conv", 4)
    prior = kwargs.share("init_prior", 0.01)
    norm = None
    if kind == "RetinaHeadWithBN":
        norm = Normalize(kwargs.part("normalize")) if kwargs.has("normalize") else nn.BatchNorm2d
    kwargs.end()
    made = RetinaHead(in_planes[0], planes, head.anchors, head.outputs, count, head.levels, norm)
    head.fill(made)
    prior_bias(made.cls_pred, prior)
    made.num_anchors, made.num_classes = head.anchors, head.classes
    return made


class OfAnchors:
    """What the heads of anchors have in common: classes (the background is one), anchors of a place, levels."""

    def __init__(self, kwargs: Section, in_planes: Sequence[int]) -> None:
        self.classes, self.anchors = kwargs.whole("num_classes", least=2), kwargs.whole("num_anchors")
        kwargs.word("class_activation", ("sigmoid",), "sigmoid")
        self.outputs = self.classes - 1
        self.levels = kwargs.whole("num_level", len(in_planes))
        if self.levels != len(in_planes):
            kwargs.refuse("num_level", f"{len(in_planes)}, as many as there are features", self.levels)
        if len(set(in_planes)) > 1:
            kwargs.refuse("prev", "a part whose features have one number of channels", list(in_planes))
        self._initializer = kwargs.part("initializer") if kwargs.has("initializer") else None
        self.fill = Initializer(self._initializer or Section(kwargs.where, {"method": "normal", "std": 0.01}))
