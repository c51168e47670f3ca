"""Full-size exports of the documented networks: CPU seconds and memory of every command that needs no training.

    python tools/bench/bench_full_size.py --folder FOLDER [--only TEXT] [--detection 320x320] [--results FILE]

The networks are those of models/configs: ResNet-18 with an image of 224 x 224, RetinaNet-R18-improve and Faster R-CNN
R50-FPN with one of --detection, with the numbers of their initializers (but no bias against objects). Each part that is
traced is a file, as a runner exports it, and of a detector so is the whole, with its post-processing and NMS. Every
file is masked and folded, pruned 2:4 and verified, pruned to the seven levels of Ambarella without training, permuted,
quantized, and compared with the dense one. Each command is a process of its own on one thread, imports included. A
command that stands in --results is not repeated. Exit code 1: a command failed.

Needs torch and a runtime. This file imports nothing but the standard library: a child's peak memory starts at that of
its parent.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tools.bench.bench_finetune import environment  # noqa: E402 - after the path

CONFIGS = {
    "ResNet-18": "cls/resnet/res18.yaml",
    "RetinaNet-R18-improve": "det/retinanet/retinanet-r18-improve.yaml",
    "Faster R-CNN R50-FPN": "det/faster_rcnn/faster_rcnn_r50_fpn_1x.yaml",
}
LEVELS = (30, 40, 50, 60, 70, 80, 90)
STEPS = (
    "mask 2:4", "fold", "prune 2:4", "verify 2:4", *(f"prune to level {level}" for level in LEVELS), "verify level 90",
    "permute 2:4", "quantize the 2:4 file", "compare dense and 2:4",
)  # fmt: skip


ORDER = ("net", "bbox_head", "detector.whole")


@dataclass(frozen=True)
class Result:
    """What one command took; `failed` is its last line where it did not end well."""

    file: str
    step: str
    seconds: float
    memory: float
    failed: str = ""


def command(dense: Path, step: str) -> list[str]:
    """The words of a step; files lie beside the dense one."""
    made = {
        name: str(dense.with_suffix(f".{name}.onnx")) for name in ("masked", "folded", "pruned", "permuted", "int8")
    }
    word, data = step.partition(" ")[0], str(dense.with_suffix(".npz"))
    if word == "mask":
        return ["mask", str(dense), "--pattern", "2:4", "-o", made["masked"]]
    if word == "fold":
        return ["fold", made["masked"], "-o", made["folded"]]
    if word == "permute":
        return ["permute", str(dense), "--pattern", "2:4", "-o", made["permuted"]]
    if word == "quantize":
        return ["quantize", made["pruned"], "--data", data, "-o", made["int8"]]
    if word == "compare":
        return ["compare", str(dense), made["pruned"], "--data", data]
    level = step.rpartition(" ")[2]
    if level == "2:4":
        rule, file = ["--target", "ampere"], made["pruned"]
    else:
        rule, file = ["--target", "amba", "--level", level], str(dense.with_suffix(f".level{level}.onnx"))
    return ["verify", file, *rule] if word == "verify" else ["prune", str(dense), *rule, "-o", file]


def measure(file: str, step: str, words: list[str]) -> Result:
    """CPU seconds and peak bytes of a command; its last words only where it fails."""
    if "-o" in words:
        Path(words[words.index("-o") + 1]).unlink(missing_ok=True)
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen([sys.executable, *words], stdout=said, stderr=said, env=environment(), cwd=ROOT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        lines = said.read().decode(errors="replace").strip().splitlines()
    unit = 1 if sys.platform == "darwin" else 1024
    failed = f"exit code {process.returncode}: {lines[-1] if lines else ''}" if process.returncode else ""
    return Result(file, step, usage.ru_utime + usage.ru_stime, float(usage.ru_maxrss * unit), failed)


class Book:
    """Results by file and step, kept as lines of JSON."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path and path.exists() else []
        known = (Result(**json.loads(line)) for line in lines)
        self.results = {(result.file, result.step): result for result in known}

    def add(self, result: Result) -> None:
        self.results[result.file, result.step] = result
        if self._path:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(result)) + "\n")
        told = result.failed or f"{result.seconds:.1f} s, {result.memory / 1e6:,.0f} MB"
        print(f"{result.file:40} {result.step:24} {told}", file=sys.stderr, flush=True)

    def has(self, file: str, step: str) -> bool:
        return (file, step) in self.results and not self.results[file, step].failed


def exported(name: str, chosen: argparse.Namespace, book: Book) -> list[Path]:
    """The files of a network; they are made unless they lie there."""
    folder = chosen.folder / name.replace(" ", "-").lower()
    if not book.has(name, "export") or not list(folder.glob("*.npz")):
        size = "224x224" if name.startswith("ResNet") else chosen.detection
        maker = [str(Path(__file__).with_name("export_full_size.py"))]
        config = str(ROOT / "models/configs" / CONFIGS[name])
        book.add(measure(name, "export", [*maker, config, "--size", size, "--folder", str(folder)]))
    return sorted((path.with_suffix(".onnx") for path in folder.glob("*.npz")), key=lambda path: ORDER.index(path.stem))


def run(chosen: argparse.Namespace, book: Book) -> Iterator[tuple[str, Path]]:
    """Every step of every file that is not known yet."""
    for name in CONFIGS:
        if chosen.only not in name:
            continue
        for path in exported(name, chosen, book):
            file = f"{name}: {path.stem}"
            for step in STEPS:
                if not book.has(file, step):
                    book.add(measure(file, step, ["-m", "onnxsparse", *command(path, step)]))
            yield file, path


def tables(files: list[tuple[str, Path]], book: Book) -> tuple[str, bool]:
    """A table for each network: a row for each command, seconds and memory of each file."""
    text = ""
    for name in CONFIGS:
        if own := [(file, path) for file, path in files if file.startswith(f"{name}: ")]:
            text += f"\n### {name}\n\n{table(own, book)}"
    return text, all(not book.results[file, step].failed for file, _ in files for step in STEPS)


def table(files: list[tuple[str, Path]], book: Book) -> str:
    head = "".join(f" {path.stem}, {path.stat().st_size / 1e6:,.0f} MB: CPU s | peak RSS, MB |" for _, path in files)
    text = f"| |{head}\n|---|{'---:|---:|' * len(files)}\n"
    for title, steps in rows():
        cells = [cell for file, _ in files for cell in figures([book.results[file, step] for step in steps])]
        text += f"| {title} | {' | '.join(cells)} |\n"
    return text


def rows() -> Iterator[tuple[str, list[str]]]:
    """The levels are one row."""
    levels = [f"prune to level {level}" for level in LEVELS]
    for step in STEPS:
        if step == levels[0]:
            yield "seven levels, one by one", levels
        elif step not in levels:
            yield step, [step]


def figures(found: list[Result]) -> list[str]:
    bad = next((one.failed for one in found if one.failed), "")
    seconds = f"**{bad}**" if bad else f"{sum(one.seconds for one in found):.1f}"
    return [seconds, f"{max(one.memory for one in found) / 1e6:,.0f}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the files are written")
    parser.add_argument("--only", default="", help="networks whose name contains this")
    parser.add_argument("--detection", default="320x320", help="height and width of the image of detectors (320x320)")
    parser.add_argument("--results", type=Path, help="where finished commands are kept, so that none is repeated")
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    book = Book(chosen.results)
    text, holds = tables(list(run(chosen, book)), book)
    print(text)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
