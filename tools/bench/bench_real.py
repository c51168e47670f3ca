"""Does fine-tuning help on models as other people exported them? One line for each.

    python tools/bench/bench_real.py [FOLDER or FILE ...] [--only TEXT] [--steps 50] [--pattern 2:4]

Every model is pruned 2:4 (where that divides too little, half of the weights go unstructured), trained with the
defaults for a few steps on samples made up from a seed, and held against the one-shot pruned file on other samples, in
plain inference. Without a folder the models are those of `tools/fetch_models.py`. What to feed is guessed from the
declared inputs; SIZES says what the guess needs to know.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import onnxsparse as osp
from onnxsparse.engines.processes import end_unless_alone
from onnxsparse.errors import OnnxSparseError
from onnxsparse.math.values import Array
from onnxsparse.recipes import Recipe
from onnxsparse.recipes.modifiers.pruning import Pruning
from onnxsparse.recipes.modifiers.training import Training
from onnxsparse.training_api import finetune
from tools.fetch_models import default_folder, fetch

# Part of a path -> sizes for the free axes of an input, in their order; the batch is not counted.
SIZES: dict[str, dict[str, tuple[int, ...]]] = {
    "PP-OCRv4_det": {"x": (64, 96)},
    "PP-OCRv4_rec": {"x": (48, 96)},
    "mobile_v2.0_cls": {"x": (48, 192)},
    "320n": {"images": (96, 96)},
    "ddddocr": {"input1": (96,)},
    "sequence": {"input": ()},
    "silero": {"input": (576,), "state": (1,)},
}
SHARED_STATES = ("state", "h", "c", "h0", "c0")
NUMBERS = {"sr": 16000}
LEAST_SHARE = 1 / 3
FREE = 16
BYTES = 48 << 20
MOST, FEWEST, FRESH = 1024, 160, 32

Inputs = dict[str, Array]


def main() -> None:
    end_unless_alone("bench_real")
    wanted = _arguments()
    print("| model | samples | pattern | trained | loss | output distance | tries | CPU s | notes |")
    print("|---|---|---|---|---|---|---|---|---|")
    failed = 0
    for path in files(wanted.paths, wanted.only):
        row = measured(path, wanted.steps, wanted.pattern, wanted.verbose)
        failed += not row.startswith("| + ")
        print(row, flush=True)
    raise SystemExit(1 if failed else 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--pattern", default="")
    parser.add_argument("--verbose", action="store_true", help="the losses on the way, and all notes")
    return parser.parse_args()


def files(paths: list[Path], only: str) -> list[Path]:
    """The models in these files and folders, or those that can be fetched."""
    found = [file for path in paths for file in (sorted(path.rglob("*.onnx")) if path.is_dir() else [path])]
    return [file for file in found or fetch(default_folder()) if only in str(file)]


def measured(path: Path, steps: int, pattern: str, verbose: bool = False) -> str:
    """The line of one model."""
    began = _seconds()
    try:
        cells = _measured(path, steps, pattern, verbose)
    except OnnxSparseError as error:
        return f"| ! {path.parent.name}/{path.stem} | | | | | | | {_seconds() - began:.0f} | {error} |"
    good, (*front, notes) = cells
    mark = "+" if good else "-"
    return f"| {mark} {path.parent.name}/{path.stem} | {' | '.join(front)} | {_seconds() - began:.0f} | {notes} |"


def _measured(path: Path, steps: int, pattern: str, verbose: bool) -> tuple[bool, list[str]]:
    pruning = pruning_of(path, pattern)
    fields = fields_of(path)
    data, fresh = samples(path, fields, 1), samples(path, fields, 2, FRESH)
    with tempfile.TemporaryDirectory() as folder:
        tuned, pruned = os.path.join(folder, "tuned.onnx"), os.path.join(folder, "pruned.onnx")
        osp.prune(
            path, pattern=pruning.pattern, sparsity=pruning.sparsity, allocation=pruning.allocation, output=pruned
        )
        recipe = Recipe((Training(steps=steps), pruning))
        report = finetune(path, data=data, output=tuned, recipe=recipe, watch=_show if verbose else None).report
        far = [distances(str(path), other, fields, fresh) for other in (pruned, tuned)]
    facts: dict[str, Any] = dict(report.details)
    before, after = facts["loss_without_training"], facts["loss"]
    lost = [
        row.name for row in report.rows if any(note.startswith(f"'{row.name}' was pruned, ") for note in report.notes)
    ]
    size = {row.name: row.size for row in report.rows}
    pruned_size = sum(row.size for row in report.rows if row.status == "pruned")
    trained = pruned_size - sum(size[name] for name in lost)
    good = bool(after < before and (far[1] < far[0] or math.isnan(far[0])))
    notes = [note for note in report.notes if verbose or not note.startswith("'")]
    return good, [
        str(_count(data)),
        f"{pruning.pattern}",
        f"{trained / 1e6:.2f} of {pruned_size / 1e6:.2f} M",
        f"{before:.4g} -> {after:.4g}",
        f"{far[0]:.5g} -> {far[1]:.5g}",
        str(facts["attempts"]),
        "; ".join(notes),
    ]


def _show(row: Mapping[str, Any]) -> None:
    if row["probe"] is not None:
        print(f"attempt {row['attempt']}, step {row['step']}: {row['loss']:.4g}, held out {row['probe']:.4g}")


def pruning_of(path: Path, pattern: str) -> Pruning:
    """2:4 where that divides enough, otherwise half of the weights."""
    if pattern in ("", "2:4"):
        rows = osp.plan(path, pattern="2:4").report.rows
        done = sum(row.size for row in rows if row.status == "planned")
        if pattern or done >= LEAST_SHARE * sum(row.size for row in rows):
            return Pruning(pattern="2:4")
    return Pruning(pattern=pattern or "unstructured", sparsity="0.5", allocation="erk", schedule="one-shot")


# -- what to feed


def fields_of(path: Path) -> dict[str, tuple[int, list[int]]]:
    """Element type and sizes of every input; 0 is a free size."""
    graph = onnx.load(path, load_external_data=False).graph
    stored = {tensor.name for tensor in graph.initializer}
    found = {}
    for value in graph.input:
        if value.name not in stored:
            kind = value.type.tensor_type
            found[value.name] = kind.elem_type, [max(dim.dim_value, 0) for dim in kind.shape.dim]
    return found


def samples(path: Path, fields: Mapping[str, tuple[int, list[int]]], seed: int, count: int = 0) -> Inputs:
    sizes = next((own for part, own in SIZES.items() if part in str(path)), {})
    whole = {name: _filled(dims, sizes.get(name, ())) for name, (_, dims) in fields.items()}
    weight = sum(int(np.prod(shape)) for shape in whole.values()) * 4
    count = count or int(np.clip(BYTES // max(1, weight), FEWEST, MOST))
    made = {}
    for place, (name, (kind, dims)) in enumerate(fields.items()):
        random = np.random.Generator(np.random.Philox(key=seed * 100 + place))
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
        made[name] = _made(name, dims, whole[name], dtype, count, random)
        if np.dtype(dtype).kind in "iu" and dims and "mask" not in name:
            made[name] %= np.asarray(_words(path, name), dtype)
    return made


def _words(path: Path, name: str) -> int:
    """How many rows the table has that a whole number is looked up in."""
    graph = onnx.load(path, load_external_data=False).graph
    rows = {tensor.name: tensor.dims[0] for tensor in graph.initializer if len(tensor.dims) == 2}
    for node in graph.node:
        if node.op_type == "Constant" and len(node.attribute[0].t.dims) == 2:
            rows[node.output[0]] = node.attribute[0].t.dims[0]
    same = {name}
    for node in graph.node:
        if node.op_type in ("Cast", "Identity") and node.input[0] in same:
            same.add(node.output[0])
    found = [
        rows[node.input[0]]
        for node in graph.node
        if node.op_type == "Gather" and node.input[1] in same and node.input[0] in rows
    ]
    return min(found, default=256 if "byte" in name else 2)


def _filled(dims: list[int], free: tuple[int, ...]) -> list[int]:
    """The sizes of one sample, without its first axis of samples."""
    rest = list(free)
    return [size or (rest.pop(0) if rest else FREE) for size in dims[1:]]


def _made(name: str, dims: list[int], shape: list[int], dtype: Any, count: int, random: np.random.Generator) -> Array:
    if not dims:
        return np.array(NUMBERS.get(name, 1), dtype)
    if name in SHARED_STATES:
        return np.zeros((dims[0] or 1, *shape), dtype)
    if dtype == np.bool_ or "mask" in name:
        return np.ones((count, *shape), dtype)
    if np.dtype(dtype).kind in "iu":
        return random.integers(0, 1 << 16, (count, *shape)).astype(dtype)
    if len(shape) == 3:
        return pictures(count, shape, random).astype(dtype)
    if max(shape, default=0) >= 400:
        return sounds(count, shape, random).astype(dtype)
    return random.standard_normal((count, *shape)).astype(dtype)


def pictures(count: int, shape: list[int], random: np.random.Generator) -> Array:
    """Patches of several sizes and some lines of signs, in 0..1; channels come first unless the last axis is short."""
    last = shape[-1] <= 4 < shape[0]
    channels, height, width = (shape[2], shape[0], shape[1]) if last else shape
    total = np.zeros((count, channels, height, width), np.float32)
    for size in (1, 4, 16, 64):
        rows, columns = -(-height // size), -(-width // size)
        coarse = random.random((count, channels, rows, columns), np.float32) * (0.2 + size / 80)
        total += coarse.repeat(size, 2).repeat(size, 3)[:, :, :height, :width]
    total -= total.min((1, 2, 3), keepdims=True)
    total /= total.max((1, 2, 3), keepdims=True)
    for picture in total:
        _write(picture, random)
    return np.moveaxis(total, 1, -1) if last else total


def _write(picture: Array, random: np.random.Generator) -> None:
    """A line of dark or light signs, each a few strokes on a grid of 5 by 3."""
    _, height, width = picture.shape
    size = int(random.integers(1, max(2, height // 12)))
    count = int(random.integers(1, max(2, width // (4 * size))))
    signs = np.pad(random.random((count, 5, 3)) < 0.6, ((0, 0), (0, 0), (0, 1)))
    line = np.concatenate(list(signs), 1).repeat(size, 0).repeat(size, 1)[:height, :width]
    top, left = (int(random.integers(0, free + 1)) for free in (height - line.shape[0], width - line.shape[1]))
    place = picture[:, top : top + line.shape[0], left : left + line.shape[1]]
    place[:] = np.where(line, random.random(), 0.7 * place + 0.3 * random.random())


def sounds(count: int, shape: list[int], random: np.random.Generator) -> Array:
    """A few tones of random loudness, and some noise."""
    axis = int(np.argmax(shape))
    length = shape[axis]
    time_ = np.arange(length, dtype=np.float32) / 16000
    total = 0.02 * random.standard_normal((count, length)).astype(np.float32)
    for _ in range(4):
        pitch, loud, phase = (random.random((count, 1), np.float32) for _ in range(3))
        total += 0.3 * loud**2 * np.sin(2 * np.pi * (80 * 30**pitch * time_ + phase))
    wide = [1] * len(shape)
    wide[axis] = length
    return np.broadcast_to(np.clip(total, -1, 1).reshape(count, *wide), (count, *shape))


def _count(data: Inputs) -> int:
    return max(len(array) for array in data.values() if array.ndim)


# -- how far the outputs are


def distances(dense: str, other: str, fields: Mapping[str, tuple[int, list[int]]], data: Inputs) -> float:
    """Relative root mean square over all float outputs, sample by sample, mean of the outputs; NaN without any."""
    one, two = _answers(dense, fields, data), _answers(other, fields, data)
    shares = []
    for name, values in one.items():
        gap = sum(float(np.sum((a.astype(np.float64) - b) ** 2)) for a, b in zip(values, two[name]))
        size = sum(float(np.sum(a.astype(np.float64) ** 2)) for a in values)
        shares.append((gap / size) ** 0.5 if size else gap**0.5)
    return float(np.mean(shares)) if shares else math.nan


def _answers(path: str, fields: Mapping[str, tuple[int, list[int]]], data: Inputs) -> dict[str, list[Array]]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [
        output.name
        for output in session.get_outputs()
        if output.type in ("tensor(float)", "tensor(float16)", "tensor(double)")
    ]
    found: dict[str, list[Array]] = {name: [] for name in names}
    count = _count(data)
    units = {name: dims[0] or 1 for name, (_, dims) in fields.items() if dims and len(data[name]) == count}
    unit = max(units.values())
    for start in range(0, count, unit):
        feed = {name: array[start : start + unit] if name in units else array for name, array in data.items()}
        for name, value in zip(names, session.run(names, feed)):
            found[name].append(value)
    return found


def _seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


if __name__ == "__main__":
    main()
