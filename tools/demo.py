"""The main job, end to end, on the small network of models/: prune it, verify, fine-tune, and compare the accuracy.

    python tools/demo.py [FOLDER]

Writes the pruned files to FOLDER (demo-output). The accuracy needs scikit-learn, whose handwritten digits are the data,
and onnxruntime, from the extra `runtime` or `ort`. Fine-tuning needs `ort` or `torch`; without, it is left out.
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

from models.digits import accuracy, training_half  # noqa: E402 - the script runs from anywhere
from onnxsparse.engines.ort import library  # noqa: E402
from onnxsparse.engines.processes import end_unless_alone  # noqa: E402
from onnxsparse.engines.torch import library as torch_library  # noqa: E402

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
FURTHER = ("--pattern", "unstructured", "--sparsity", "0.95", "--allocation", "erk")
PRUNED, TUNED = "95 %, pruned in one shot", "95 %, pruned and fine-tuned without labels"


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


def tuned(console: Console, folder: Path) -> dict[str, Path]:
    """95 % at once is too much; the same with training, the dense network its only teacher, is not."""
    console.rule("95 %, with and without fine-tuning")
    images, one_shot, out = folder / "digits_images.npz", folder / "digits_95.onnx", folder / "digits_95_tuned.onnx"
    onnxsparse(console, "prune", shown(DENSE), "-o", shown(one_shot), *FURTHER, "--overwrite", "--quiet")
    if not (library.available() or torch_library.available()):
        console.print("Fine-tuning needs the extra `ort` (Python 3.9 to 3.12) or `torch`: left out.")
        return {PRUNED: one_shot}
    np.savez(images, x=training_half()[0])
    options = ("--data", shown(images), *FURTHER, "--epochs", "20", "--overwrite")
    onnxsparse(console, "finetune", shown(DENSE), "-o", shown(out), *options)
    onnxsparse(console, "verify", shown(out), "--quiet")
    return {PRUNED: one_shot, TUNED: out}


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
    end_unless_alone("demo")
    folder = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT / "demo-output"
    folder.mkdir(parents=True, exist_ok=True)
    console = Console()
    onnxsparse(console, "inspect", shown(DENSE))
    files = {"dense": DENSE, **{job.title: run(console, job, folder) for job in JOBS}}
    files.update(tuned(console, folder))
    console.rule("before and after")
    console.print(comparison(files))
    trained = "Only the last one was trained, on 899 images without labels." if TUNED in files else "None was trained."
    console.print(f"The models are in {shown(folder)}/. {trained}")


if __name__ == "__main__":
    main()
