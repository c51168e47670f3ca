"""Calibrated pruning held to its bars: accuracy, CPU seconds and memory of `prune --data` with its defaults, and peers.

    python tools/bench/bench_calibration.py run --nets FOLDER --results FILE [--only NAME ...] [--ways TITLE ...]
                                            [--levels 2:4 '80 %' ...] [--draws 0 1 2]
    python tools/bench/bench_calibration.py sizes --nets FOLDER --results FILE
    python tools/bench/bench_calibration.py table --nets FOLDER --results FILE

`run` takes the networks of `bench_calibration_nets.py`. Each is pruned with 256 unlabelled samples, tuned with 6,000,
pruned and quantized, all by default; then pruned by combinations of scores, solvers and allocations, and by peers
(calibration_ways.py); three draws of samples, or seeds, where they matter. `sizes` measures time and memory on networks
of full size, and the sentence model of `export_sentence_model.py`. Each command is a process of its own on one thread;
CPU seconds are user and system time of it and of its workers, imports included.

Rows that stand in --results are not repeated; one that failed is. `table` prints the tables of docs/benchmarks.md:
means of the draws that are there, peers that were not measured by name. Exit code 1: a bar was missed.

This file imports nothing but the standard library: a child's peak memory starts at that of its parent.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tools.bench.bench_finetune import environment  # noqa: E402 - after the path
from tools.bench.calibration_tables import tables  # noqa: E402
from tools.bench.calibration_ways import (  # noqa: E402
    LEVELS,
    LONGER,
    ONE_SHOT,
    QUANTIZED,
    WAYS,
    Case,
    Command,
    Way,
    missing,
)

MEASURE = str(ROOT / "tools/bench/measure_calibration.py")
SIZES = {"resnet50": ("2:4", "80 %"), "bert_base": ("2:4", "80 %"), "minilm": ("2:4", "50 %")}


@dataclass(frozen=True)
class Result:
    """What a row came to: accuracy (or a correlation) and zeros in per cent, memory in bytes of the largest process;
    `failed` is the last line of a command that did not end well."""

    net: str
    level: str
    way: str
    draw: int
    accuracy: float = 0.0
    zeros: float = 0.0
    seconds: float = 0.0
    memory: float = 0.0
    failed: str = ""

    @property
    def key(self) -> tuple[str, str, str, int]:
        return self.net, self.level, self.way, self.draw


class Book:
    """Results by what they are of, kept in a file as lines of JSON."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.results = {result.key: result for result in (Result(**json.loads(line)) for line in lines)}

    def add(self, result: Result) -> None:
        self.results[result.key] = result
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        told = result.failed or f"{result.accuracy:.2f}, {result.zeros:.0f} % zeros, {result.seconds:.1f} s"
        print(f"{result.net:20} {result.level:5} {result.way}, draw {result.draw}: {told}", flush=True)

    def has(self, key: tuple[str, str, str, int]) -> bool:
        return key in self.results and not self.results[key].failed


# -- one row


class FailedError(Exception):
    """A command ended with an error; its last line."""


def timed(command: Sequence[str]) -> tuple[str, float, float]:
    """What a command says, its CPU seconds and peak bytes, those of its workers with it."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, env=environment())
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        lines = said.read().decode(errors="replace").strip().splitlines()
    if process.returncode:
        raise FailedError(f"exit code {process.returncode}: {lines[-1] if lines else ''}")
    unit = 1 if sys.platform == "darwin" else 1024
    return lines[-1] if lines else "", usage.ru_utime + usage.ru_stime, float(usage.ru_maxrss * unit)


def found(commands: Iterable[Command], judge: Sequence[str]) -> dict[str, Any]:
    """Time and memory of the commands, and what the judge says of what they made."""
    seconds = memory = 0.0
    try:
        for command in commands:
            _, spent, most = timed(command)
            seconds, memory = seconds + spent, max(memory, most)
        said = json.loads(timed([sys.executable, MEASURE, *judge])[0])
    except FailedError as error:
        return {"failed": str(error)}
    right = said.get("accuracy", said.get("correlation", 0.0))
    return {"accuracy": right, "zeros": said["zeros"], "seconds": seconds, "memory": memory}


def measured(folder: Path, name: str, row: dict[str, Any], way: Way, level: str, draw: int) -> Result:
    """A network of the table, pruned and judged on its test set."""
    tuned_on = row["long" if way in LONGER else "finetune"]
    with tempfile.TemporaryDirectory(prefix="bench-") as work:
        out = Path(work) / "out.onnx"
        samples = folder / row["calibration"][draw]
        case = Case(folder / row["file"], samples, folder / tuned_on, out, level, draw)
        judge = ["accuracy", str(out), str(folder / row["test"]), str(folder / row["labels"])]
        return Result(name, level, way.title, draw, **found(way.commands(case), judge))


def sized(folder: Path, name: str, level: str, draw: int) -> Result:
    """A network of full size, which has no test set, or the sentence model, whose similarities are compared."""
    with tempfile.TemporaryDirectory(prefix="bench-") as work:
        out, dense, test = Path(work) / "out.onnx", folder / f"{name}.onnx", folder / f"{name}_test.npz"
        case = Case(dense, folder / f"{name}_calib_{draw}.npz", test, out, level, draw)
        judge = ["similarity", str(out), str(test), str(dense)] if test.exists() else ["zeros", str(out)]
        return Result(name, level, ONE_SHOT, draw, **found(WAYS[ONE_SHOT].commands(case), judge))


# -- all of them


def networks(folder: Path) -> dict[str, Any]:
    table: dict[str, Any] = json.loads((folder / "data.json").read_text(encoding="utf-8"))
    return table


def wanted(given: argparse.Namespace, absent: dict[str, str]) -> Iterator[tuple[str, Way, str, int]]:
    """Draw by draw, so that a table of fewer draws is there early."""
    rows = networks(given.nets)
    ways = [WAYS[title] for title in given.ways or WAYS]
    for draw in given.draws:
        for way in ways:
            for name in given.only or rows:
                if way.peer not in absent and fits(way, rows[name]) and (way.draws or not draw):
                    yield from ((name, way, level, draw) for level in way.levels if level in given.levels)


def fits(way: Way, row: dict[str, Any]) -> bool:
    """Whether a network has what the way takes: 20,000 images, or numbers that are not integers yet."""
    return (way not in LONGER or "long" in row) and (way.title != QUANTIZED or row["bars"] != "int8")


def run(given: argparse.Namespace) -> int:
    book, rows, absent = Book(given.results), networks(given.nets), missing()
    for name, reason in absent.items():
        print(f"not measured: {name}; {reason}", flush=True)
    for name, way, level, draw in wanted(given, absent):
        if not book.has((name, level, way.title, draw)):
            book.add(measured(given.nets, name, rows[name], way, level, draw))
    return 0


def sizes(given: argparse.Namespace) -> int:
    book = Book(given.results)
    for name, levels in SIZES.items():
        for level in levels:
            for draw in range(3):
                there = (given.nets / f"{name}_calib_{draw}.npz").exists()
                if there and not book.has((name, level, ONE_SHOT, draw)):
                    book.add(sized(given.nets, name, level, draw))
    return 0


def table(given: argparse.Namespace) -> int:
    results = [asdict(one) for one in Book(given.results).results.values()]
    text, holds = tables(results, networks(given.nets), missing())
    print(text)
    return 0 if holds else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for act in (run, sizes, table):
        one = commands.add_parser(act.__name__)
        one.set_defaults(act=act)
        one.add_argument("--nets", type=Path, required=True, help="the folder of bench_calibration_nets.py")
        one.add_argument("--results", type=Path, required=True, help="lines of JSON, one for each row")
        if act is run:
            one.add_argument("--only", nargs="+", metavar="NAME", help="of these networks")
            one.add_argument("--ways", nargs="+", choices=list(WAYS), metavar="TITLE", help=f"of {', '.join(WAYS)}")
            one.add_argument("--levels", nargs="+", default=list(LEVELS), choices=list(LEVELS))
            one.add_argument("--draws", nargs="+", type=int, default=[0, 1, 2])
    given = parser.parse_args()
    return int(given.act(given))


if __name__ == "__main__":
    sys.exit(main())
