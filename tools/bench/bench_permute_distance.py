"""How much closer a network stays to the dense one where its channels are permuted before 2:4 pruning.

A depthwise and a residual CNN are trained on Fashion-MNIST (20,000 images, three seeds each), exported with their
normalization folded, and pruned to 2:4 without and with `permute`; no weight is refitted. The distance is that of the
outputs on 5,000 held-out images, relative to those of the dense network. Needs torch.

    python tools/bench/bench_permute_distance.py --images FOLDER [--work FOLDER] [--seeds 0,1,2]
"""

from __future__ import annotations

import argparse
import gzip
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import nn

import onnxsparse as osp

TRAINED_ON, HELD_OUT, EPOCHS = 20_000, 5_000, 4


def images(folder: str, kind: str) -> tuple[Any, Any]:
    """Images as float arrays (N, 1, 28, 28), normalized, and their labels."""
    with gzip.open(os.path.join(folder, f"{kind}-images-idx3-ubyte.gz")) as file:
        pixels = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28)
    with gzip.open(os.path.join(folder, f"{kind}-labels-idx1-ubyte.gz")) as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)
    return ((pixels / np.float32(255) - np.float32(0.286)) / np.float32(0.353)).astype(np.float32), labels.astype(
        np.int64
    )


def normed(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Separable(nn.Module):  # type: ignore[misc]
    """A depthwise and a pointwise convolution."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.deep, self.point = normed(inputs, inputs, 3, stride, inputs), normed(inputs, outputs, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.point(torch.relu(self.deep(x))))


class Residual(nn.Module):  # type: ignore[misc]
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.one, self.two = normed(inputs, outputs, 3, stride), normed(outputs, outputs, 3)
        self.short = normed(inputs, outputs, 1, stride) if stride > 1 or inputs != outputs else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.two(torch.relu(self.one(x))) + self.short(x))


def network(kind: str) -> nn.Module:
    """The depthwise or the residual one."""
    if kind == "depthwise":
        sizes = [(32, 64, 2), (64, 128, 1), (128, 128, 2), (128, 256, 1)]
        blocks = [Separable(*size) for size in sizes]
    else:
        sizes = [(32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2)]
        blocks = [Residual(*size) for size in sizes]
    last = sizes[-1][1]
    stem = nn.Sequential(normed(1, 32, 3, 2), nn.ReLU())
    return nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, 10))


def trained(kind: str, seed: int, path: Path, pixels: Any, labels: Any) -> None:
    """Train one network and export it."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    model, order = network(kind), np.random.default_rng(seed)
    steps = EPOCHS * (TRAINED_ON // 100)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=1e-2)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=steps)
    for _ in range(EPOCHS):
        places = order.permutation(TRAINED_ON)
        for at in range(0, TRAINED_ON, 100):
            batch = places[at : at + 100]
            loss = nn.functional.cross_entropy(model(torch.from_numpy(pixels[batch])), torch.from_numpy(labels[batch]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rate.step()
    sample, axes = torch.zeros(1, 1, 28, 28), {"x": {0: "N"}, "logits": {0: "N"}}
    torch.onnx.export(
        model.eval(), (sample,), str(path), input_names=["x"], output_names=["logits"], dynamic_axes=axes, dynamo=False
    )


def outputs(model: Any, pixels: Any) -> Any:
    """The outputs of a model on the held-out images."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    data = model if isinstance(model, str) else model.SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, {"x": part})[0] for part in np.split(pixels, 10)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", required=True, help="the folder with the four files of Fashion-MNIST")
    parser.add_argument("--work", default="permute_distance", help="where trained networks are kept")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--effort", default="quick", choices=("quick", "thorough"))
    given = parser.parse_args()
    work = Path(given.work)
    work.mkdir(parents=True, exist_ok=True)
    held, held_labels = (one[:HELD_OUT] for one in images(given.images, "t10k"))
    print(
        "| network | seed | dense | 2:4 | permuted | distance | permuted | change |\n|---|---|---|---|---|---|---|---|"
    )
    for kind in ("depthwise", "residual"):
        changes = []
        for seed in map(int, given.seeds.split(",")):
            path = work / f"{kind}{seed}.onnx"
            if not path.exists():
                trained(kind, seed, path, *images(given.images, "train"))
            dense = outputs(str(path), held)
            plain = outputs(osp.prune(str(path), target="ampere").model, held)
            permuted = outputs(osp.prune(str(path), target="ampere", permute=True, effort=given.effort).model, held)
            right = [f"{100 * np.mean(one.argmax(1) == held_labels):.2f}" for one in (dense, plain, permuted)]
            far = [float(np.linalg.norm(one - dense) / np.linalg.norm(dense)) for one in (plain, permuted)]
            changes.append(far[1] / far[0] - 1)
            print(
                f"| {kind} | {seed} | {' | '.join(right)} | {far[0]:.4f} | {far[1]:.4f} | {100 * changes[-1]:+.1f} % |"
            )
        print(f"| {kind} | mean | | | | | | {100 * np.mean(changes):+.1f} % |", flush=True)


if __name__ == "__main__":
    main()
