"""Trains a small network of many kinds of layers on MNIST and exports it: the second network of the benchmarks.

    python models/train_mnist.py TRAIN.npz TEST.npz OUT.onnx [--epochs 8]

Needs torch and onnxscript; takes some minutes. The files hold `x` (N, 1, 28, 28) and `labels`, as
`tools/bench/bench_finetune.py data` writes them. The network is unlike the CNN of models/train_digits.py: a convolution
with normalisation, a depthwise and a pointwise one, two blocks of attention and a perceptron over 7 x 7 tokens, a
linear head. The file is what torch's exporter makes of it, with a free batch.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from torch import nn

WIDTH, HEADS, WIDER = 96, 4, 3
BATCH, RATE, DECAY = 100, 2e-3, 0.02


class Stem(nn.Module):  # type: ignore[misc, unused-ignore]
    """From pixels to tokens: two convolutions of stride 2, the second one in two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.first_norm = nn.Conv2d(1, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32)
        self.depthwise = nn.Conv2d(32, 32, 3, 2, 1, groups=32)
        self.pointwise = nn.Conv2d(32, WIDTH, 1)
        self.places = nn.Parameter(torch.randn(1, 49, WIDTH) * 0.02)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.first_norm(self.first(x)))
        x = self.pointwise(torch.nn.functional.hardswish(self.depthwise(x)))
        return x.flatten(2).transpose(1, 2) + self.places


class Block(nn.Module):  # type: ignore[misc, unused-ignore]
    """Attention and a perceptron, each normalised before and added after."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.joined = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, WIDER * WIDTH), nn.Linear(WIDER * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        x = x + self.attend(self.attention_norm(x))
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))

    def attend(self, x: Any) -> Any:
        query, key, value = (self._heads(part(x)) for part in (self.query, self.key, self.value))
        shares = torch.softmax(query @ key.transpose(2, 3) / (WIDTH // HEADS) ** 0.5, dim=-1)
        return self.joined((shares @ value).transpose(1, 2).flatten(2))

    def _heads(self, x: Any) -> Any:
        return x.unflatten(2, (HEADS, WIDTH // HEADS)).transpose(1, 2)


def network() -> Any:
    class Mean(nn.Module):  # type: ignore[misc, unused-ignore]
        def forward(self, x: Any) -> Any:
            return x.mean(dim=1)

    return nn.Sequential(Stem(), Block(), Block(), nn.LayerNorm(WIDTH), Mean(), nn.Linear(WIDTH, 10))


def train(images: Any, labels: Any, epochs: int) -> Any:
    torch.manual_seed(0)
    net, steps = network(), epochs * (len(images) // BATCH)
    optimiser = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=steps + 1, pct_start=0.1)
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(BATCH)[: len(images) // BATCH]:
            shift = tuple(int(s) for s in torch.randint(-1, 2, (2,)))
            loss = nn.functional.cross_entropy(net(torch.roll(images[batch], shift, (2, 3))), labels[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return net.eval()


def export(net: Any, sample: Any, path: str) -> None:
    axes = ({0: torch.export.Dim("N")},)
    torch.onnx.export(
        net, (sample,), path, dynamo=True, dynamic_shapes=axes, input_names=["x"], output_names=["logits"],
        opset_version=18, external_data=False, verbose=False,
    )  # fmt: skip


def read(path: str) -> tuple[Any, Any]:
    with np.load(path, allow_pickle=False) as arrays:
        return torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["labels"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("train")
    parser.add_argument("test")
    parser.add_argument("out")
    parser.add_argument("--epochs", type=int, default=8)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    net = train(*read(chosen.train), chosen.epochs)
    images, labels = read(chosen.test)
    with torch.no_grad():
        right = torch.cat([net(batch).argmax(dim=1) for batch in images.split(500)]) == labels
    export(net, images[:2], chosen.out)
    print(f"{chosen.out}: {100 * right.float().mean().item():.2f} % of {len(labels)} images")


if __name__ == "__main__":
    main()
