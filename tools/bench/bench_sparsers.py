"""Sparsers side by side on the small network of models/: accuracy on the half of the digits that nobody trained on.

    python tools/bench/bench_sparsers.py [--seeds 0 1] [--markdown FILE]

Every sparser is tuned with the defaults, without labels and with them, on the training half; the mean over the seeds is
told. Needs scikit-learn, whose handwritten digits are the data, and the extra `ort`.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import onnxsparse as osp  # noqa: E402 - the script runs from anywhere
from models.digits import accuracy, training_half  # noqa: E402
from onnxsparse.engines.processes import end_unless_alone  # noqa: E402

DENSE = ROOT / "models" / "digits_cnn.onnx"
SPARSERS = ("mask", "straight-through", "soft-threshold", "hard-threshold", "probabilistic")
LEVELS: dict[str, dict[str, Any]] = {
    "2:4": {"pattern": "2:4"},
    "95 %": {"pattern": "unstructured", "sparsity": 0.95},
}
LOSSES = ("distill", "cross-entropy")


def tuned(sparser: str, level: str, loss: str, seed: int) -> float:
    """The accuracy after one run."""
    images, labels = training_half()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "sparse.onnx")
        osp.finetune(
            DENSE, data={"x": images, "labels": labels}, output=path, sparser=sparser, loss=loss, seed=seed,
            engine="ort", **LEVELS[level],
        )  # fmt: skip
        return accuracy(path)


def rows(seeds: list[int]) -> Iterator[str]:
    """The lines of the table."""
    kinds = [(level, loss) for loss in LOSSES for level in LEVELS]
    yield "| `--sparser` | " + " | ".join(f"{level}, `{loss}`" for level, loss in kinds) + " |"
    yield "|---" * (1 + len(kinds)) + "|"
    for sparser in SPARSERS:
        cells = [mean(tuned(sparser, level, loss, seed) for seed in seeds) for level, loss in kinds]
        yield f"| `{sparser}` | " + " | ".join(f"{100 * cell:.1f}" for cell in cells) + " |"


def main() -> None:
    end_unless_alone("bench_sparsers")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--markdown", type=Path)
    wanted = parser.parse_args()
    lines = []
    for line in rows(wanted.seeds):
        print(line, flush=True)
        lines.append(line)
    if wanted.markdown is not None:
        wanted.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
