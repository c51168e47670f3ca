"""The main job, end to end, on the small network of models/: prune it two ways, verify, and compare the accuracy.

    python tools/demo.py [FOLDER]

Writes the pruned files to FOLDER (demo-output). The accuracy needs scikit-learn, whose handwritten digits are the data,
and onnxruntime, from the extra `runtime` or `ort`.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from models.digits import accuracy  # noqa: E402 - the script runs from anywhere

DENSE = ROOT / "models" / "digits_cnn.onnx"


@dataclass(frozen=True)
class Job:
    title: str
    file: str
    prune: tuple[str, ...]
    verify: tuple[str, ...] = ()


JOBS = (
    Job("2:4 for NVIDIA Ampere and newer", "digits_2to4.onnx", ("--target", "ampere"), ("--target", "ampere")),
    Job("unstructured, 80 % of each layer", "digits_80.onnx", ("--pattern", "unstructured", "--sparsity", "0.8")),
)


def onnxsparse(console: Console, *arguments: str) -> None:
    """Run the command line as a user would; the demo ends with its exit code if it does not succeed."""
    console.print(f"\n[bold]$ onnxsparse {shlex.join(arguments)}[/bold]", highlight=False, soft_wrap=True)
    code = subprocess.run([sys.executable, "-m", "onnxsparse", *arguments], cwd=ROOT).returncode
    if code:
        sys.exit(code)


def run(console: Console, job: Job, folder: Path) -> Path:
    out = folder / job.file
    console.rule(job.title)
    onnxsparse(console, "prune", shown(DENSE), "-o", shown(out), *job.prune, "--overwrite")
    onnxsparse(console, "verify", shown(out), *job.verify)
    return out


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT)) if ROOT in path.parents else str(path)


def zeros(path: Path) -> str:
    """The share of zeros in the weight matrices, counted here rather than taken from a report."""
    arrays = [onnx.numpy_helper.to_array(t) for t in onnx.load(str(path)).graph.initializer if len(t.dims) > 1]
    zero, total = (sum(f(a) for a in arrays) for f in (lambda a: int(np.sum(a == 0)), lambda a: a.size))
    return f"{zero:,} of {total:,}  ({100 * zero / total:.1f} %)"


def measured(path: Path) -> str:
    try:
        return f"{100 * accuracy(str(path)):.2f} %"
    except ImportError as missing:
        return f"needs {missing.name}"


def comparison(files: dict[str, Path]) -> Table:
    table = Table(title="Handwritten digits: 898 images that the training has not seen")
    for heading in ("model", "zero weights", "accuracy"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for title, path in files.items():
        table.add_row(title, zeros(path), measured(path))
    return table


def main() -> None:
    folder = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT / "demo-output"
    folder.mkdir(parents=True, exist_ok=True)
    console = Console()
    onnxsparse(console, "inspect", shown(DENSE))
    files = {"dense": DENSE, **{job.title: run(console, job, folder) for job in JOBS}}
    console.rule("before and after")
    console.print(comparison(files))
    console.print(f"The pruned models are in {shown(folder)}/. No retraining was done: this is one shot, by magnitude.")


if __name__ == "__main__":
    main()
