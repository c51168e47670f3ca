"""Accuracy of models quantized after training, side by side with onnxruntime's own tool on the same samples.

Each model is quantized with the first 256 images of the training set of Fashion-MNIST, unlabelled, and measured on its
10,000 test images: with each refinement, by default, with each observer, for TensorRT (symmetric), and by
onnxruntime's `quantize_static` (QDQ, per channel; min-max, entropy and percentile) after its own `quant_pre_process`.
The distance is that of the outputs from those of the float model, relative to these; zeros are the share of the zeros
of float weights that are exact zero points afterwards; CPU seconds are those of calibration and writing.

    python tools/bench/bench_quantize.py --images FOLDER --models a.onnx ... [--samples 256] [--ways default ampere ...]
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import importlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
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
    "default, min-max": {"observer": "minmax"},
    "ampere, no refinements": {"target": "ampere", "refine": "none"},
    "**ampere**": {"target": "ampere"},
    "ampere, min-max": {"target": "ampere", "observer": "minmax"},
    "w4, no samples": {"scheme": "w4", "data": None},
    "w4": {"scheme": "w4"},
}
PEERS = {"MinMax": "min-max", "Entropy": "entropy", "Percentile": "percentile"}


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
        total, kept = total + int((weight == 0).sum()), kept + max(same, default=0)
    return f"{100 * kept / total:.1f} %" if total else ""


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


def ways(path: Path, pixels: Any) -> Iterator[tuple[str, Callable[[], onnx.ModelProto]]]:
    for name, options in WAYS.items():
        given = {"data": pixels, **options}
        yield name, lambda given=given: osp.quantize(str(path), **given).model  # type: ignore[misc]
    for method, called in PEERS.items():
        yield f"onnxruntime, {called}", lambda method=method: of_onnxruntime(path, pixels, method)  # type: ignore[misc]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", required=True, help="the folder with the files of Fashion-MNIST")
    parser.add_argument("--models", required=True, nargs="+", type=Path)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--ways", nargs="+", help="only these, as the table calls them, without stars")
    given = parser.parse_args()
    pixels = images(given.images, "train", given.samples)
    held, right = images(given.images, "t10k", 10_000), labels(given.images)
    print("| model | way | accuracy | lost | distance | zeros kept | CPU s |\n|---|---|---|---|---|---|---|")
    for path in given.models:
        dense = onnx.load(path)
        wanted = outputs(dense, held)
        accuracy = 100 * np.mean(wanted.argmax(1) == right)
        print(f"| {path.stem} | float | {accuracy:.2f} | | | | |")
        for name, make in ways(path, pixels):
            if given.ways and name.strip("*") not in given.ways:
                continue
            start = time.process_time()
            try:
                made = make()
            except Exception as error:  # a peer that fails is a row, too
                print(f"| {path.stem} | {name} | fails: {' '.join(str(error).split())[:80]} | | | | |", flush=True)
                continue
            spent = time.process_time() - start
            found = outputs(made, held)
            far = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
            share = 100 * np.mean(found.argmax(1) == right)
            print(
                f"| {path.stem} | {name} | {share:.2f} | {accuracy - share:+.2f} | {far:.4f} "
                f"| {zeros_kept(dense, made)} | {spent:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
