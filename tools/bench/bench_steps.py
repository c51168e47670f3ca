"""The step of a fine-tuning: what masks cost, time and memory beside torch, and whether memory grows.

    python tools/bench/bench_steps.py --net NAME MODEL DATA.npz [--net ...] [--torch PYTHON] [--only time memory growth]
                                [--batch 32] [--steps 100] [--rounds 3] [--markdown FILE]

A net may be any whose input is `x` and whose operators tools/bench/step_torch.py knows; `bert4` as MODEL stands for a
BERT-like net of 4 layers with random weights, made in a temporary folder together with its data.

* time: AdamW towards the dense outputs, the same batch and weights, CPU milliseconds on one thread; with masks on all
  weights and without any, in turns. The rounds alternate with torch's; the round with the least time counts.
* memory: the peaks of a fine-tuning of 200 steps and of the worker that makes its graph, beside the peak of the same
  steps in torch. Bar: 1.3 times torch, each.
* growth: what is resident after 200 and after 2,000 steps. Bar: 2 % or 2 MB.

Exit code 1: a bar was missed. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
MASKS, MEMORY, GROWTH, LITTLE = 1.05, 1.3, 1.02, 2e6
PARTS = ("time", "memory", "growth")
SHORT, LONG = 200, 2000

BERT4 = """
import sys
import numpy as np
from onnx import save
from models.builders import bert

save(bert(layers=4, hidden=256, heads=4), sys.argv[1])
np.savez(sys.argv[2], x=np.random.default_rng(0).standard_normal((1024, 32, 256), dtype=np.float32))
"""


@dataclass
class Bench:
    torch: str
    batch: int
    steps: int
    rounds: int
    lines: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)

    def ours(self, what: str, net: list[str], steps: int) -> Any:
        tool = [sys.executable, str(ROOT / "tools" / "bench" / "step_onnxsparse.py"), what, *net[1:]]
        return said([*tool, "--batch", str(self.batch), "--steps", str(steps)])

    def peer(self, net: list[str], steps: int) -> Any:
        tool = [self.torch, str(ROOT / "tools" / "bench" / "step_torch.py"), *net[1:]]
        return said([*tool, "--batch", str(self.batch), "--steps", str(steps)])

    def head(self, *cells: str) -> None:
        rule = "|".join(["---", *["---:"] * (len(cells) - 2), "---"])
        self.lines += ["", f"| {' | '.join(cells)} |", f"|{rule}|"]

    def line(self, net: list[str], what: str, holds: bool, *cells: str) -> None:
        self.lines.append(f"| {' | '.join([net[0], *cells, 'yes' if holds else '**no**'])} |")
        if not holds:
            self.missed.append(f"{net[0]}: {what}")

    def time(self, nets: list[list[str]]) -> None:
        self.head("a step, CPU ms", "without masks", "with masks", "ratio", "bar", "torch", "of torch", "holds")
        for net in nets:
            found = [(self.ours("time", net, self.steps), self._torch_ms(net)) for _ in range(self.rounds)]
            best = min((ours for ours, _ in found), key=lambda one: one["masked"])
            torch = min(ms for _, ms in found)
            beside = (f"{torch:.1f}", f"{best['masked'] / torch:.2f}x") if self.torch else ("", "")
            times = f"{best['plain']:.1f}", f"{best['masked']:.1f}", f"{best['ratio']:.3f}", f"{MASKS:g}"
            self.line(net, "masks", best["ratio"] <= MASKS, *times, *beside)

    def _torch_ms(self, net: list[str]) -> float:
        return float(self.peer(net, self.steps)["ms"]) if self.torch else float("nan")

    def memory(self, nets: list[list[str]]) -> None:
        self.head("peak RSS, MB", "fine-tuning", "its worker", "torch", "of torch", "worker", "bar", "holds")
        for net in nets:
            own, peer = self.ours("memory", net, SHORT), self.peer(net, SHORT)["peak"]
            shares = own["peak"] / peer, own["worker"] / peer
            sizes = [f"{size / 1e6:,.0f}" for size in (own["peak"], own["worker"], peer)]
            self.line(net, "memory", max(shares) <= MEMORY, *sizes, *(f"{one:.2f}x" for one in shares), f"{MEMORY:g}x")

    def growth(self, nets: list[list[str]]) -> None:
        self.head("resident, MB", f"at step {SHORT}", f"at step {LONG}", "holds")
        for net in nets:
            resident = self.ours("memory", net, LONG)["resident"]
            early, late = resident[str(SHORT)], resident[str(LONG)]
            holds = late <= max(GROWTH * early, early + LITTLE)
            self.line(net, "growth", holds, f"{early / 1e6:,.1f}", f"{late / 1e6:,.1f}")


def said(command: list[str]) -> Any:
    """What a process says, as JSON."""
    environment = {**os.environ, **dict.fromkeys(THREADS, "1"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    print(f"{' '.join(command[1:4])}: {done.stdout.strip()}", file=sys.stderr, flush=True)
    return json.loads(done.stdout.splitlines()[-1])


def prepared(nets: list[list[str]], folder: str) -> list[list[str]]:
    """The nets, with the one that is asked for by name made."""
    made = [f"{folder}/bert4.onnx", f"{folder}/bert4.npz"]
    if any(net[1] == "bert4" for net in nets):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-c", BERT4, *made], check=True, env=environment)
    return [[net[0], *made] if net[1] == "bert4" else net for net in nets]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--net", nargs=3, action="append", required=True, metavar=("NAME", "MODEL", "DATA"))
    parser.add_argument("--torch", default="", metavar="PYTHON", help="the Python of an environment with torch")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=100, help="steps that are timed (100)")
    parser.add_argument("--rounds", type=int, default=3, help="how often that is done (3)")
    parser.add_argument("--markdown", type=Path, help="also write the tables to a file")
    return parser.parse_args()


def main() -> int:
    chosen = options()
    bench = Bench(chosen.torch, chosen.batch, chosen.steps, chosen.rounds)
    with tempfile.TemporaryDirectory() as folder:
        nets = prepared(chosen.net, folder)
        if "time" in chosen.only:
            bench.time(nets)
        if "memory" in chosen.only and chosen.torch:
            bench.memory(nets)
        if "growth" in chosen.only:
            bench.growth(nets)
    text = "\n".join(bench.lines) + "\n"
    print(text)
    if chosen.markdown:
        chosen.markdown.write_text(text, encoding="utf-8")
    for missed in bench.missed:
        print(f"missed: {missed}", file=sys.stderr)
    return 1 if bench.missed else 0


if __name__ == "__main__":
    sys.exit(main())
