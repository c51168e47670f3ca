"""Levels held to their bars: accuracy of every level of one run, and the CPU seconds of sharing levels out by energy.

    python tools/bench/bench_levels.py train MODEL TRAIN TEST [--seeds 0 1] [--folder FOLDER] [--bar 89.9] [--last 88.0]
    python tools/bench/bench_levels.py energy MODEL [--dim NAME=SIZE ...] [--bar 6]

`train` runs `onnxsparse levels` with its defaults, one epoch for each level, for every seed; the bars are the least
mean accuracy, in per cent, of all levels but the last one, and of that. A folder of a run that is done is not run
again. `energy` measures the sharing out of seven levels alone. Exit code 1: a bar was missed.

TRAIN and TEST are made by `bench_finetune.py data`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
TOLERANCE = 0.015

ENERGY = """
import sys, time
import onnxsparse as osp
from onnxsparse.planning.plan import candidates, make_plan
from onnxsparse.planning.rule import Rule

dims = dict(pair.split("=") for pair in sys.argv[2:])
model, rule = osp.load(sys.argv[1]), Rule.make(target="amba", level=30)
model.sizes.update({name: int(size) for name, size in dims.items()})
plan = make_plan(model, rule)
levels, begun = [one / 100 for one in range(30, 100, 10)], time.process_time()
found = rule.allocation.allocate_levels(candidates(model, plan.rows, rule), levels, rule.pattern)
taken, size = time.process_time() - begun, sum(row.weight.tensor.size for row in plan.planned)
off = max(abs(sum(counts.values()) / size - level) for counts, level in zip(found, levels))
print(taken, size, off)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train")
    for name in ("model", "train", "test"):
        train.add_argument(name)
    train.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    train.add_argument("--folder", default="levels-bench")
    train.add_argument("--bar", type=float, default=89.9)
    train.add_argument("--last", type=float, default=88.0)
    energy = commands.add_parser("energy")
    energy.add_argument("model")
    energy.add_argument("--dim", action="append", default=[])
    energy.add_argument("--bar", type=float, default=6.0)
    given = parser.parse_args()
    return trained(given) if given.command == "train" else shared_out(given)


def trained(given: argparse.Namespace) -> int:
    tables = [run(given, seed) for seed in given.seeds]
    missed = False
    print("| level | sparsity, % | mean, % | of each seed | bar | MACs left, % | verified | holds |")
    print("|---|---:|---:|---|---:|---:|---|---|")
    for rows in zip(*(table["levels"] for table in tables)):
        figures = [100 * row["metrics"]["accuracy"] for row in rows]
        last = rows[0]["level"] == tables[0]["levels"][-1]["level"]
        bar = given.last if last else given.bar
        near = all(abs(row["sparsity"] - row["level"] / 100) <= TOLERANCE and row["verified"] for row in rows)
        holds = mean(figures) >= bar and near
        missed = missed or not holds
        print(
            f"| {rows[0]['level']:g} | {100 * rows[0]['sparsity']:.2f} | {mean(figures):.2f} | "
            f"{', '.join(f'{one:.2f}' for one in figures)} | {bar} | "
            f"{100 * rows[0]['macs_left'] / rows[0]['macs']:.1f} | {'yes' if near else '**no**'} | "
            f"{'yes' if holds else '**no**'} |"
        )
    print(f"\ndense: {100 * tables[0]['dense']['accuracy']:.2f} %")
    return int(missed)


def run(given: argparse.Namespace, seed: int) -> dict[str, Any]:
    """One run through all levels, unless it is there."""
    folder = os.path.join(given.folder, f"seed-{seed}")
    tool = [sys.executable, "-m", "onnxsparse", "levels", given.model, "--data", given.train, "--eval-data", given.test]
    options = ["--metric", "accuracy", "--loss", "cross-entropy", "--seed", str(seed), "-o", folder, "--quiet"]
    if not Path(folder, "levels.json").exists():
        subprocess.run([*tool, *options], check=True, cwd=ROOT, env={**os.environ, **dict.fromkeys(THREADS, "1")})
    found: dict[str, Any] = json.loads(Path(folder, "levels.json").read_text(encoding="utf-8"))
    return found


def shared_out(given: argparse.Namespace) -> int:
    done = subprocess.run(
        [sys.executable, "-c", ENERGY, given.model, *given.dim],
        check=True, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **dict.fromkeys(THREADS, "1")},
    )  # fmt: skip
    seconds, size, off = map(float, done.stdout.split())
    print(
        f"{size:,.0f} numbers, seven levels: {seconds:.2f} CPU s (bar {given.bar:g}), off by {100 * off:.2f} % at most"
    )
    return int(seconds > given.bar or off > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
