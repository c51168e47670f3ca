"""Time and memory from file to file, side by side in one run, held to the bars that the project promises.

    python tools/bench/bench_files.py [--models resnet50 bert external single] [--peers PYTHON] [--repeat 3]
                                [--folder FOLDER] [--only TEXT] [--json FILE] [--markdown FILE]

Each row is a process of its own on one thread: CPU seconds (user and system, imports included) are the least of the
repetitions, peak memory (mapped pages included) is the most. `copy` reads and writes the file in blocks of 16 MB,
measured the same way, and is what the bars for large models are multiples of. Before each row of a large model
another process touches memory and ends: what lay free for some seconds a host may have taken back, and writing to it
costs several times more then, which a row that writes late (it reads everything first) would pay for alone.
--peers is the Python of an environment that has polygraphy or onnxsim; they run once, on the models they can open.
Exit code 1: a bar was missed.

This file imports nothing but the standard library: a child's peak memory starts at that of its parent.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
MODELS = ("resnet50", "bert", "external", "single")
SMALL = ("resnet50", "bert")
GLOBAL = ("--pattern", "unstructured", "--sparsity", "0.8", "--allocation", "global")
LOADED = "onnx.load + onnx.save"
NEEDED = ("copy", "onnxsparse prune 2:4", LOADED)  # the bars and the checks of other rows use what these give
GB = 1e9

COPY = """
import sys
for name in sys.argv[3:]:
    with open(sys.argv[1] + name, "rb") as source, open(sys.argv[2] + name, "wb") as target:
        while block := source.read(1 << 24):
            target.write(block)
"""
TOUCH = """
import sys
memory = bytearray(int(sys.argv[1]))
memory[::4096] = bytes(len(range(0, len(memory), 4096)))
"""
LOAD_SAVE = "import sys, onnx; onnx.save(onnx.load(sys.argv[1]), sys.argv[2])"
ONNXSIM = """
import sys, onnx, onnxsim
onnx.save(onnxsim.prune_magnitude_cpp(onnx.load(sys.argv[1]), n=2, m=4), sys.argv[2])
"""


@dataclass(frozen=True)
class Bar:
    """The most that a row may take; None where nothing is promised."""

    seconds: float | None = None
    copies: float | None = None
    memory: float | None = None
    loads: float | None = None  # times `onnx.load` and `onnx.save` of the same file

    def __str__(self) -> str:
        parts = []
        if self.seconds is not None:
            parts.append(f"{self.seconds:g} s")
        if self.copies is not None:
            parts.append(f"{self.copies:g} x copy")
        if self.loads is not None:
            parts.append(f"{self.loads:g} x load + save")
        if self.memory is not None:
            parts.append(f"{self.memory / GB:.2f} GB")
        return ", ".join(parts)


@dataclass(frozen=True)
class Row:
    model: str
    title: str
    command: tuple[str, ...]
    writes: str = ""
    bar: Bar = Bar()
    peer: bool = False


@dataclass
class Result:
    """What a row took: the least time and the most memory of its repetitions."""

    row: Row
    seconds: float = float("inf")
    memory: float = 0.0
    error: str = ""

    def add(self, seconds: float, memory: float, error: str) -> None:
        self.error = self.error or error
        if not error:
            self.seconds, self.memory = min(self.seconds, seconds), max(self.memory, memory)

    def missed(self, copy: float, load: float) -> list[str]:
        """The bars that do not hold. A row without bars may fail, which is then what it shows."""
        bar = self.row.bar
        if bar == Bar():
            return []
        if self.error:
            return ["failed"]
        checks = {
            "time": bar.seconds is None or self.seconds <= bar.seconds,
            "x copy": bar.copies is None or self.seconds <= bar.copies * copy,
            "x load + save": bar.loads is None or self.seconds <= bar.loads * load,
            "memory": bar.memory is None or self.memory <= bar.memory,
        }
        return [name for name, holds in checks.items() if not holds]


@dataclass
class Bench:
    folder: Path
    peers: str = ""
    results: dict[tuple[str, str], Result] = field(default_factory=dict)

    def rows(self, model: str) -> Iterator[Row]:
        source, target = str(self.folder / f"{model}.onnx"), self._out("copy", model)
        endings = ["", ".data"] if model == "external" else [""]
        yield Row(model, "copy", (sys.executable, "-c", COPY, source, target, *endings), target)
        yield from self._ours(model, source)
        if model in SMALL:
            loaded = self._out("onnx", model)
            yield Row(model, LOADED, (sys.executable, "-c", LOAD_SAVE, source, loaded), loaded)
            yield from self._peers(model, source) if self.peers else ()

    def _ours(self, model: str, source: str) -> Iterator[Row]:
        tool = (sys.executable, "-m", "onnxsparse")
        sparse, ranked = self._out("2to4", model), self._out("global", model)
        prune = (*tool, "prune", source, "-o", sparse, "--pattern", "2:4")
        rank = (*tool, "prune", source, "-o", ranked, *GLOBAL)
        verify = (*tool, "verify", sparse, "--pattern", "2:4")
        if model == MODELS[0]:
            yield Row(model, "onnxsparse --help", (*tool, "--help"), bar=Bar(seconds=0.3))
        yield Row(model, "onnxsparse prune 2:4", prune, sparse, self._bar(model, "prune"))
        yield Row(model, "onnxsparse verify 2:4", verify, bar=self._bar(model, "verify"))
        yield Row(model, "onnxsparse prune global 80 %", rank, ranked, self._bar(model, "global"))

    def _bar(self, model: str, what: str) -> Bar:
        if model == "external":
            return Bar(copies=4, memory=GB)
        if model == "single":
            return Bar(memory=2.3 * (self.folder / "single.onnx").stat().st_size)
        seconds = {"resnet50": {"prune": 0.7, "verify": 0.6}, "bert": {"prune": 1.5, "verify": 0.6}}
        loads = {"resnet50": {"prune": 1.3, "verify": 1.0}, "bert": {"prune": 1.3, "verify": 0.6}}
        return Bar(seconds=seconds[model].get(what), loads=loads[model].get(what))

    def _peers(self, model: str, source: str) -> Iterator[Row]:
        sparse, out = self._out("2to4", model), self._out("peer", model)
        if _has(self.peers, "polygraphy"):
            tool = (self.peers, "-c", "from polygraphy.tools import main; main()")
            yield Row(model, "polygraphy surgeon prune", (*tool, "surgeon", "prune", source, "-o", out), out, peer=True)
            yield Row(model, "polygraphy inspect sparsity", (*tool, "inspect", "sparsity", sparse), peer=True)
        if _has(self.peers, "onnxsim"):
            yield Row(model, "onnxsim magnitude 2:4", (self.peers, "-c", ONNXSIM, source, out), out, peer=True)

    def _out(self, what: str, model: str) -> str:
        return str(self.folder / f"out-{what}-{model}.onnx")

    def run(self, row: Row) -> None:
        if row.writes:
            remove(row.writes)
        if row.model not in SMALL:
            warm(2 * (self.folder / f"{row.model}.onnx.data").stat().st_size if row.model == "external" else 4 << 30)
        result = self.results.setdefault((row.model, row.title), Result(row))
        result.add(*measure(row.command))
        print(f"  {row.model:9} {row.title:30} {result.seconds:8.2f} s {result.error}", file=sys.stderr, flush=True)

    def seconds(self, model: str, title: str) -> float:
        result = self.results.get((model, title))
        return result.seconds if result else float("nan")

    def units(self, model: str) -> tuple[float, float]:
        """What the bars are multiples of: a copy, and loading and saving with onnx."""
        return self.seconds(model, "copy"), self.seconds(model, LOADED)

    def missed(self) -> list[str]:
        found = {f"{m} {t}": r.missed(*self.units(m)) for (m, t), r in self.results.items()}
        return [f"{name}: {', '.join(what)}" for name, what in found.items() if what]


def _has(python: str, module: str) -> bool:
    return subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode == 0


def remove(path: str) -> None:
    """A written file and the data beside it: each repetition writes new files, as a user's first run does."""
    for old in Path(path).parent.glob(Path(path).name + "*"):
        old.unlink()


def warm(size: int) -> None:
    """Have the host give memory that is free, at most so much of it."""
    with suppress(OSError), open("/proc/meminfo", encoding="ascii") as known:
        free = next(1024 * int(line.split()[1]) for line in known if line.startswith("MemFree:"))
        subprocess.run([sys.executable, "-c", TOUCH, str(min(size, free * 3 // 5))], check=False)


def measure(command: tuple[str, ...]) -> tuple[float, float, str]:
    """CPU seconds, peak bytes, and why it failed."""
    environment = {**os.environ, **dict.fromkeys(THREADS, "1"), "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip().splitlines() or [""]
    error = f"exit code {process.returncode}: {said[-1][:120]}" if process.returncode else ""
    unit = 1 if sys.platform == "darwin" else 1024
    return usage.ru_utime + usage.ru_stime, float(usage.ru_maxrss * unit), error


def markdown(bench: Bench) -> str:
    parts = []
    for model in dict.fromkeys(model for model, _ in bench.results):
        parts.append(_heading(bench, model))
        parts.append("| | CPU s | x copy | x load + save | peak RSS, MB | bar | holds |")
        parts.append("|---|---:|---:|---:|---:|---|---|")
        units = bench.units(model)
        parts.extend(_line(result, *units) for result in bench.results.values() if result.row.model == model)
    return "\n".join(parts) + "\n"


def _heading(bench: Bench, model: str) -> str:
    size = sum(path.stat().st_size for path in bench.folder.glob(f"{model}.onnx*"))
    return f"\n### {model}, {size / 1e6:,.0f} MB\n"


def _line(result: Result, copy: float, load: float) -> str:
    row, missed = result.row, result.missed(copy, load)
    loads = "" if load != load else f"{result.seconds / load:.2f}"
    times = f"{result.seconds:.2f} | {result.seconds / copy:.1f} | {loads} | {result.memory / 1e6:,.0f}"
    if result.error:
        times = f"fails: {result.error.replace('|', '/')} | | | "
    verdict = "" if row.bar == Bar() else "yes" if not missed else f"**no: {', '.join(missed)}**"
    return f"| {row.title} | {times} | {row.bar} | {verdict} |"


def _entry(result: Result, copy: float, load: float) -> dict[str, object]:
    return {
        "model": result.row.model,
        "title": result.row.title,
        "cpu_seconds": None if result.error else result.seconds,
        "copy_seconds": copy,
        "load_and_save_seconds": None if load != load else load,
        "peak_rss_bytes": result.memory,
        "error": result.error,
        "bar": asdict(result.row.bar),
        "missed": result.missed(copy, load),
    }


def as_json(bench: Bench, repeat: int) -> str:
    rows = [_entry(result, *bench.units(result.row.model)) for result in bench.results.values()]
    machine = {"python": platform.python_version(), "system": platform.system(), "machine": platform.machine()}
    return json.dumps({"machine": machine, "repeat": repeat, "rows": rows}, indent=2) + "\n"


def options() -> argparse.Namespace:
    cache = Path(os.environ.get("ONNXSPARSE_BENCH") or Path.home() / ".cache" / "onnxsparse-bench")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="which models (all)")
    parser.add_argument("--folder", type=Path, default=cache, help="where the models are made ($ONNXSPARSE_BENCH)")
    parser.add_argument("--peers", default="", metavar="PYTHON", help="the Python of an environment with the peers")
    parser.add_argument("--repeat", type=int, default=3, help="repetitions; the peers run once (3)")
    parser.add_argument("--only", default="", help="only rows with this text in their title, and those they need")
    parser.add_argument("--json", type=Path, help="also write the results as JSON")
    parser.add_argument("--markdown", type=Path, help="also write the table to a file")
    return parser.parse_args()


def prepare(folder: Path, models: list[str]) -> None:
    builder = str(ROOT / "models" / "builders.py")
    subprocess.run([sys.executable, builder, str(folder), *models], check=True, stdout=sys.stderr)


def run_all(bench: Bench, chosen: argparse.Namespace) -> None:
    for model in chosen.models:
        rows = [row for row in bench.rows(model) if row.title in NEEDED or chosen.only in row.title]
        measure(rows[0].command)  # the first copy also pays for memory that the system has not handed out before
        for repetition in range(chosen.repeat):
            for row in rows:
                if not (row.peer and repetition):
                    bench.run(row)
        for row in rows:
            if row.writes:
                remove(row.writes)


def main() -> int:
    chosen = options()
    prepare(chosen.folder, chosen.models)
    bench = Bench(chosen.folder, chosen.peers)
    run_all(bench, chosen)
    table = markdown(bench)
    print(table)
    if chosen.json:
        chosen.json.write_text(as_json(bench, chosen.repeat), encoding="utf-8")
    if chosen.markdown:
        chosen.markdown.write_text(table, encoding="utf-8")
    for missed in bench.missed():
        print(f"missed: {missed}", file=sys.stderr)
    return 1 if bench.missed() else 0


if __name__ == "__main__":
    sys.exit(main())
