"""Fine-tuning held to its bars: accuracy, CPU seconds and memory of `onnxsparse finetune` with its defaults.

    python tools/bench/bench_finetune.py data IMAGES LABELS OUT.npz --mean M --std S [--count 20000]
    python tools/bench/bench_finetune.py run --net NAME MODEL TRAIN TEST [--net ...] [--gains NAME ...]
                                       [--seeds 0 1 2] [--jobs 1] [--results FILE] [--markdown FILE]

`data` turns IDX files (as of MNIST and its kin, plain or .gz) into the arrays `x` and `labels`; with --count, that
many images drawn by seed 0. `run` tunes every net to each row of the table, without and with labels, with the defaults:
one set of defaults for everything, the row's pattern and the loss are all that changes. Each run is a process of its
own on one thread; CPU seconds are user and system time of it and of the worker it starts, imports included.

The bars are how far accuracy may fall from the dense model's: what a prototype reached on Fashion-MNIST, less a margin.
With labels they ask for gains there, since tuning gives the dense net one, too; of other nets than those of --gains
they ask for no loss instead. A run that stands in --results is not repeated. Exit code 1: a bar was missed.

This file imports nothing but the standard library: a child's peak memory starts at that of its parent.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev

ROOT = Path(__file__).resolve().parents[2]
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
SECONDS = 60.0

DATA = """
import gzip, sys
import numpy as np

def read(path):
    with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
        content = file.read()
    sizes = np.frombuffer(content, ">i4", content[3], 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(sizes)

images, labels, out, middle, spread, count = sys.argv[1:]
images, labels = read(images), read(labels).astype(np.int64)
if int(count):
    rows = np.random.default_rng(0).permutation(len(labels))[: int(count)]
    images, labels = images[rows], labels[rows]
x = (images.astype(np.float32) / 255 - np.float32(middle)) / np.float32(spread)
np.savez(out, x=x[:, np.newaxis], labels=labels)
"""
ACCURACY = """
import sys
import numpy as np
import onnxruntime

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
name, data = session.get_inputs()[0].name, np.load(sys.argv[2])
parts = (data[name][start : start + 100] for start in range(0, len(data["labels"]), 100))
logits = np.concatenate([session.run(None, {name: part})[0] for part in parts])
print(100 * float((logits.argmax(1) == data["labels"]).mean()))
"""


@dataclass(frozen=True)
class Case:
    """A row of the table, and the most points it may lose, without and with labels."""

    title: str
    flags: tuple[str, ...]
    loses: tuple[float, float]


def _level(share: str) -> tuple[str, ...]:
    return ("--pattern", "unstructured", "--sparsity", share)


CASES = (
    Case("2:4", ("--pattern", "2:4"), (0.09, -0.21)),
    Case("80 %", _level("0.8"), (0.49, -0.01)),
    Case("90 %", _level("0.9"), (0.69, 0.09)),
    Case("95 %", _level("0.95"), (1.09, 0.89)),
)


@dataclass(frozen=True)
class Net:
    name: str
    model: str
    train: str
    test: str


@dataclass(frozen=True)
class Job:
    net: Net
    case: Case
    labels: bool
    seed: int

    @property
    def command(self) -> list[str]:
        loss = ["--loss", "cross-entropy"] if self.labels else []
        tool = [sys.executable, "-m", "onnxsparse", "finetune", self.net.model, "--data", self.net.train]
        return [*tool, *self.case.flags, *loss, "--seed", str(self.seed)]


@dataclass(frozen=True)
class Result:
    """What a run came to; the accuracy is in per cent, memory in bytes of the larger of the run and its worker."""

    net: str
    case: str
    labels: bool
    seed: int
    dense: float
    accuracy: float
    seconds: float
    memory: float

    @property
    def key(self) -> tuple[str, str, bool, int]:
        return self.net, self.case, self.labels, self.seed


def environment() -> dict[str, str]:
    return {**os.environ, **dict.fromkeys(THREADS, "1"), "PYTHONPATH": str(ROOT)}


def measure(command: list[str]) -> tuple[float, float]:
    """CPU seconds and peak bytes of a process and of those it waited for; its own words only if it fails."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, env=environment())
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            sys.exit(f"{' '.join(command)}\n{said.read().decode(errors='replace')}")
    unit = 1 if sys.platform == "darwin" else 1024
    return usage.ru_utime + usage.ru_stime, float(usage.ru_maxrss * unit)


def accuracy(model: str, data: str) -> float:
    found = subprocess.run(
        [sys.executable, "-c", ACCURACY, model, data], check=True, capture_output=True, text=True, env=environment()
    )
    return float(found.stdout.split()[-1])


def tune(job: Job, dense: float) -> Result:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        out = str(Path(folder) / "out.onnx")
        seconds, memory = measure([*job.command, "-o", out])
        right = accuracy(out, job.net.test)
    return Result(job.net.name, job.case.title, job.labels, job.seed, dense, right, seconds, memory)


class Book:
    """Results by what they are of, kept in a file as lines of JSON."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path and path.exists() else []
        self.results = {result.key: result for result in (Result(**json.loads(line)) for line in lines)}

    def add(self, result: Result) -> None:
        self.results[result.key] = result
        if self._path:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(result)) + "\n")
        kind = "labels" if result.labels else "none"
        print(
            f"{result.net:10} {result.case:5} {kind:7} seed {result.seed}: {result.accuracy:.2f} % "
            f"(dense {result.dense:.2f}), {result.seconds:.1f} s, {result.memory / 1e6:,.0f} MB",
            file=sys.stderr, flush=True,
        )  # fmt: skip

    def of(self, net: str, case: str, labels: bool, seeds: Iterable[int]) -> list[Result]:
        keys = ((net, case, labels, seed) for seed in seeds)
        return [self.results[key] for key in keys if key in self.results]


def jobs(nets: list[Net], seeds: list[int], book: Book) -> Iterator[Job]:
    """Seed by seed, so that a table of fewer seeds is there early."""
    for seed in seeds:
        for net in nets:
            for labels in (False, True):
                for case in CASES:
                    if (net.name, case.title, labels, seed) not in book.results:
                        yield Job(net, case, labels, seed)


def least(case: Case, labels: bool, dense: float, gains: bool) -> float:
    """The accuracy that is promised."""
    loses = case.loses[labels]
    return dense - (loses if gains else max(loses, 0.0))


def lines(net: Net, gains: bool, seeds: list[int], book: Book) -> Iterator[tuple[str, bool]]:
    """The rows of a table, and whether each holds."""
    for labels in (False, True):
        for case in CASES:
            found = book.of(net.name, case.title, labels, seeds)
            if not found:
                continue
            right, bar = mean(one.accuracy for one in found), least(case, labels, found[0].dense, gains)
            seconds, memory = max(one.seconds for one in found), max(one.memory for one in found)
            spread = f"{stdev([one.accuracy for one in found]):.2f}" if len(found) > 1 else ""
            good = right >= bar - 1e-9 and seconds <= SECONDS
            each = ", ".join(f"{one.accuracy:.2f}" for one in found)
            kind, verdict = "with" if labels else "without", "yes" if good else "**no**"
            cells = [case.title, kind, f"{right:.2f}", each, spread, f"{bar:.2f}", f"{seconds:.0f}"]
            yield f"| {' | '.join(cells)} | {memory / 1e6:,.0f} | {verdict} |", good


HEAD = """
### {name}: dense {dense:.2f} %

| | labels | mean, % | of each seed | deviation | bar | CPU s, most | peak RSS, MB | holds |
|---|---|---:|---|---:|---:|---:|---:|---|
"""


def table(nets: list[Net], gains: list[str], seeds: list[int], book: Book) -> tuple[str, bool]:
    text, holds = "", True
    for net in nets:
        dense = next((one.dense for one in book.results.values() if one.net == net.name), float("nan"))
        rows = list(lines(net, net.name in gains, seeds, book))
        text += HEAD.format(name=net.name, dense=dense) + "".join(f"{row}\n" for row, _ in rows)
        holds &= all(good for _, good in rows)
    return text, holds


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    data = commands.add_parser("data", help="IDX files to arrays")
    for name in ("images", "labels", "out"):
        data.add_argument(name)
    data.add_argument("--mean", required=True, help="of the pixels, from 0 to 1")
    data.add_argument("--std", required=True)
    data.add_argument("--count", default="0", help="how many images, drawn by seed 0 (all)")
    run = commands.add_parser("run", help="tune and measure")
    run.add_argument("--net", nargs=4, action="append", required=True, metavar=("NAME", "MODEL", "TRAIN", "TEST"))
    run.add_argument("--gains", nargs="+", default=[], metavar="NAME", help="nets that have to gain by labels")
    run.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    run.add_argument("--jobs", type=int, default=1, help="runs at a time; each takes one thread (1)")
    run.add_argument("--results", type=Path, help="where finished runs are kept, so that they need not be repeated")
    run.add_argument("--markdown", type=Path, help="also write the tables to a file")
    return parser.parse_args()


def main() -> int:
    chosen = options()
    if chosen.command == "data":
        words = [chosen.images, chosen.labels, chosen.out, chosen.mean, chosen.std, chosen.count]
        return subprocess.run([sys.executable, "-c", DATA, *words]).returncode
    nets, book = [Net(*words) for words in chosen.net], Book(chosen.results)
    dense = {net.name: accuracy(net.model, net.test) for net in nets}
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for result in pool.map(lambda job: tune(job, dense[job.net.name]), list(jobs(nets, chosen.seeds, book))):
            book.add(result)
    text, holds = table(nets, chosen.gains, chosen.seeds, book)
    print(text)
    if chosen.markdown:
        chosen.markdown.write_text(text, encoding="utf-8")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
