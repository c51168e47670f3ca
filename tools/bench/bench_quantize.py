"""Accuracy of models quantized after training, side by side with onnxruntime's own tool on the same samples.

Each model is quantized with the first 256 images of the training set of Fashion-MNIST, unlabelled, and measured on its
10,000 test images: with each refinement, by default, with each observer, for TensorRT (symmetric), and by
onnxruntime's `quantize_static` (QDQ, per channel; min-max, entropy and percentile) after its own `quant_pre_process`;
and by onnx-neural-compressor and ModelOpt, where these are installed.
The distance is that of the outputs from those of the float model, relative to these; zeros are the share of the zeros
of float weights that are exact zero points afterwards; `verify` is what the command says of the file; `zipped` is the
size of the float file divided by that of the zipped integers; CPU seconds are those of calibration and writing.

    python tools/bench/bench_quantize.py --images FOLDER --models a.onnx ... [--samples 256] [--ways default ampere ...]
                                         [--prune 2:4 0.8 0.9 --tuner PYTHON --work FOLDER] [--bar 0.8]

With `--prune` each model is pruned and fine-tuned first, by `onnxsparse finetune` with its defaults on 6,000 unlabelled
images: every line is about what came of it, and FOLDER keeps it. PYTHON is one with the extra `ort`, where this one has
a newer runtime. With `--bar` the exit code is 1 where what is in bold type loses more points.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import importlib
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

import onnxsparse as osp

WAYS: dict[str, dict[str, Any]] = {
    "no refinements": {"refine": "none"},
    "equalized": {"refine": "equalize"},
    "biases corrected": {"refine": "bias"},
    "rounded by Gram matrices": {"refine": "rounding"},
    "**default**": {},
    "default and rounding": {"refine": "equalize,rounding,bias"},
    "default, percentile": {"observer": "percentile"},
    "default, entropy": {"observer": "entropy"},
    "default, mse": {"observer": "mse"},
    "ampere, no refinements": {"target": "ampere", "refine": "none"},
    "**ampere**": {"target": "ampere"},
    "ampere, mse": {"target": "ampere", "observer": "mse"},
    "w4, no samples": {"scheme": "w4", "data": None},
    "w4": {"scheme": "w4"},
}
TUNED_ON = 6000
PEERS = {"MinMax": "min-max", "Entropy": "entropy", "Percentile": "percentile"}
COMPRESSOR, MODELOPT = "onnx_neural_compressor", "modelopt"


def images(folder: str, kind: str, count: int) -> Any:
    """Images as float arrays (N, 1, 28, 28), normalized."""
    with gzip.open(os.path.join(folder, f"{kind}-images-idx3-ubyte.gz")) as file:
        pixels = np.frombuffer(file.read(16 + count * 784), np.uint8, offset=16).reshape(-1, 1, 28, 28)
    return ((pixels / np.float32(255) - np.float32(0.286)) / np.float32(0.353)).astype(np.float32)


def labels(folder: str) -> Any:
    with gzip.open(os.path.join(folder, "t10k-labels-idx1-ubyte.gz")) as file:
        return np.frombuffer(file.read(), np.uint8, offset=8)


def outputs(model: onnx.ModelProto, pixels: Any) -> Any:
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return np.concatenate([session.run(None, {name: part})[0] for part in np.split(pixels, len(pixels) // 500)])


def zeros_kept(dense: onnx.ModelProto, made: onnx.ModelProto) -> str:
    """How many zeros of float weights are zero points, of those that are integers afterwards, whatever their names are;
    a weight is found by its shape and its zeros, because tools rename them."""
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in made.graph.initializer}
    integers = [array for array in stored.values() if array.dtype in (np.int8, np.uint8) or "int4" in str(array.dtype)]
    total = kept = 0
    for tensor in dense.graph.initializer:
        weight = numpy_helper.to_array(tensor)
        if weight.ndim < 2 or weight.size < 1000 or np.count_nonzero(weight) == weight.size:
            continue
        same = [int((one.astype(int)[weight == 0] == 0).sum()) for one in integers if one.shape == weight.shape]
        if same:
            total, kept = total + int((weight == 0).sum()), kept + max(same)
    return f"{100 * kept / total:.1f} %" if total else ""


def tuned(path: Path, pattern: str, pixels: Any, folder: Path, tuner: str) -> Path:
    """The model pruned and fine-tuned by default, by the command; what is there already is kept."""
    flags = ["--pattern", pattern] if ":" in pattern else ["--pattern", "unstructured", "--sparsity", pattern]
    folder.mkdir(parents=True, exist_ok=True)
    made, data = folder / f"{path.stem}, {pattern}.onnx", folder / "images.npy"
    if not made.exists():
        np.save(data, pixels)
        tool = [tuner, "-m", "onnxsparse", "finetune", str(path), "-o", str(made), "--data", str(data), *flags]
        subprocess.run(tool, check=True, stdout=subprocess.DEVNULL)
    return made


def delivered(made: onnx.ModelProto, recorded: bool) -> tuple[str, int]:
    """What `verify` says of what a model records, as an exit code, and the bytes of the file once it is zipped."""
    with tempfile.TemporaryDirectory() as folder:
        path, target = Path(folder) / "made.onnx", Path(folder) / "made.zip"
        onnx.save(made, path)
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as file:
            file.write(path)
        tool = [sys.executable, "-m", "onnxsparse", "verify", str(path)]
        code = subprocess.run(tool, check=False, capture_output=True).returncode if recorded else ""
        return f"exit {code}" if recorded else "", target.stat().st_size


def of_onnxruntime(path: Path, pixels: Any, method: str) -> onnx.ModelProto:
    """By its documented steps: preparation, then static quantization to QDQ, per channel."""
    tool = importlib.import_module("onnxruntime.quantization")
    shapes = importlib.import_module("onnxruntime.quantization.shape_inference")

    class Reader(tool.CalibrationDataReader):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            name = onnx.load(path).graph.input[0].name
            self._batches = iter([{name: part} for part in np.split(pixels, len(pixels) // 32)])

        def get_next(self) -> Any:
            return next(self._batches, None)

    with tempfile.TemporaryDirectory() as folder:
        ready, made = Path(folder) / "ready.onnx", Path(folder) / "made.onnx"
        shapes.quant_pre_process(str(path), str(ready), skip_symbolic_shape=True)
        with contextlib.redirect_stdout(None):
            tool.quantize_static(
                str(ready), str(made), Reader(), quant_format=tool.QuantFormat.QDQ, per_channel=True,
                calibrate_method=tool.CalibrationMethod[method], weight_type=tool.QuantType.QInt8,
                activation_type=tool.QuantType.QUInt8,
            )  # fmt: skip
        return onnx.load(made)


def of_neural_compressor(path: Path, pixels: Any, method: str) -> onnx.ModelProto:
    tool = importlib.import_module(f"{COMPRESSOR}.quantization")
    config = importlib.import_module(f"{COMPRESSOR}.quantization.config")
    name = onnx.load(path).graph.input[0].name

    class Reader(importlib.import_module(f"{COMPRESSOR}.data_reader").CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rewind()

        def rewind(self) -> None:
            self._batches = iter([{name: part} for part in np.split(pixels, len(pixels) // 32)])

        def get_next(self) -> Any:
            return next(self._batches, None)

    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made.onnx"
        options = config.StaticQuantConfig(
            calibration_data_reader=Reader(), calibrate_method=tool.CalibrationMethod[method], per_channel=True,
            quant_format=tool.QuantFormat.QDQ, calibration_sampling_size=len(pixels),
        )  # fmt: skip
        with contextlib.redirect_stdout(None):
            tool.quantize(str(path), str(made), options)
        return onnx.load(made)


def of_modelopt(path: Path, pixels: Any, method: str) -> onnx.ModelProto:
    tool = importlib.import_module(f"{MODELOPT}.onnx.quantization")
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(None):
        source, made = Path(folder) / "source.onnx", Path(folder) / "made.onnx"  # it writes files beside the source
        source.write_bytes(path.read_bytes())
        tool.quantize(
            str(source), calibration_data=pixels, calibration_method=method, output_path=str(made),
            calibration_eps=["cpu"], high_precision_dtype="fp32",
        )  # fmt: skip
        return onnx.load(made)


def ways(path: Path, pixels: Any) -> Iterator[tuple[str, Callable[[], onnx.ModelProto]]]:
    for name, options in WAYS.items():
        given = {"data": pixels, **options}
        yield name, lambda given=given: osp.quantize(str(path), **given).model  # type: ignore[misc]
    for method, called in PEERS.items():
        yield f"onnxruntime, {called}", lambda method=method: of_onnxruntime(path, pixels, method)  # type: ignore[misc]
        if find_spec(COMPRESSOR):
            yield f"{COMPRESSOR}, {called}", lambda method=method: of_neural_compressor(path, pixels, method)  # type: ignore[misc]
    for method in ("max", "entropy") if find_spec(MODELOPT) else ():
        yield f"{MODELOPT}, {method}", lambda method=method: of_modelopt(path, pixels, method)  # type: ignore[misc]


def compared(path: Path, pixels: Any, held: Any, right: Any, wanted: Sequence[str]) -> Iterator[tuple[str, float, str]]:
    """A way, the points that it loses, and its line of the table, for the ways that are wanted."""
    dense = onnx.load(path)
    floats = outputs(dense, held)
    accuracy = 100 * np.mean(floats.argmax(1) == right)
    yield "float", 0.0, f"| {path.stem} | float | {accuracy:.2f} |" + " |" * 6
    for name, make in ways(path, pixels):
        if wanted and name.strip("*") not in wanted:
            continue
        start = time.process_time()
        try:
            made = make()
        except Exception as error:  # a peer that fails is a row, too
            yield name, 0.0, f"| {path.stem} | {name} | fails: {' '.join(str(error).split())[:80]} |" + " |" * 6
            continue
        spent = time.process_time() - start
        found, kept = outputs(made, held), zeros_kept(dense, made)
        far = np.linalg.norm(found - floats) / np.linalg.norm(floats)
        lost = accuracy - 100 * np.mean(found.argmax(1) == right)
        verified, size = delivered(made, bool(kept) and name in WAYS)
        yield (
            name,
            lost,
            (
                f"| {path.stem} | {name} | {accuracy - lost:.2f} | {lost:+.2f} | {far:.4f} | {kept} | {verified} "
                f"| 1/{path.stat().st_size / size:.1f} | {spent:.1f} |"
            ),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", required=True, help="the folder with the files of Fashion-MNIST")
    parser.add_argument("--models", required=True, nargs="+", type=Path)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--ways", nargs="+", default=[], help="only these, as the table calls them, without stars")
    parser.add_argument("--prune", nargs="+", default=[], help="prune and fine-tune first: 2:4, 0.8, ...")
    parser.add_argument("--tuner", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--work", default="bench_quantize", type=Path, metavar="FOLDER")
    parser.add_argument("--bar", type=float, metavar="POINTS")
    given = parser.parse_args()
    pixels = images(given.images, "train", max(given.samples, TUNED_ON))
    held, right, missed = images(given.images, "t10k", 10_000), labels(given.images), False
    print("| model | way | accuracy | lost | distance | zeros kept | verify | zipped | CPU s |")
    print("|---" * 9 + "|", flush=True)
    for model in given.models:
        for pattern in given.prune or [""]:
            path = tuned(model, pattern, pixels[:TUNED_ON], given.work, given.tuner) if pattern else model
            for name, lost, line in compared(path, pixels[: given.samples], held, right, given.ways):
                print(line, flush=True)
                missed |= given.bar is not None and name.startswith("**") and lost > given.bar
    sys.exit(int(missed))


if __name__ == "__main__":
    main()
