"""Pruning at once, without training: what OBS and M-FAC lose beside magnitude, for a CNN in an ONNX file.

    OMP_NUM_THREADS=1 python tools/bench/bench_second_order.py MODEL TRAIN.npz TEST.npz [--levels 0.7 0.9] [--count 256]

TRAIN and TEST hold an array of images under the name of the model's input, and `labels`. The model becomes a torch
module; each recipe is applied to a fresh copy, with gradients of single images and their cross-entropy, and the
accuracy on TEST is measured. It needs torch.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import onnxsparse as osp
from onnxsparse.dialects.sparseml import ScheduledModifierManager

RECIPE = """
modifiers:
    - !%s
        start_epoch: 0.0
        end_epoch: 1.0
        update_frequency: 1.0
        init_sparsity: 0.0
        final_sparsity: %g
        params: __ALL_PRUNABLE__
        %s
"""
WAYS = {
    "magnitude": ("GMPruningModifier", ""),
    "magnitude, together": ("GMPruningModifier", "global_sparsity: true"),
    "OBS, blocks of 1": ("OBSPruningModifier", "num_grads: {count}"),
    "OBS, blocks of 32": ("OBSPruningModifier", "{{num_grads: {count}, fisher_block_size: 32, damp: 1.0e-6}}"),
    "OBS, 8 recomputations": (
        "OBSPruningModifier",
        "{{num_grads: {count}, fisher_block_size: 32, damp: 1.0e-6, num_recomputations: 8}}",
    ),
    "M-FAC, blocks of 2000": ("MFACPruningModifier", "{{num_grads: {count}, global_sparsity: true, damp: 1.0e-6}}"),
}


def recipe(name: str, level: float, count: int) -> str:
    kind, more = WAYS[name]
    lines = more.format(count=count).strip("{}").split(", ")
    return RECIPE % (kind, level, "\n        ".join(lines))


def accuracy(net: Any, images: Any, labels: Any) -> float:
    net.eval()
    with torch.no_grad():
        found = torch.cat([net(part).argmax(1) for part in images.split(500)])
    return 100 * float((found == labels).float().mean())


def arrays(path: str) -> tuple[Any, Any]:
    with np.load(path) as found:
        name = next(one for one in found.files if one != "labels")
        return torch.from_numpy(found[name]), torch.from_numpy(found["labels"]).long()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("train")
    parser.add_argument("test")
    parser.add_argument("--levels", type=float, nargs="+", default=[0.7, 0.8, 0.9])
    parser.add_argument("--count", type=int, default=256)
    options = parser.parse_args()
    (images, labels), test = arrays(options.train), arrays(options.test)

    def builder(_: Any = None) -> Iterator[Any]:
        for place in range(len(labels)):
            yield [images[place : place + 1]], {}, labels[place : place + 1]

    sampler = {"data_loader_builder": builder, "loss_function": torch.nn.functional.cross_entropy}
    print(f"dense: {accuracy(osp.torch.to_module(options.model), *test):.2f} %\n")
    print("| | " + " | ".join(f"{level:.0%}" for level in options.levels) + " | CPU s |")
    print("|---|" + "---:|" * (len(options.levels) + 1))
    for name in WAYS:
        start, row = time.process_time(), []
        for level in options.levels:
            net = osp.torch.to_module(options.model)
            manager = ScheduledModifierManager.from_yaml(recipe(name, level, options.count))
            manager.apply(net, grad_sampler=sampler)
            row.append(accuracy(net, *test))
        seconds = (time.process_time() - start) / len(options.levels)
        print(f"| {name} | " + " | ".join(f"{one:.2f}" for one in row) + f" | {seconds:.1f} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
