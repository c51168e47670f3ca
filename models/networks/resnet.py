"""ResNet backbones: the features of some of their layers, with the weight names of torchvision's networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from models.networks.initializers import Initializer
from models.networks.normalization import Normalize
from models.sections import Section

Norm = Callable[[int], Any]


class BasicBlock(nn.Module):  # type: ignore[misc, unused-ignore]
    """Two 3 x 3 convolutions beside a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, planes: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, planes, 3, stride, 1, bias=False), norm(planes)
        self.conv2, self.bn2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False), norm(planes)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut(inputs, planes, stride, norm)

    def forward(self, x: Any) -> Any:
        beside = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(x)) + beside)


class Bottleneck(nn.Module):  # type: ignore[misc, unused-ignore]
    """1 x 1, 3 x 3 (which has the stride) and 1 x 1 convolutions beside a shortcut."""

    expansion = 4

    def __init__(self, inputs: int, planes: int, stride: int, norm: Norm) -> None:
        super().__init__()
        outputs = planes * self.expansion
        self.conv1, self.bn1 = nn.Conv2d(inputs, planes, 1, bias=False), norm(planes)
        self.conv2, self.bn2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False), norm(planes)
        self.conv3, self.bn3 = nn.Conv2d(planes, outputs, 1, bias=False), norm(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut(inputs, outputs, stride, norm)

    def forward(self, x: Any) -> Any:
        beside = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        return self.relu(self.bn3(self.conv3(x)) + beside)


def shortcut(inputs: int, outputs: int, stride: int, norm: Norm) -> Any:
    """A projection where the shape changes, else None."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))


BLOCKS: dict[str, tuple[Any, tuple[int, int, int, int]]] = {
    "resnet18": (BasicBlock, (2, 2, 2, 2)),
    "resnet34": (BasicBlock, (3, 4, 6, 3)),
    "resnet50": (Bottleneck, (3, 4, 6, 3)),
    "resnet101": (Bottleneck, (3, 4, 23, 3)),
}


class ResNet(nn.Module):  # type: ignore[misc, unused-ignore]
    """The features behind each of `out_layers`; layer 0 is the stem, and layers behind the last one are not built."""

    def __init__(
        self, kind: str, out_layers: Sequence[int], frozen: Sequence[int], norm: Norm, width: float = 1.0
    ) -> None:
        super().__init__()
        block, counts = BLOCKS[kind]
        base = [scaled(planes, width) for planes in (64, 64, 128, 256, 512)]
        self.conv1, self.bn1 = nn.Conv2d(3, base[0], 7, 2, 3, bias=False), norm(base[0])
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        self.out_layers, self.frozen_layers, self.count = tuple(out_layers), tuple(frozen), max(out_layers)
        inputs = base[0]
        for layer in range(1, self.count + 1):
            strides = [1 if layer == 1 else 2] + [1] * (counts[layer - 1] - 1)
            blocks = []
            for stride in strides:
                blocks.append(block(inputs, base[layer], stride, norm))
                inputs = base[layer] * block.expansion
            self.add_module(f"layer{layer}", nn.Sequential(*blocks))
        self.out_planes = [base[layer] * block.expansion for layer in out_layers]
        self.out_strides = [2 ** (layer + 1) for layer in out_layers]
        for part in self._frozen_parts():
            part.requires_grad_(False)

    def forward(self, image: Any) -> list[Any]:
        x, features = self.maxpool(self.relu(self.bn1(self.conv1(image)))), []
        for layer in range(1, self.count + 1):
            x = self.get_submodule(f"layer{layer}")(x)
            if layer in self.out_layers:
                features.append(x)
        return features

    def train(self, mode: bool = True) -> Any:
        """Training mode; the statistics of frozen layers stay as they are."""
        super().train(mode)
        for part in self._frozen_parts():
            part.eval()
        return self

    def _frozen_parts(self) -> list[Any]:
        stem = [self.conv1, self.bn1] if 0 in self.frozen_layers else []
        return stem + [self.get_submodule(f"layer{layer}") for layer in self.frozen_layers if layer]


def scaled(planes: int, width: float) -> int:
    """Channels of a narrower or wider network, a multiple of 8."""
    return max(8, int(planes * width / 8 + 0.5) * 8)


def make(kind: str, kwargs: Section) -> ResNet:
    """The backbone of a `net:` part."""
    out_layers = kwargs.wholes("out_layers", least=1)
    if not out_layers or out_layers != sorted(set(out_layers)) or out_layers[-1] > 4:
        kwargs.refuse("out_layers", "a list of layers from 1 to 4, ascending", out_layers)
    frozen = sorted(set(kwargs.wholes("frozen_layers", [])))
    if frozen and frozen[-1] > out_layers[-1]:
        kwargs.refuse("frozen_layers", f"a list of layers from 0 (the stem) to {out_layers[-1]}", frozen)
    norm = Normalize(kwargs.part("normalize")) if kwargs.has("normalize") else nn.BatchNorm2d
    fill = Initializer(kwargs.part("initializer")) if kwargs.has("initializer") else None
    width = kwargs.number("width", 1.0)
    if not 0 < width <= 8:
        kwargs.refuse("width", "a number above 0, up to 8", width)
    zero = kwargs.flag("zero_init_residual", False)
    strides = [2 ** (layer + 1) for layer in out_layers]
    if kwargs.wholes("out_strides", strides) != strides:
        kwargs.refuse("out_strides", f"those of layers {out_layers}, {strides}", kwargs.values["out_strides"])
    kwargs.end()
    net = ResNet(kind, out_layers, frozen, norm, width)
    if fill is not None:
        fill(net)
    if getattr(norm, "frozen", False):
        _quiet(net, 0.25)  # normalization that nobody trained keeps no sum of blocks in size
    elif zero:
        _quiet(net, 0.0)
    return net


def _quiet(net: ResNet, share: float) -> None:
    """Each block begins by adding only so much to its shortcut."""
    for block in net.modules():
        if isinstance(block, (BasicBlock, Bottleneck)):
            last = block.bn3 if isinstance(block, Bottleneck) else block.bn2
            nn.init.constant_(last.weight, share)
