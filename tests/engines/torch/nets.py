"""The networks that exports are tried with: a ResNet-18, a transformer encoder, and one of everything else."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.downsample: Any = None
        if stride != 1 or inside != outside:
            self.downsample = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Any) -> Any:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet18(nn.Module):
    def __init__(self, width: int = 8, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        self.layers = nn.Sequential(
            *(
                nn.Sequential(Block(a, b, 1 if index == 0 else 2), Block(b, b, 1))
                for index, (a, b) in enumerate(zip(widths, widths[1:]))
            )
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8 * width, classes)

    def forward(self, x: Any) -> Any:
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        return self.fc(torch.flatten(self.avgpool(self.layers(x)), 1))


class Layer(nn.Module):
    """A layer of a transformer, written out, so that old opsets can hold it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.packed = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.linear1, self.linear2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Any) -> Any:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.packed(x).chunk(3, -1))
        seen = torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v
        x = self.norm1(x + self.out(seen.transpose(1, 2).flatten(2)))
        return self.norm2(x + self.linear2(nn.functional.gelu(self.linear1(x))))


class Encoder(nn.Module):
    def __init__(self, words: int = 50, width: int = 32, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.position = nn.Parameter(torch.randn(1, 12, width))
        self.encoder = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.head = nn.Linear(width, 5)

    def forward(self, words: Any) -> Any:
        x = self.embedding(words) + self.position[:, : words.shape[1]]
        return self.head(self.encoder(x).mean(1))


class Mixed(nn.Module):
    """Depthwise and transposed convolutions, one Linear used twice, and an LSTM in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.pointwise = nn.Conv2d(4, 8, 1)
        self.norm = nn.BatchNorm2d(8)
        self.up = nn.ConvTranspose2d(8, 6, 4, stride=2, padding=1)
        self.act = nn.PReLU(6)
        self.shared = nn.Linear(16, 16)
        self.lstm = nn.LSTM(96, 12, bidirectional=True, batch_first=True)
        self.out = nn.Linear(24, 7)

    def forward(self, x: Any) -> Any:
        x = torch.nn.functional.hardswish(self.norm(self.depthwise(self.pointwise(x))))
        x = self.act(self.up(x))
        x = self.shared(torch.tanh(self.shared(x)))
        x, _ = self.lstm(x.transpose(1, 2).flatten(2))
        return self.out(x.mean(1))


def settled(net: Any) -> Any:
    """With statistics and scales that are not those of a new network."""
    generator = torch.Generator().manual_seed(3)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.copy_(torch.randn(module.running_mean.shape, generator=generator) * 0.2)
            module.running_var.copy_(torch.rand(module.running_var.shape, generator=generator) + 0.5)
            module.weight.data.copy_(torch.rand(module.weight.shape, generator=generator) + 0.5)
            module.bias.data.copy_(torch.randn(module.bias.shape, generator=generator) * 0.2)
    return net


def build(name: str) -> tuple[Any, Any]:
    """A network and an input for it."""
    torch.manual_seed(0)
    nets = {"resnet18": ResNet18, "encoder": Encoder, "mixed": Mixed}
    inputs = {
        "resnet18": lambda: torch.randn(2, 3, 64, 64),
        "encoder": lambda: torch.randint(0, 50, (2, 9)),
        "mixed": lambda: torch.randn(2, 4, 8, 8),
    }
    return settled(nets[name]()), inputs[name]()
