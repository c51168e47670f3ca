"""Weights alone in 8 and 4 bits, dynamic and static int8, beside the float model and onnxruntime's own tools.

    OMP_NUM_THREADS=1 python tools/bench/bench_weight_only.py MODEL EVAL [--data SAMPLES] [--prune 2:4] [--markdown]
                                                              [--ways "int8" "int8, ampere" ...]

EVAL and SAMPLES are .npz files with an array for each input; EVAL also with `labels` of the classes. Each line is one
model: the bytes of its file, plain and zipped; the accuracy of its first output; how often its class is that of the
float model; how far its outputs are from those, by norm; CPU seconds on EVAL in onnxruntime as it is installed; and
what `verify` says. With `--data` weights of 4 bits are also rounded by what the layers get (GPTQ), and there is int8
with scales from the samples (beside `quantize_static`). `--prune` starts from a model that was pruned so, without
training, and compares with that.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime

import onnxsparse as osp

Array = np.ndarray[tuple[Any, ...], np.dtype[Any]]
BATCH = 50
TITLES = ("model", "MB", "zipped", "accuracy", "same class", "distance", "CPU s", "verify")
FORMS = ("{}", "{:.2f}", "{:.2f}", "{:.2f}", "{:.1f} %", "{:.4f}", "{:.1f}", "{}")


class Line(NamedTuple):
    """One model, and what was measured of it."""

    name: str
    megabytes: float
    zipped: float
    accuracy: float
    agreement: float
    distance: float
    seconds: float
    verified: str


def outputs(path: Path, feeds: dict[str, Array]) -> tuple[Array, float]:
    """The first output on all samples, and the CPU seconds that it took."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names, count = [one.name for one in session.get_inputs()], len(next(iter(feeds.values())))
    start, found = time.process_time(), []
    for at in range(0, count, BATCH):
        found.append(session.run(None, {name: feeds[name][at : at + BATCH] for name in names})[0])
    return np.concatenate(found), time.process_time() - start


def zipped(path: Path) -> int:
    target = path.with_suffix(".zip")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as file:
        file.write(path)
    return target.stat().st_size


def ways(samples: str | None) -> Iterator[tuple[str, Callable[[Path, Path], Any]]]:
    """What is made of a model, and how."""

    def ours(**options: Any) -> Callable[[Path, Path], Any]:
        return lambda source, target: osp.quantize(source, output=target, **options)

    yield "w8", ours(scheme="w8")
    yield "w4 asymmetric, blocks of 32", ours(scheme="w4", asymmetric=True)
    for block in (32, 64, 128):
        yield f"w4, blocks of {block}", ours(scheme="w4", block=block)
        if samples is not None:
            yield f"w4, blocks of {block}, GPTQ", ours(scheme="w4", block=block, data=samples)
    if samples is not None:
        yield "int8", ours(data=samples)
        yield "int8, ampere", ours(data=samples, target="ampere")
        yield "onnxruntime, static", static_peer(dict(np.load(samples)))
    yield "dynamic int8", ours(dynamic=True)
    yield "onnxruntime, per channel", peer(True)
    yield "onnxruntime, per tensor", peer(False)


def peer(per_channel: bool) -> Callable[[Path, Path], Any]:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    def made(source: Path, target: Path) -> None:
        quantize_dynamic(str(source), str(target), weight_type=QuantType.QInt8, per_channel=per_channel)

    return made


def static_peer(arrays: dict[str, Array]) -> Callable[[Path, Path], Any]:
    """By its documented steps: preparation, then QDQ, per channel, ranges by min-max."""
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            count = len(next(iter(arrays.values())))
            self.batches = iter({name: one[at : at + 8] for name, one in arrays.items()} for at in range(0, count, 8))

        def get_next(self) -> dict[str, Array] | None:
            return next(self.batches, None)

    def made(source: Path, target: Path) -> None:
        ready = target.with_name("ready.onnx")
        quant_pre_process(str(source), str(ready), skip_symbolic_shape=True)
        quantize_static(str(ready), str(target), Reader(), per_channel=True, weight_type=QuantType.QInt8)

    return made


def verified(path: Path) -> str:
    """Of a model without a record there is nothing to verify."""
    try:
        return "holds" if osp.verify(path).report.ok else "does not hold"
    except osp.OnnxSparseError:
        return ""


def measured(
    model: Path, held_out: str, samples: str | None, pattern: str, wanted: Sequence[str], folder: Path
) -> Iterator[Line]:
    arrays = dict(np.load(held_out))
    labels = arrays.pop("labels")
    source = folder / "float.onnx"
    if pattern:
        osp.prune(model, output=source, pattern=pattern)
    else:
        source.write_bytes(model.read_bytes())
    dense, seconds = outputs(source, arrays)

    def line(name: str, path: Path, found: Array, cpu: float) -> Line:
        winners = found.argmax(1)
        return Line(
            name, path.stat().st_size / 1e6, zipped(path) / 1e6, 100 * float((winners == labels).mean()),
            100 * float((winners == dense.argmax(1)).mean()),
            float(np.linalg.norm(found - dense) / np.linalg.norm(dense)), cpu, verified(path),
        )  # fmt: skip

    yield line("float", source, dense, seconds)
    for name, make in ways(samples):
        if wanted and name not in wanted:
            continue
        path = folder / "made.onnx"
        path.unlink(missing_ok=True)
        make(source, path)
        yield line(name, path, *outputs(path, arrays))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("held_out", metavar="EVAL")
    parser.add_argument("--data", metavar="SAMPLES")
    parser.add_argument("--prune", default="", metavar="PATTERN")
    parser.add_argument("--ways", nargs="+", default=[], help="only these, as the table calls them")
    parser.add_argument("--markdown", action="store_true")
    given = parser.parse_args()
    _print(TITLES, given.markdown)
    if given.markdown:
        print("|---" * len(TITLES) + "|")
    with tempfile.TemporaryDirectory() as folder:
        for one in measured(given.model, given.held_out, given.data, given.prune, given.ways, Path(folder)):
            _print([text.format(cell) for text, cell in zip(FORMS, one)], given.markdown)


def _print(cells: Sequence[str], markdown: bool) -> None:
    print(f"| {' | '.join(cells)} |" if markdown else "  ".join(cells), flush=True)


if __name__ == "__main__":
    main()
