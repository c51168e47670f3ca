"""Classification head: the mean over the image of one feature, and a fully connected layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from models.networks.initializers import Initializer
from models.sections import Section


class ClassifierHead(nn.Module):  # type: ignore[misc, unused-ignore]
    """Logits (N, classes) from the feature at a place of the list."""

    def __init__(self, planes: int, classes: int, place: int) -> None:
        super().__init__()
        self.place, self.num_classes = place, classes
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(planes, classes)

    def forward(self, features: Sequence[Any]) -> Any:
        return self.fc(self.pool(features[self.place]).flatten(1))


def make(kwargs: Section, in_planes: Sequence[int]) -> ClassifierHead:
    """The head of a `net:` part, sparse_base_cls_head or base_cls_head, which are the same here."""
    classes, place = kwargs.whole("num_classes"), kwargs.any("input_feature_idx", -1)
    if isinstance(place, bool) or not isinstance(place, int) or not -len(in_planes) <= place < len(in_planes):
        kwargs.refuse("input_feature_idx", f"the place of one of {len(in_planes)} features", place)
    planes = kwargs.whole("in_plane", in_planes[place])
    if planes != in_planes[place]:
        kwargs.refuse("in_plane", f"{in_planes[place]}, the channels of the feature it takes", planes)
    fill = Initializer(kwargs.part("initializer")) if kwargs.has("initializer") else None
    kwargs.end()
    made = ClassifierHead(planes, classes, place)
    if fill is not None:
        fill(made)
    return made
