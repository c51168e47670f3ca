"""What the second opinion costs: prune and verify of this tree against those of another checkout, file to file.

    python tools/bench/bench_evaluator.py FOLDER --against CHECKOUT [--models resnet50 bert] [--repeat 5]

FOLDER gets the models (models/builders.py) and forms of them: float16 behind Cast, int8 behind DequantizeLinear for
each output, and a mask before every weight. CPU seconds on one thread, imports included, the least of
the repetitions; the two trees take turns. Exit code 1: prune took more than 1.15 times as long as the other tree's, or
verify more than 1.3 times. CHECKOUT is to be compiled first (python -m compileall CHECKOUT/onnxsparse): a tree that
compiles itself in every run is no measure.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[2]
BARS = {"prune": 1.15, "verify": 1.3}
FORMS = ("float32", "float16", "int8")


def half(tensor: TensorProto, array: np.ndarray, made: str) -> tuple[list[TensorProto], NodeProto]:
    """float16 behind Cast."""
    stored = numpy_helper.from_array(array.astype(np.float16), tensor.name)
    return [stored], helper.make_node("Cast", [tensor.name], [made], name=f"{made}_cast", to=TensorProto.FLOAT)


def quantized(tensor: TensorProto, array: np.ndarray, made: str) -> tuple[list[TensorProto], NodeProto]:
    """int8 behind DequantizeLinear, a scale for each output."""
    axis = 0 if array.ndim == 4 else array.ndim - 1
    others = tuple(other for other in range(array.ndim) if other != axis)
    scale = (np.abs(array).max(others) / 127 + 1e-9).astype(np.float32)
    codes = np.rint(array / np.expand_dims(scale, others)).clip(-127, 127).astype(np.int8)
    name = tensor.name
    arrays = {name: codes, f"{name}_scale": scale, f"{name}_zero": np.zeros(scale.shape, np.int8)}
    return [numpy_helper.from_array(one, key) for key, one in arrays.items()], helper.make_node(
        "DequantizeLinear", list(arrays), [made], name=f"{made}_dequantize", axis=axis
    )


def write_form(source: Path, form: str) -> Path:
    """The model with its weights stored otherwise."""
    if form == "float32":
        return source
    model, nodes, stored = onnx.load(source), [], []
    for tensor in model.graph.initializer:
        if len(tensor.dims) < 2:
            stored.append(tensor)
            continue
        made = f"{tensor.name}_as_float"
        for node in model.graph.node:
            node.input[:] = [made if name == tensor.name else name for name in node.input]
        tensors, node = (half if form == "float16" else quantized)(tensor, numpy_helper.to_array(tensor), made)
        nodes.append(node)
        stored += tensors
    graph = helper.make_graph(
        [*nodes, *model.graph.node], model.graph.name, model.graph.input, model.graph.output, stored
    )
    target = source.with_name(f"{source.stem}-{form}.onnx")
    onnx.save(helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version), target)
    return target


def seconds(tree: Path, words: list[str]) -> float:
    """CPU seconds of one command in a tree."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "onnxsparse", *words], check=True, stdout=subprocess.DEVNULL, cwd=tree,
        env={**os.environ, **threads, "PYTHONPATH": str(tree)},
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def commands(model: Path) -> dict[str, list[str]]:
    rule = ["--pattern", "2:4"]
    sparse, masked = (str(model.with_name(f"out-{what}-{model.name}")) for what in ("sparse", "masked"))
    found = {
        "prune": ["prune", str(model), "-o", sparse, *rule, "--overwrite"],
        "verify": ["verify", sparse, *rule],
    }
    if "-" not in model.stem:
        found["mask"] = ["mask", str(model), "-o", masked, *rule, "--overwrite"]
        found["verify of masks"] = ["verify", masked, *rule]
        found["fold"] = ["fold", masked, "-o", sparse, "--overwrite"]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--against", type=Path, required=True)
    parser.add_argument("--models", nargs="+", default=["resnet50", "bert"])
    parser.add_argument("--repeat", type=int, default=5)
    chosen = parser.parse_args()
    folder, against = chosen.folder.resolve(), chosen.against.resolve()
    builder = [sys.executable, str(ROOT / "models" / "builders.py"), str(folder), *chosen.models]
    subprocess.run(builder, check=True, stdout=sys.stderr)
    print("| model | command | before, s | now, s | |\n|---|---|---:|---:|---:|")
    missed = 0
    for model in [write_form(folder / f"{name}.onnx", form) for name in chosen.models for form in FORMS]:
        for title, words in commands(model).items():
            pairs = [(seconds(against, words), seconds(ROOT, words)) for _ in range(chosen.repeat)]
            old, new = (min(times) for times in zip(*pairs))
            missed += new > BARS.get(title, np.inf) * old
            print(f"| {model.stem} | {title} | {old:.2f} | {new:.2f} | {new / old:.2f}x |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
