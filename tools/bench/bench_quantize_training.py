"""Quantization-aware training against float training: accuracy, zeros, CPU seconds of `onnxsparse finetune --quantize`.

    python tools/bench/bench_finetune.py data IMAGES LABELS OUT.npz --mean M --std S [--count 6400]
    python tools/bench/bench_quantize_training.py --net NAME MODEL TRAIN TEST [--net ...] [--engines ort torch]
                                                  [--sparsity 0.9] [--epochs 3] [--seed 0]

Each net is made sparse three times, without labels and with the defaults: in float; with `--quantize int8` and the same
options; and from the sparse float file with `--quantize int8` alone, which holds its zeros. Of the latter it is counted
place by place which zeros of the float weights are zero points, and whether `verify` holds the integers to the record.
The bar is that the last one loses at most 0.5 points of the float result. Exit code 1: it was missed, or a zero was.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench.bench_finetune import Net, accuracy, environment, measure

BAR = 0.5
COLUMNS = ("net", "engine", "dense", "float", "int8", "lost", "int8 from the float file", "lost", "zeros that stay",
           "verify", "CPU s, float", "int8", "from the file")  # fmt: skip
ZEROS = """
import sys
import onnx
from onnx import numpy_helper

before, after = ({one.name: one for one in onnx.load(path).graph.initializer} for path in sys.argv[1:])
kept = count = 0
for name, tensor in before.items():
    if len(tensor.dims) > 1 and after[name].data_type in (onnx.TensorProto.INT8, onnx.TensorProto.UINT8):
        zero = numpy_helper.to_array(tensor) == 0
        kept += int((numpy_helper.to_array(after[name])[zero] == 0).sum())
        count += int(zero.sum())
print(kept, count)
"""


def tuned(model: str, net: Net, out: Path, *flags: str) -> tuple[float, float]:
    """Accuracy in per cent, and CPU seconds."""
    tool = [sys.executable, "-m", "onnxsparse", "finetune", model, "--data", net.train, "-o", str(out)]
    seconds, _ = measure([*tool, *flags])
    return accuracy(str(out), net.test), seconds


def zeros(before: Path, after: Path) -> tuple[int, int]:
    """How many zeros of the float weights are zero points, and how many there are."""
    command = [sys.executable, "-c", ZEROS, str(before), str(after)]
    said = subprocess.run(command, check=True, capture_output=True, text=True, env=environment()).stdout.split()
    return int(said[0]), int(said[1])


def rows(nets: list[Net], asked: argparse.Namespace) -> Iterator[tuple[list[str], bool]]:
    """A row of the table for each net and engine, and whether it is within the bar."""
    for engine in asked.engines:
        frame = ("--engine", engine, "--epochs", str(asked.epochs), "--seed", str(asked.seed))
        level = ("--pattern", "unstructured", "--sparsity", str(asked.sparsity))
        for net in nets:
            with tempfile.TemporaryDirectory(prefix="bench-") as folder:
                plain, rounded, held = (Path(folder) / f"{name}.onnx" for name in ("float", "int8", "held"))
                found = [
                    tuned(net.model, net, plain, *frame, *level),
                    tuned(net.model, net, rounded, *frame, *level, "--quantize", "int8"),
                    tuned(str(plain), net, held, *frame, "--quantize", "int8"),
                ]
                kept, count = zeros(plain, held)
                verify = [sys.executable, "-m", "onnxsparse", "verify", str(held), "-q"]
                code = subprocess.run(verify, check=False, env=environment()).returncode
            right = [one for one, _ in found]
            seconds = [f"{spent:.0f}" for _, spent in found]
            cells = [net.name, engine, f"{accuracy(net.model, net.test):.2f}", f"{right[0]:.2f}", f"{right[1]:.2f}",
                     f"{right[0] - right[1]:+.2f}", f"{right[2]:.2f}", f"{right[0] - right[2]:+.2f}",
                     f"{kept:,} of {count:,}", str(code), *seconds]  # fmt: skip
            yield cells, right[0] - right[2] <= BAR and kept == count and code == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", nargs=4, action="append", required=True, metavar=("NAME", "MODEL", "TRAIN", "TEST"))
    parser.add_argument("--engines", nargs="+", default=["ort", "torch"])
    parser.add_argument("--sparsity", type=float, default=0.9)
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * 2 + "|---:" * (len(COLUMNS) - 2) + "|", flush=True)
    whole = True
    for cells, within in rows([Net(*one) for one in asked.net], asked):
        print("| " + " | ".join(cells) + " |", flush=True)
        whole &= within
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
