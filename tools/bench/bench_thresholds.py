"""Where trained thresholds (MSBench's preset `str`) settle, and how weight decay moves that: a table in Markdown.

    python tools/bench/bench_thresholds.py MODEL TRAIN TEST [--decay 0 0.0005 0.002 0.01] [--start -5] [--steps 1250]

TRAIN and TEST are made by `bench_finetune.py data`. Decay counts for thresholds as for any other parameter.
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

import numpy as np

from onnxsparse.data.samples import Order
from onnxsparse.dialects.msbench import build_sparse_scheduler, preset

BATCH, PARTS = 32, 4


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    for name in ("model", "train", "test"):
        parser.add_argument(name)
    parser.add_argument("--decay", type=float, nargs="+", default=[0.0, 0.0005, 0.002, 0.01])
    parser.add_argument("--start", type=float, default=-5.0)
    parser.add_argument("--steps", type=int, default=1250)
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--images", type=int, default=4000, help="test images that count")
    given = parser.parse_args()
    train, test = (dict(np.load(path, allow_pickle=False)) for path in (given.train, given.test))
    test = {name: array[: given.images // BATCH * BATCH] for name, array in test.items()}
    print(
        "| weight decay | zeros at the start, % | after a quarter | half | three quarters | at the end | accuracy, % |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|")
    for decay in given.decay:
        zeros, accuracy = settled(given, train, test, decay)
        row = " | ".join(f"{100 * share:.1f}" for share in zeros)
        print(f"| {decay:g} | {row} | {100 * accuracy:.2f} |", flush=True)
    return 0


def settled(given: Any, train: dict[str, Any], test: dict[str, Any], decay: float) -> tuple[list[float], float]:
    """The shares of zeros on the way, and the accuracy at the end."""
    config = preset("str")
    config["fake_sparse"]["kwargs"]["sInit_value"] = given.start
    scheduler = build_sparse_scheduler(config)
    model = scheduler.prepare_sparse_model(
        given.model, optimizer="sgd:momentum=0.9", lr=given.rate, weight_decay=decay, loss="cross-entropy", hardness=0.0
    )
    model.options = dataclasses.replace(model.options, lr_schedule="cosine")
    model.restart(given.steps)
    order, zeros = Order(len(train["labels"]), BATCH, 0), [scheduler.compute_sparse_rate(model)]
    for step in range(given.steps):
        scheduler.prune_model(model, step)
        rows = order.rows(step)
        model.step({name: array[rows] for name, array in train.items()})
        if (step + 1) * PARTS % given.steps < PARTS:
            zeros.append(scheduler.compute_sparse_rate(model))
    return zeros, accuracy_of(model, test)


def accuracy_of(model: Any, test: dict[str, Any]) -> float:
    right, count = 0, len(test["labels"])
    for start in range(0, count, BATCH):
        batch = {name: array[start : start + BATCH] for name, array in test.items()}
        _, outputs = model.evaluate(batch)
        right += int((next(iter(outputs.values())).argmax(1) == batch["labels"]).sum())
    return right / count


if __name__ == "__main__":
    raise SystemExit(main())
