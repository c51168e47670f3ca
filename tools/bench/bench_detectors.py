"""Detectors that packages ship, pruned and fine-tuned without labels up to where boxes are decoded (`--until auto`).

    python tools/bench/bench_detectors.py MODELS [--images FOLDER] [--only NAME] [--steps 60] [--markdown FILE]

MODELS is a folder with `320n.onnx` (YOLOv8n, of the package nudenet), `ch_PP-OCRv4_det_infer.onnx` (of
rapidocr-onnxruntime) and `common_det.onnx` (YOLOX, of ddddocr), as they come out of the wheels. Samples are canvases
with items of Fashion-MNIST on a grey ground, and for the detectors of text with words of random letters. Told is the
relative distance of the whole file's outputs from the dense model's, on samples that nothing was trained on, pruned
alone and fine-tuned. Needs the extra `ort` and Pillow.
"""

from __future__ import annotations

import argparse
import gzip
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import onnxsparse as osp  # noqa: E402 - the script runs from anywhere

FASHION = "/usr/share/datasets/fashion-mnist"
DETECTORS = {
    "YOLOv8n": ("320n.onnx", "images", 320, 0.0, 255.0),
    "PP-OCRv4 det": ("ch_PP-OCRv4_det_infer.onnx", "x", 320, 127.5, 127.5),
    "YOLOX": ("common_det.onnx", "images", 416, 0.0, 1.0),
}
"""The file, its input, the side of a picture, and what is taken from its bytes and what they are divided by."""
LEVELS: dict[str, dict[str, Any]] = {"2:4": {"pattern": "2:4"}, "80 %": {"pattern": "unstructured", "sparsity": 0.8}}
TRAINING, HELD_OUT, ITEMS = 64, 16, 8


def canvases(folder: str, count: int, side: int, seed: int) -> Any:
    """Pictures of three channels, 0 to 255: items at a random size, place and colour."""
    path = os.path.join(folder, "train-images-idx3-ubyte.gz")
    with gzip.open(path) as file:
        items = np.frombuffer(file.read(16 + 4096 * 784), np.uint8)[16:].reshape(-1, 28, 28)
    rng = np.random.default_rng(seed)
    made = np.empty((count, 3, side, side), np.float32)
    for picture in made:
        picture[...] = rng.integers(30, 220)
        for _ in range(ITEMS):
            item = np.kron(items[rng.integers(len(items))], np.ones((scale := rng.integers(1, 5), scale))) / 255
            top, left = rng.integers(0, side - len(item), 2)
            place = picture[:, top : top + len(item), left : left + len(item)]
            place += item * (rng.integers(0, 255, (3, 1, 1)) - place)
    return made


def words(count: int, side: int, seed: int) -> Any:
    """Pictures of three channels, 0 to 255: dark words of random letters on a light ground."""
    rng, made = np.random.default_rng(seed), []
    for _ in range(count):
        image = Image.new("RGB", (side, side), tuple(rng.integers(120, 255, 3).tolist()))
        draw = ImageDraw.Draw(image)
        for _ in range(ITEMS):
            left, top = rng.integers(0, side - 60, 2).tolist()
            word = "".join(map(chr, rng.integers(65, 122, rng.integers(3, 10)).tolist()))
            colour = tuple(rng.integers(0, 90, 3).tolist())
            draw.text((left, top), word, fill=colour, font_size=int(rng.integers(12, 40)))
        made.append(np.asarray(image).transpose(2, 0, 1))
    return np.stack(made).astype(np.float32)


def samples_of(name: str, images: str, count: int, seed: int) -> dict[str, Any]:
    _, field, side, less, divisor = DETECTORS[name]
    made = canvases(images, count, side, seed) if name == "YOLOv8n" else words(count, side, seed)
    return {field: ((made - less) / divisor).astype(np.float32)}


def row(name: str, level: str, models: Path, images: str, steps: int) -> str:
    """A line of the table."""
    dense = str(models / DETECTORS[name][0])
    train, test = samples_of(name, images, TRAINING, 0), samples_of(name, images, HELD_OUT, 1)
    zeros, begun = LEVELS[level], time.process_time()
    spread: dict[str, Any] = {} if level == "2:4" else {"allocation": "erk"}
    with tempfile.TemporaryDirectory() as folder:
        pruned, tuned = (os.path.join(folder, one) for one in ("pruned.onnx", "tuned.onnx"))
        osp.prune(dense, output=pruned, **zeros, **spread)
        result = osp.finetune(
            dense, data=train, output=tuned, until="auto", steps=steps, batch_size=8, engine="ort", **zeros
        )
        held = osp.verify(tuned).report.ok
        distances = [distance(dense, path, test) for path in (pruned, tuned)]
    children = os.times()
    seconds = time.process_time() - begun + children.children_user + children.children_system
    details: dict[str, Any] = dict(result.report.details)
    cells = [
        name,
        level,
        len(details["until"]),
        *(f"{one:.4f}" for one in distances),
        "holds" if held else "does not hold",
    ]
    return "| " + " | ".join(map(str, [*cells, f"{seconds:.0f}"])) + " |"


def distance(dense: str, other: str, samples: dict[str, Any]) -> float:
    """The largest one of all outputs, as `compare` has it."""
    details: dict[str, Any] = dict(osp.compare(dense, other, data=samples).report.details)
    return float(max(one["relative"] for one in details["outputs"]))


def rows(wanted: argparse.Namespace) -> Iterator[str]:
    yield "| detector | zeros | heads | pruned | fine-tuned | verify | CPU s |"
    yield "|---|---|---:|---:|---:|---|---:|"
    for name in DETECTORS:
        for level in LEVELS if wanted.only in (None, name) else ():
            yield row(name, level, wanted.models, wanted.images, wanted.steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path)
    parser.add_argument("--images", default=FASHION)
    parser.add_argument("--only", choices=DETECTORS)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--markdown", type=Path)
    wanted = parser.parse_args()
    lines = []
    for line in rows(wanted):
        print(line, flush=True)
        lines.append(line)
    if wanted.markdown is not None:
        wanted.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
