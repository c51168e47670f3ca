"""Trains the same models in both engines, on the same data, and measures how far the results are apart.

    python tools/bench/bench_parity.py [--markdown] [--steps N] [MODEL ...]
    python tools/bench/bench_parity.py --losses [--markdown] [--only TEXT] [MODEL or FOLDER ...]

Needs onnxruntime-training and torch in one environment. Without models it exports three networks: a ResNet-18, a
transformer encoder, and one with depthwise and transposed convolutions, a shared layer and an LSTM. What is printed is
the largest max|a-b| / max|a| over all tensors: between the pruned model and the trained one, and between both engines.

With --losses it is the loss on samples held out right after pruning, in both engines, on models as other people
exported them: those of `tools/fetch_models.py`, on the made-up samples of `tools/bench/bench_real.py`.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from onnx import numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import onnxsparse as osp
from tools.bench import bench_real

NETS = {"resnet18": (3, 64, 64), "encoder": (9,), "mixed": (4, 8, 8)}
NAMES = {
    "resnet18": "ResNet-18, frozen BN",
    "encoder": "Transformer encoder",
    "mixed": "Depthwise, LSTM, ConvTranspose",
}
OPTIMIZERS = {"sgd": 1e-2, "adamw": 1e-3}
SAMPLES, WORDS = 256, 50
BAR, ALIKE = 1e-4, 1e-3
FEW = 96
"""Samples of a real model, a part of which is held out."""
UNTRAINED = ("common_old",)
"""Files that hold whole numbers, which no engine trains."""


class Far(NamedTuple):
    """How far two results are apart, and where; how far training went; whether the same places are zero."""

    distance: float
    tensor: str
    moved: float
    masks: bool


def random_data(shape: tuple[int, ...], words: bool) -> Any:
    random = np.random.default_rng(0)
    if words:
        return random.integers(0, WORDS, (SAMPLES, *shape), np.int64)
    return random.standard_normal((SAMPLES, *shape)).astype(np.float32)


def parity(model: Path, data: Mapping[str, Any], optimizer: str, steps: int = 20, **more: Any) -> Far:
    """Train in both engines, from plain starts, and compare all tensors: gradients decide masks of a calibrated one."""
    options = {"pattern": "2:4", "optimizer": optimizer, "lr": OPTIMIZERS[optimizer], "retries": 0, **more}
    options.setdefault("init", "plain")
    results = [osp.finetune(model, data=data, steps=steps, engine=engine, **options) for engine in ("ort", "torch")]
    one, other = (_arrays(result.model) for result in results)
    pruned = _arrays(osp.prune(model, pattern=options["pattern"]).model)
    apart = {name: _distance(array, other[name]) for name, array in one.items()}
    worst = max(apart, key=lambda name: apart[name])
    moved = max(_distance(array, pruned[name]) for name, array in one.items())
    same = all(np.array_equal(array == 0, other[name] == 0) for name, array in one.items())
    return Far(apart[worst], worst, moved, same)


def _arrays(model: Any) -> dict[str, Any]:
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    return {name: array for name, array in found.items() if array.dtype.kind == "f"}


def _distance(one: Any, other: Any) -> float:
    return float(np.abs(one - other).max(initial=0.0) / max(float(np.abs(one).max(initial=0.0)), 1e-30))


def exported(folder: Path) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """The three networks as files, and data for each."""
    for net, shape in NETS.items():
        yield NAMES[net], export(net, folder / f"{net}.onnx"), {"x": random_data(shape, net == "encoder")}


def export(net: str, path: Path) -> Path:
    """One of the networks, its batch normalizations as they are in use, and not folded into what is before them."""
    torch = importlib.import_module("torch")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        module, x = importlib.import_module("tests.engines.torch.nets").build(net)
        torch.onnx.export(
            module.eval(),
            (x,),
            str(path),
            input_names=["x"],
            output_names=["y"],
            dynamo=False,
            do_constant_folding=False,
            training=torch.onnx.TrainingMode.PRESERVE,
            opset_version=17,
            dynamic_axes={"x": {0: "n"}},
        )
    return path


def given(paths: list[Path]) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """Models of the user's, with random numbers for their inputs."""
    for path in paths:
        fields = importlib.import_module("onnxsparse.planning.model_inputs").fields_of(osp.load(path))
        data = {one.name: random_data(tuple(size or 1 for size in one.shape[1:]), "int" in one.dtype) for one in fields}
        yield path.stem, path, data


class Losses(NamedTuple):
    """The loss right after pruning, in each engine."""

    ort: float
    torch: float
    unit: str

    @property
    def apart(self) -> float:
        return abs(self.ort - self.torch) / max(abs(self.ort), abs(self.torch), 1e-30)


def losses(path: Path) -> Losses:
    """Prune a model as it was exported in both engines, and take the loss on what is held out."""
    fields = bench_real.fields_of(path)
    made = bench_real.samples(path, fields, 1)
    count = max(len(array) for array in made.values() if array.ndim)
    data = {name: array[:FEW] if array.ndim and len(array) == count else array for name, array in made.items()}
    rule = bench_real.pruning_of(path, "")
    options: dict[str, Any] = {"pattern": rule.pattern, "sparsity": rule.sparsity, "allocation": rule.allocation}
    options.update({"steps": 1, "retries": 0, "batch_size": 16})
    details = [osp.finetune(path, data=data, engine=one, **options).report.details for one in ("ort", "torch")]
    one, other = (float(str(found["loss_without_training"])) for found in details)
    return Losses(one, other, str(details[0]["loss_unit"]))


def compare_losses(paths: list[Path], only: str, markdown: bool) -> bool:
    """A line for each model; whether all are alike."""
    line = "| {} | {} | {} | {} | {} |" if markdown else "{:28} {:>10} {:>10} {:>9} {}"
    print(line.format("model", "onnxruntime-training", "torch", "apart", "unit"), flush=True)
    if markdown:
        print("|---|---:|---:|---:|---|")
    good = True
    for path in bench_real.files(paths, only):
        if path.stem not in UNTRAINED:
            found = losses(path)
            unit = "variances of each column" if found.unit.endswith("column") else "variances of each output"
            print(
                line.format(path.stem, f"{found.ort:.6g}", f"{found.torch:.6g}", f"{found.apart:.1e}", unit), flush=True
            )
            good &= found.apart <= ALIKE
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--losses", action="store_true", help="of real models, right after pruning")
    parser.add_argument("--only", default="", help="part of a path, with --losses")
    chosen = parser.parse_args()
    if chosen.losses:
        raise SystemExit(0 if compare_losses(chosen.models, chosen.only, chosen.markdown) else 1)
    line = "| {} | {} | {} | {} | {} |" if chosen.markdown else "{:34} {:10} {:>10} {:>10} {}"
    print(line.format("network", "optimizer", "moved", "apart", "masks equal"), flush=True)
    if chosen.markdown:
        print("|---|---|---:|---:|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, path, data in given(chosen.models) if chosen.models else exported(Path(folder)):
            for optimizer in OPTIMIZERS:
                far = parity(path, data, optimizer, chosen.steps)
                same = "yes" if far.masks else "no"
                print(line.format(name, optimizer, f"{far.moved:.1e}", f"{far.distance:.1e}", same), flush=True)


if __name__ == "__main__":
    main()
