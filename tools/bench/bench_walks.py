"""How far one walks in the package to follow a command: measured over real runs on a small network.

    python tools/bench/bench_walks.py [--package FOLDER] [--only prune,finetune] [--json FILE]

1. Every command runs once in a process of its own, under `sys.setprofile`. A function counts when it is called for the
   first time; class bodies and what is made by `dataclass` do not count.
2. *Loaded*: modules of the package in `sys.modules` at the end. *Entered*: modules of which a function was called.
   *File changes*: how often the file changes when every function is read once, in the order of the first calls.
3. The evaluator that checks what is written has a walk of its own: *with evaluator* counts its files, too.
4. *Opens*, *walks* and *plans*: how often a model is opened, followed from its constants to its weights, and planned.
5. `--package` measures another checkout of the package, so that two commits stand side by side.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

HERE = Path(__file__).resolve().parent.parent.parent
MODEL = HERE / "models" / "digits_cnn.onnx"
COLUMNS = ("loaded", "entered", "functions", "file changes", "with evaluator", "opens", "walks", "plans")
RECIPE = """modifiers:
  - !EpochRangeModifier {start_epoch: 0.0, end_epoch: 2.0}
  - !GMPruningModifier {params: __ALL_PRUNABLE__, init_sparsity: 0.05, final_sparsity: 0.8, start_epoch: 0.0,
      end_epoch: 1.0, update_frequency: 0.5}
"""
JOB = """runtime: {{runner: {{type: sparse}}, random_seed: 0}}
data: {{train: {folder}/labelled.npz, batch_size: 16}}
trainer:
  max_epoch: 4
  optimizer: {{type: SGD, kwargs: {{lr: 0.01, momentum: 0.9}}}}
  lr_scheduler: {{type: CosineAnnealingLR, kwargs: {{T_max: 2}}}}
loss: {{type: cross_entropy}}
saver: {{save_dir: {folder}/saved, pretrain_model: {model}}}
sparsity:
  mask_generator: {{type: NormalMaskGenerator}}
  fake_sparse: {{type: FakeSparse}}
  scheduler: {{type: AmbaLevelPruneScheduler, kwargs: {{sparsity_table: [50, 70]}}}}
"""
# The second opinion on every weight: what it adds to a walk is counted apart.
EVALUATOR = {
    "evaluator", "constants", "constant_operators", "window", "opinion", "arriving", "prove",
    "strided_view", "evaluated_weights", "proof",
}  # fmt: skip


class Walk:
    """A profiler that notes the functions of one package in the order in which they are first called."""

    def __init__(self, package: Path) -> None:
        self._root = f"{package}{os.sep}"
        self._seen: set[CodeType] = set()
        self.order: list[CodeType] = []
        self.counts = {"opens": 0, "walks": 0, "plans": 0}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(self._root):
            return
        self._count(code)
        if code not in self._seen and not _is_class_body(code):
            self._seen.add(code)
            self.order.append(code)

    def _count(self, code: CodeType) -> None:
        place = (Path(code.co_filename).stem, code.co_name)
        for kind, name in (("opens", ("model", "open")), ("walks", ("flow", "walk")), ("plans", ("plan", "make_plan"))):
            self.counts[kind] += place == name

    def figures(self) -> dict[str, int]:
        every = [code.co_filename for code in self.order]
        files = [file for file in every if Path(file).stem not in EVALUATOR]
        loaded = sum(1 for name in sys.modules if name.split(".")[0] == "onnxsparse")
        sizes = {"loaded": loaded, "entered": len(set(files)), "functions": len(files)}
        return {**sizes, "file changes": _changes(files), "with evaluator": _changes(every), **self.counts}


def _changes(files: list[str]) -> int:
    return sum(1 for before, after in zip(files, files[1:]) if before != after)


def _is_class_body(code: CodeType) -> bool:
    return code.co_name == "<module>" or ("__qualname__" in code.co_names and "__module__" in code.co_names)


def _data(folder: Path) -> Path:
    import numpy as np

    samples = np.random.default_rng(0).random((64, 1, 8, 8), dtype=np.float32)
    np.save(folder / "samples.npy", samples)
    np.savez(folder / "labelled.npz", x=samples, labels=np.arange(64) % 10)
    return folder / "samples.npy"


def _commands(folder: Path) -> dict[str, Callable[[], list[str]]]:
    out = str(folder / "out.onnx")
    sparse = ["--target", "ampere", "-o", out]
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE, encoding="utf-8")
    train = [str(MODEL), "--data", str(_data(folder)), "--batch-size", "16", "-o", out, "--quiet"]
    job = folder / "job.yaml"
    job.write_text(JOB.format(folder=folder, model=MODEL), encoding="utf-8")
    few = ["--target", "ampere", "--steps", "4"]
    return {
        "prune": lambda: ["prune", str(MODEL), *sparse],
        "mask": lambda: ["mask", str(MODEL), *sparse],
        "fold": lambda: ["fold", str(folder / "masked.onnx"), "-o", out],
        "verify": lambda: ["verify", str(folder / "pruned.onnx"), "--target", "ampere"],
        "finetune in onnxruntime-training": lambda: ["finetune", *train, *few, "--engine", "ort"],
        "finetune in torch": lambda: ["finetune", *train, *few, "--engine", "torch"],
        "finetune by a recipe": lambda: ["finetune", *train, "--recipe", str(recipe), "--engine", "ort"],
        "levels 50,70": lambda: [
            "levels", *train[:-3], "--levels", "50,70", "-o", str(folder / "levels"), "--steps", "8", "--quiet",
            "--engine", "ort",
        ],
        "a job of MSBench, two levels": lambda: ["job", str(job)],
    }  # fmt: skip


def _prepare(folder: Path) -> None:
    from onnxsparse.cli import main

    for command, name in (("prune", "pruned"), ("mask", "masked")):
        main([command, str(MODEL), "--target", "ampere", "-o", str(folder / f"{name}.onnx"), "--quiet"])


def measure(name: str) -> dict[str, int]:
    """Run one command in this process, and say how far it went."""
    import onnxsparse

    with tempfile.TemporaryDirectory() as made, contextlib.redirect_stdout(io.StringIO()):
        folder = Path(made)
        arguments = _commands(folder)[name]()
        if name in ("fold", "verify"):
            subprocess.run([sys.executable, __file__, "--prepare", made], check=True, stdout=subprocess.DEVNULL)
        walk = Walk(Path(onnxsparse.__file__).parent)
        main = _train_sparse if arguments[0] == "job" else _command_line
        sys.setprofile(walk)
        try:
            code = main(arguments)
        finally:
            sys.setprofile(None)
        if code:
            raise SystemExit(f"{name}: exit code {code}")
    return walk.figures()


def _command_line(arguments: list[str]) -> int:
    from onnxsparse.cli import main

    return main(arguments)


def _train_sparse(arguments: list[str]) -> int:
    from onnxsparse.dialects.msbench.runner import SparseRunner

    runner = SparseRunner(arguments[1], quiet=True)
    runner.run()
    return 0 if runner.holds else 1


def _in_a_process(name: str, package: Path) -> dict[str, int] | None:
    environment = {**os.environ, "PYTHONPATH": str(package)}
    ran = subprocess.run(
        [sys.executable, __file__, "--measure", name], env=environment, check=False, capture_output=True, text=True
    )
    if ran.returncode:
        print(f"{name}: {ran.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    figures: dict[str, int] = json.loads(ran.stdout.strip().splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description="How far one walks in the package to follow a command.")
    parser.add_argument("--package", type=Path, default=HERE, help="the checkout that is measured")
    parser.add_argument("--only", help="names of commands, by commas")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--prepare", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.prepare:
        _prepare(asked.prepare)
        return
    if asked.measure:
        print(json.dumps(measure(asked.measure)))
        return
    with tempfile.TemporaryDirectory() as made:
        names = list(_commands(Path(made)))
    names = [name for name in names if not asked.only or any(part in name for part in asked.only.split(","))]
    print(f"| {'command':32} | " + " | ".join(f"{column:>12}" for column in COLUMNS) + " |")
    print(f"|{'-' * 34}|" + f"{'-' * 13}:|" * len(COLUMNS))
    found = {}
    for name in names:
        figures = found[name] = _in_a_process(name, asked.package.resolve())
        if figures is not None:
            print(f"| {name:32} | " + " | ".join(f"{figures[column]:12,}" for column in COLUMNS) + " |")
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
