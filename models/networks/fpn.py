"""Feature pyramid: features of one width at every stride, from those of a backbone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from models.networks.initializers import Initializer
from models.networks.normalization import Normalize
from models.sections import Section


class FPN(nn.Module):  # type: ignore[misc, unused-ignore]
    """A 1 x 1 convolution for each feature, sums from the coarsest down, a 3 x 3 convolution behind each sum.

    Levels beyond the backbone's come from the last one: by every second pixel (`pool`) or a convolution of stride 2.
    They are numbered from `start_level`: c3_lateral, p3_conv, ..., p6_conv.
    """

    def __init__(
        self, in_planes: Sequence[int], planes: int, start: int, levels: int, downsample: str, upsample: str, norm: Any
    ) -> None:
        super().__init__()
        self.upsample, self.downsample = upsample, downsample
        self.own = range(start, start + len(in_planes))
        self.extra = range(start + len(in_planes), start + levels)
        for level, inputs in zip(self.own, in_planes):
            self.add_module(f"c{level}_lateral", convolution(inputs, planes, 1, 1, norm))
            self.add_module(f"p{level}_conv", convolution(planes, planes, 3, 1, norm))
        for level in self.extra:
            pool = downsample == "pool"
            down = nn.MaxPool2d(1, 2) if pool else convolution(planes, planes, 3, 2, norm)
            self.add_module(f"p{level}_{downsample}", down)

    def forward(self, features: Sequence[Any]) -> list[Any]:
        x: Any = None
        outputs: list[Any] = []
        for level, feature in zip(reversed(self.own), reversed(list(features))):
            lateral = self.get_submodule(f"c{level}_lateral")(feature)
            x = lateral if x is None else lateral + self._enlarged(x, lateral)
            outputs.insert(0, self.get_submodule(f"p{level}_conv")(x))
        for level in self.extra:
            outputs.append(self.get_submodule(f"p{level}_{self.downsample}")(outputs[-1]))
        return outputs

    def _enlarged(self, x: Any, like: Any) -> Any:
        # by the size and not by 2: of an odd number of pixels a backbone keeps the larger half
        corners = None if self.upsample == "nearest" else False
        return nn.functional.interpolate(x, size=like.shape[-2:], mode=self.upsample, align_corners=corners)


def convolution(inputs: int, planes: int, size: int, stride: int, norm: Any) -> Any:
    """A convolution with its normalization, or with a bias where there is none."""
    conv = nn.Conv2d(inputs, planes, size, stride, size // 2, bias=norm is None)
    return conv if norm is None else nn.Sequential(conv, norm(planes))


def make(kwargs: Section, in_planes: Sequence[int], in_strides: Sequence[int]) -> FPN:
    """The neck of a `net:` part."""
    planes, levels = kwargs.whole("outplanes"), kwargs.whole("num_level")
    start = kwargs.whole("start_level", in_strides[0].bit_length() - 1, 0)
    if levels < len(in_planes):
        kwargs.refuse("num_level", f"a whole number of at least {len(in_planes)}, one for each feature", levels)
    strides = [*in_strides, *(in_strides[-1] * 2 ** (more + 1) for more in range(levels - len(in_strides)))]
    if kwargs.wholes("out_strides", strides) != strides:
        kwargs.refuse("out_strides", f"{strides}, by the backbone and num_level", kwargs.values["out_strides"])
    down = kwargs.word("downsample", ("pool", "conv"), "pool")
    up = kwargs.word("upsample", ("nearest", "bilinear"), "nearest")
    norm = Normalize(kwargs.part("normalize")) if kwargs.has("normalize") else None
    fill = Initializer(kwargs.part("initializer")) if kwargs.has("initializer") else None
    kwargs.end()
    neck = FPN(in_planes, planes, start, levels, down, up, norm)
    if fill is not None:
        fill(neck)
    neck.out_planes, neck.out_strides = [planes] * levels, strides
    return neck
