"""Detectors held to their bars: RetinaNet and Faster R-CNN on scenes, trained, made sparse, exported, measured.

    python tools/bench/bench_detection.py run --scenes FASHION_MNIST --folder FOLDER --results FILE
                                          [--networks TEXT ...] [--skip TEXT ...] [--seeds 0 1 2]
    python tools/bench/bench_detection.py table --results FILE [--seeds 0 1 2]

`run` trains what the small configurations of models/configs say with `tools/train_sparse.py`: the float network; the
same with the extra steps of a sparse run; 2:4 and 70 % (a level of Ambarella) with labels and without, each from the
float network with a quarter of its steps. Between them stand the same zeros without training, as they are and with the
statistics of batch normalization estimated anew. The seed decides the initial weights and the order of the images;
the scenes are the same. mAP is measured in numpy and by pycocotools. CPU seconds are user and system time of the
training with its evaluation, exports and imports, on one thread.

Rows that stand in --results are not repeated; one that was stopped begins anew. `table` prints the tables of
docs/benchmarks.md: medians over the seeds that are there. Exit code 1: a bar was missed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tools.bench.bench_finetune import environment  # noqa: E402 - after the path

CONFIGS = ROOT / "models/configs/det"


@dataclass(frozen=True)
class Network:
    """A network of the table, and its bars: mAP50, how far a sparse one may fall behind, minutes."""

    name: str
    files: str
    float_file: str
    steps: int
    opts: tuple[str, ...]
    dense: float
    behind: tuple[float, float]
    minutes: tuple[float, float]
    goals: bool = False
    """What a sparse network loses is a goal, and no bar."""


FASTER = "faster_rcnn/faster_rcnn_r50_fpn"
R18 = ("net.0.type=resnet18", "net.0.kwargs.zero_init_residual=false")
NETWORKS = (
    Network("RetinaNet-R18", "retinanet/retinanet-r18-improve", "", 2500, (), 0.66, (0.02, 0.03), (12, 4)),
    Network(
        "Faster R-CNN R18-FPN", FASTER, "_1x", 1500, R18, 0.70, (0.03, 0.035), (11, 4)
    ),
    Network("Faster R-CNN R50-FPN", FASTER, "_1x", 600, (), 0.60, (0.03, 0.04), (7, 3), True),
)  # fmt: skip
KINDS = {"2:4": "ampere", "70 %": "amba"}
ABOVE_ONE_SHOT = 0.02
SLACK = 0.01
"""What a network trained without labels may lose more."""
DENSE, LONGER = "dense", "dense, the same extra steps"
ONE_SHOT, LABELS, NO_LABELS = "one-shot", "labels", "no labels"
ROWS = (DENSE, LONGER, *(f"{kind}, {how}" for how in (ONE_SHOT, LABELS, NO_LABELS) for kind in KINDS))
ORDER = (DENSE, *ROWS[2:], LONGER)
"""In which rows are run: what bars are about comes first."""


class Book:
    """Results by network, seed and row, kept as lines of JSON."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.results: dict[tuple[str, int, str], dict[str, Any]] = {}
        for line in lines:
            one = json.loads(line)
            self.results[one["network"], one["seed"], one["row"]] = one

    def add(self, network: str, seed: int, row: str, found: dict[str, Any]) -> None:
        result = {"network": network, "seed": seed, "row": row, **found}
        self.results[network, seed, row] = result
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
        print(f"{network}, seed {seed}, {row}: mAP50 {found['mAP50']:.4f}, {found['seconds']:.0f} s", flush=True)

    def of(self, network: str, row: str, seeds: Sequence[int]) -> list[dict[str, Any]]:
        return [self.results[network, seed, row] for seed in seeds if (network, seed, row) in self.results]


# -- running


@dataclass(frozen=True)
class Case:
    """One network and seed in its folder."""

    network: Network
    seed: int
    folder: Path

    def config(self, row: str) -> str:
        kind = next((word for text, word in KINDS.items() if row.startswith(text)), "")
        name = self.network.float_file if row == DENSE else f"_{kind or 'ampere'}_sparse"
        return str(CONFIGS / f"{self.network.files}{name}_small.yaml")

    def place(self, row: str) -> Path:
        return self.folder / "".join(one if one.isalnum() else "_" for one in f"{self.network.name} {self.seed} {row}")

    @property
    def dense(self) -> str:
        return str(self.place(DENSE) / "ckpt_latest.pth")

    def opts(self, row: str) -> list[str]:
        """What differs from the file: seed, steps, folders, where it starts."""
        steps = self.network.steps if row == DENSE else self.network.steps // 4
        words = [*self.network.opts, f"runtime.random_seed={self.seed}", f"saver.save_dir={self.place(row)}"]
        words += [f"trainer.{name}={steps}" for name in ("max_iter", "test_freq", "save_freq")]
        if row != DENSE:
            words.append(f"saver.pretrain_model={self.dense}")
        if row == LONGER:
            words.append("runtime.runner.type=base")
        if row.startswith("70 %"):
            inside = "sparsity.scheduler.kwargs"
            words += [f"{inside}.output_dir={self.place(row)}/analysis", f"{inside}.save_dir={self.place(row)}/levels"]
        return [*words, "loss.type=distill"] if row.endswith(NO_LABELS) else words


def timed(words: Sequence[str], folder: Path) -> tuple[str, float]:
    """What a script of ours says, and its CPU seconds."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen([sys.executable, *words], stdout=said, stderr=said, env=environment(), cwd=folder)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        text = said.read().decode(errors="replace")
    if process.returncode:
        sys.exit(f"{' '.join(words)}\n{text}")
    return text, usage.ru_utime + usage.ru_stime


def measured(folder: Path, *words: str) -> tuple[dict[str, Any], float]:
    text, seconds = timed([str(ROOT / "tools/bench/measure_detection.py"), *words], folder)
    found: dict[str, Any] = json.loads(text.splitlines()[-1])
    return found, seconds


def result(case: Case, row: str) -> dict[str, Any]:
    """Train and measure one row."""
    config, opts = case.config(row), case.opts(row)
    if row.endswith(ONE_SHOT):
        found, seconds = measured(case.folder, "one-shot", config, "--dense", case.dense, "--opts", *opts)
        return {**found, "seconds": seconds}
    shutil.rmtree(case.place(row), ignore_errors=True)
    tool = [str(ROOT / "tools/train_sparse.py"), config, "--whole", "--opts", *opts]
    _, seconds = timed(tool, case.folder)
    found, _ = measured(case.folder, "trained", config, "--folder", str(case.place(row)), "--opts", *opts)
    found["verified"] = all(verified(path) for path in found.pop("files", []))
    return {**found, "seconds": seconds}


def verified(path: str) -> bool:
    """By the record in the file."""
    words = [sys.executable, "-m", "onnxsparse", "verify", path, "-q"]
    return subprocess.run(words, check=False, env=environment(), cwd=ROOT).returncode == 0


def run(given: argparse.Namespace) -> None:
    book, folder = Book(given.results), given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    first = Case(NETWORKS[0], 0, folder).config(DENSE)
    measured(folder, "scenes", first, "--source", str(given.scenes.resolve()), "--counts", *given.counts)
    for seed in given.seeds:
        for network in (replace(one, steps=given.steps or one.steps) for one in NETWORKS):
            if not any(text in network.name for text in given.networks):
                continue
            for row in (one for one in ORDER if not any(text in one for text in given.skip)):
                if (network.name, seed, row) not in book.results:
                    book.add(network.name, seed, row, result(Case(network, seed, folder), row))


# -- the tables


def middle(found: Sequence[dict[str, Any]], name: str) -> float:
    return float(median(one[name] for one in found))


def each(found: Sequence[dict[str, Any]], name: str = "mAP50") -> str:
    return ", ".join(f"{one[name]:.3f}" for one in found)


def differences(
    book: Book, network: Network, row: str, other: tuple[str, str], seeds: Sequence[int]
) -> list[float]:  # fmt: skip
    """A row's mAP50 less another figure, seed by seed."""
    both = [seed for seed in seeds if all((network.name, seed, one) in book.results for one in (row, other[0]))]
    at = book.results
    return [at[network.name, seed, row]["mAP50"] - at[network.name, seed, other[0]][other[1]] for seed in both]


def lines(book: Book, network: Network, seeds: Sequence[int]) -> Iterator[tuple[str, bool]]:
    """The rows of the table of a network, and whether each holds."""
    for row in ROWS:
        found = book.of(network.name, row, seeds)
        if not found:
            yield f"| {row} | | not run | | | | | |", True
            continue
        away = differences(book, network, row, (DENSE, "mAP50"), seeds)
        good, bar = held(book, network, row, seeds)
        estimated = f" (BN estimated anew: {each(found, 'estimated_mAP50')})" if row.endswith(ONE_SHOT) else ""
        cells = [
            row, f"{middle(found, 'mAP50'):.3f}", each(found) + estimated, f"{middle(found, 'mAP'):.3f}",
            f"{median(away):+.3f}" if row != DENSE else "", bar, f"{middle(found, 'seconds') / 60:.1f}",
            "" if not bar else "yes" if good else "**no**",
        ]  # fmt: skip
        yield f"| {' | '.join(cells)} |", good or (network.goals and row != DENSE)


def held(book: Book, network: Network, row: str, seeds: Sequence[int]) -> tuple[bool, str]:
    """Whether the bars of a row hold, and how they read."""
    found = book.of(network.name, row, seeds)
    if row == DENSE:
        good = middle(found, "mAP50") >= network.dense and middle(found, "seconds") <= 60 * network.minutes[0]
        return good, f"{network.dense:.2f}; {network.minutes[0]} min"
    kind, _, how = row.partition(", ")
    if how not in (LABELS, NO_LABELS):
        return True, ""
    slack = SLACK if how == NO_LABELS else 0.0
    behind = -network.behind[list(KINDS).index(kind)] - slack
    above = ABOVE_ONE_SHOT - slack
    away = differences(book, network, row, (DENSE, "mAP50"), seeds)
    gained = differences(book, network, row, (f"{kind}, {ONE_SHOT}", "estimated_mAP50"), seeds)
    good = median(away) >= behind - 1e-9 and (not gained or median(gained) >= above - 1e-9)
    good = good and middle(found, "seconds") <= 60 * network.minutes[1]
    told = "goal " if network.goals else ""
    return good, f"{told}{behind:+.3f}; one-shot with BN {above:+.2f}; {network.minutes[1]} min"


def exact(book: Book, seeds: Sequence[int]) -> Iterator[tuple[str, bool]]:
    """What has to hold exactly, of every exported network."""
    for network in NETWORKS:
        for row in ROWS:
            found = [one for one in book.of(network.name, row, seeds) if "file_mAP50" in one]
            if not found:
                continue
            apart = max(
                max(one[f"{name}mAP50"] for name in ("", "numpy_", "file_"))
                - min(one[f"{name}mAP50"] for name in ("", "numpy_", "file_"))
                for one in found
            )
            judged = max(abs(one["mAP50"] - one["pycocotools_mAP50"]) for one in found)
            far = max(one["distance"] for one in found)
            kind = row.partition(",")[0]
            if kind == "2:4":
                zeros = all(one["eligible"] == one["two_of_four"] > 0 for one in found)
                told = f"2:4 in {', '.join(str(one['two_of_four']) for one in found)} of {found[0]['eligible']} layers"
            else:
                zeros = all(abs(one["zeros"] - 0.7) <= 0.005 for one in found)
                told = f"{', '.join(format(100 * one['zeros'], '.2f') for one in found)} %"
            verifies = all(one["verified"] for one in found)
            good = zeros and verifies and far <= 1e-4 and apart <= 0.002 and judged <= 1e-6
            cells = [f"{network.name}, {row}", told, "yes" if verifies else "**no**", f"{far:.1e}", f"{apart:.4f}",
                     f"{judged:.0e}", "yes" if good else "**no**"]  # fmt: skip
            yield f"| {' | '.join(cells)} |", good


HEAD = """
### {name}, {steps:,} steps

| | mAP50 | of each seed | mAP | against dense | bars: mAP50; CPU | CPU min | holds |
|---|---:|---|---:|---:|---|---:|---|
"""
EXACTLY = """
### What was exported

| | zeros | files verify | runtime against torch | mAP50 of torch, numpy, the file apart | against pycocotools | holds |
|---|---|---|---:|---:|---:|---|
"""


def table(given: argparse.Namespace) -> bool:
    book, holds = Book(given.results), True
    for network in NETWORKS:
        if not any(book.of(network.name, row, given.seeds) for row in ROWS):
            print(f"\n### {network.name}, {network.steps:,} steps\n\nNot run yet.")
            continue
        rows = list(lines(book, network, given.seeds))
        print(HEAD.format(name=network.name, steps=network.steps) + "\n".join(row for row, _ in rows))
        holds &= all(good for _, good in rows)
    rows = list(exact(book, given.seeds))
    print(EXACTLY + "\n".join(row for row, _ in rows))
    return holds and all(good for _, good in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("run", "table"):
        one = commands.add_parser(name)
        one.add_argument("--results", type=Path, required=True, help="lines of JSON, one for each row")
        one.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
        if name == "run":
            one.add_argument("--steps", type=int, default=0, help="of every float network: a trial, not the tables")
            one.add_argument("--counts", nargs=2, default=["10000", "500"], help="scenes to train and to test with")
            one.add_argument("--scenes", type=Path, required=True, help="the folder of Fashion-MNIST's idx files")
            one.add_argument("--folder", type=Path, required=True, help="for scenes, checkpoints and exported files")
            one.add_argument("--networks", nargs="+", default=[""], help="those whose name contains this")
            one.add_argument("--skip", nargs="+", default=[], help="rows whose name contains this")
    given = parser.parse_args()
    if given.command == "run":
        run(given)
        return 0
    return 0 if table(given) else 1


if __name__ == "__main__":
    sys.exit(main())
