"""Trains the networks that quantization is measured on, on Fashion-MNIST, and exports them with opset 17. Needs torch.

    python tools/bench/bench_quantize_nets.py FOLDER --images FASHION_MNIST [--nets relu6 vit ...] [--seed 0]

FOLDER gets a file for each network: inverted residuals as in MobileNetV2 (`relu6`) and MobileNetV3 (`hswish`); a vision
transformer (`vit`); a transformer as BERT, with normalization behind each block, that reads the rows of an image as
words (`rows`); a bidirectional LSTM and a GRU over the rows (`recurrent`); and depthwise and pointwise convolutions
whose channels are rescaled at random after training, which changes nothing in what they compute (`unequal`).
`bench_permute_distance.py` trains the depthwise and residual networks of the same tables.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

BATCH, CLASSES = 100, 10


class Attention(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, words, width = x.shape
        part = width // self.heads
        q, k, v = self.qkv(x).reshape(-1, words, 3, self.heads, part).permute(2, 0, 3, 1, 4).unbind(0)
        weighted = (q @ k.transpose(-1, -2) * part**-0.5).softmax(-1) @ v
        return self.out(weighted.transpose(1, 2).reshape(-1, words, width))


def perceptron(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class PreNorm(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.perceptron = Attention(width, heads), perceptron(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x))
        return x + self.perceptron(self.second(x))


class PostNorm(PreNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x + self.attention(x))
        return self.second(x + self.perceptron(x))


class Vision(nn.Module):  # type: ignore[misc]
    """Patches of 4 x 4, four blocks of width 64."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.place = nn.Conv2d(1, 64, 4, 4), nn.Parameter(torch.randn(1, 49, 64) * 0.02)
        self.blocks = nn.Sequential(*[PreNorm(64, 4) for _ in range(4)])
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.patches(x).flatten(2).transpose(1, 2) + self.place)
        return self.head(self.norm(x).mean(1))


class Rows(nn.Module):  # type: ignore[misc]
    """Three blocks of width 96, and a pooler over the first row."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Linear(28, 96), nn.Parameter(torch.randn(1, 28, 96) * 0.02)
        self.blocks = nn.Sequential(*[PostNorm(96, 4) for _ in range(3)])
        self.pooler, self.head = nn.Linear(96, 96), nn.Linear(96, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.pooler(self.blocks(self.embed(x.flatten(1, 2)) + self.place)[:, 0])))


class Recurrent(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(28, 64, batch_first=True, bidirectional=True)
        self.gru, self.head = nn.GRU(128, 64, batch_first=True), nn.Linear(64, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.gru(self.lstm(x.flatten(1, 2))[0])[0][:, -1])


def normed(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1, *then: nn.Module) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), *then)


class Inverted(nn.Module):  # type: ignore[misc]
    def __init__(self, inputs: int, outputs: int, stride: int, wider: int, act: Callable[[], nn.Module]) -> None:
        super().__init__()
        inner, self.adds = inputs * wider, stride == 1 and inputs == outputs
        wide = normed(inputs, inner, 1, 1, 1, act())
        self.body = nn.Sequential(wide, normed(inner, inner, 3, stride, inner, act()), normed(inner, outputs, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.adds else self.body(x)


def inverted(act: Callable[[], nn.Module]) -> nn.Sequential:
    sizes = [(16, 16, 1, 1), (16, 24, 2, 4), (24, 24, 1, 4), (24, 40, 2, 4), (40, 40, 1, 4)]
    blocks = [Inverted(*size, act) for size in sizes]
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, CLASSES)]
    return nn.Sequential(normed(1, 16, 3, 2, 1, act()), *blocks, normed(40, 128, 1, 1, 1, act()), *pooled)


class Unequal(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        sizes = [
            (1, 32, 3, 2),
            (32, 32, 3, 1, 32),
            (32, 64, 1),
            (64, 64, 3, 2, 64),
            (64, 128, 1),
            (128, 128, 3, 1, 128),
        ]
        self.convs = nn.ModuleList([normed(*size) for size in [*sizes, (128, 128, 1)]])
        self.head = nn.Linear(128, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv in self.convs:
            x = torch.relu(conv(x))
        return self.head(x.mean((2, 3)))

    def rescale(self) -> None:
        """Widths of channels spread by a factor of e^1.2, as normalizations leave them that are folded."""
        draws = np.random.default_rng(3)
        for (_, norm), (conv, _) in zip(self.convs[:-1], self.convs[1:]):
            factors = torch.from_numpy(np.exp(draws.normal(0, 1.2, len(norm.weight))).astype(np.float32))
            norm.weight.data *= factors
            norm.bias.data *= factors
            conv.weight.data /= factors.view(-1, 1, 1, 1) if conv.groups > 1 else factors.view(1, -1, 1, 1)


class Net(NamedTuple):
    make: Callable[[], nn.Module]
    samples: int = 20_000
    epochs: int = 4
    rate: float = 3e-3


NETS = {
    "relu6": Net(lambda: inverted(nn.ReLU6)),
    "hswish": Net(lambda: inverted(nn.Hardswish)),
    "vit": Net(Vision, 30_000, 5, 1e-3),
    "rows": Net(Rows, 30_000, 5, 1e-3),
    "recurrent": Net(Recurrent),
    "unequal": Net(Unequal),
}


def images(folder: Path, kind: str) -> tuple[Any, Any]:
    with gzip.open(folder / f"{kind}-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28).astype(np.float32)
    with gzip.open(folder / f"{kind}-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8).astype(np.int64)
    return (pixels / np.float32(255) - np.float32(0.286)) / np.float32(0.353), labels


def trained(net: Net, seed: int, pixels: Any, labels: Any) -> nn.Module:
    torch.manual_seed(seed)
    model, order, steps = net.make(), np.random.default_rng(seed), net.epochs * (net.samples // BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), net.rate, weight_decay=1e-2)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2 * net.rate, total_steps=steps)
    for _ in range(net.epochs):
        places = order.permutation(net.samples)
        for at in range(0, net.samples, BATCH):
            batch = places[at : at + BATCH]
            loss = nn.functional.cross_entropy(model(torch.from_numpy(pixels[batch])), torch.from_numpy(labels[batch]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rate.step()
    return model.eval()


def export(model: nn.Module, path: Path) -> None:
    torch.onnx.export(
        model, (torch.zeros(1, 1, 28, 28),), str(path), input_names=["x"], output_names=["logits"], dynamo=False,
        dynamic_axes={"x": {0: "N"}, "logits": {0: "N"}}, opset_version=17,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", required=True, type=Path, help="the folder with the files of Fashion-MNIST")
    parser.add_argument("--nets", nargs="+", default=list(NETS), choices=list(NETS))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.folder.mkdir(parents=True, exist_ok=True)
    data, (held, right) = images(given.images, "train"), images(given.images, "t10k")
    for name in given.nets:
        model = trained(NETS[name], given.seed, *data)
        if isinstance(model, Unequal):
            model.rescale()
        with torch.no_grad():
            found = torch.cat([model(part) for part in torch.from_numpy(held).split(500)]).argmax(1).numpy()
        print(f"{name}: {100 * np.mean(found == right):.2f}", flush=True)
        export(model, given.folder / f"{name}{given.seed}.onnx")


if __name__ == "__main__":
    main()
