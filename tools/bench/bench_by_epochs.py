"""Recipes held to their bars: accuracy, the same masks everywhere, and what modifiers cost.

    python tools/bench/bench_by_epochs.py accuracy MODEL TRAIN.npz TEST.npz [--only NAME] [--seed 0] [--hardness 0]
    python tools/bench/bench_by_epochs.py examples MODEL TRAIN.npz [--count 512]
    python tools/bench/bench_by_epochs.py cost

`accuracy` tunes a model by two recipes with labels and measures it on other images: gradual pruning to 85 % in 3
epochs, and phases of AC/DC to 90 % in 6, which have to end pruned; each with learning rates in the recipe, and without,
where those of `finetune` serve. `examples` runs every example of SparseML's recipe
document, with the layers of the model for its names, in both engines and in a plain torch loop, and holds the zeros of
all three against each other. `cost` measures what 200 modifiers on 500 weights add to a step that changes no mask.

Exit code 1: a bar was missed. The environment needs onnxruntime-training, and for `examples` torch, too.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np  # noqa: E402 - after the number of threads
import onnx  # noqa: E402
from onnx import numpy_helper  # noqa: E402

import onnxsparse as osp  # noqa: E402
from onnxsparse.engines.processes import end_unless_alone  # noqa: E402
from tests.examples_of_recipes import examples  # noqa: E402

GMP = """
modifiers:
    - !EpochRangeModifier {start_epoch: 0.0, end_epoch: 3.0}
    - !GMPruningModifier
        start_epoch: 0.0
        end_epoch: 1.5
        update_frequency: 0.05
        init_sparsity: 0.05
        final_sparsity: 0.85
        params: __ALL_PRUNABLE__
    - !LearningRateFunctionModifier {start_epoch: 0, end_epoch: 3, lr_func: cosine, init_lr: 0.02, final_lr: 0.0}
"""
ACDC = """
modifiers:
    - !EpochRangeModifier {start_epoch: 0.0, end_epoch: 6.0}
    - !ACDCPruningModifier
        start_epoch: 0
        end_epoch: 5
        update_frequency: 1
        compression_sparsity: 0.9
        params: __ALL_PRUNABLE__
    - !LearningRateFunctionModifier {start_epoch: 0, end_epoch: 6, lr_func: cosine, init_lr: 0.02, final_lr: 0.0}
"""
BARS = {
    f"{title}{', no rates in it' if bare else ''}": ("".join(text.splitlines(True)[: -1 if bare else None]), level, bar)
    for title, text, level, bar in (
        ("GMP 0.05 to 0.85, 3 epochs", GMP, 0.85, 89.3),
        ("AC/DC 0.9, 6 epochs", ACDC, 0.9, 90.0),
    )
    for bare in (False, True)
}
MILLISECOND = 1e-3


def main() -> int:
    end_unless_alone("bench_by_epochs")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("accuracy")
    one.add_argument("model")
    one.add_argument("train")
    one.add_argument("test")
    one.add_argument("--only", default="")
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--hardness", type=float, help="0: labels alone")
    two = commands.add_parser("examples")
    two.add_argument("model")
    two.add_argument("train")
    two.add_argument("--count", type=int, default=512)
    commands.add_parser("cost")
    options = parser.parse_args()
    run = {"accuracy": accuracy, "examples": everywhere, "cost": cost}[options.command]
    return 0 if run(options) else 1


def weights_of(path: str) -> dict[str, np.ndarray[Any, Any]]:
    return {one.name: numpy_helper.to_array(one) for one in onnx.load(path).graph.initializer}


# -- accuracy


def accuracy(options: argparse.Namespace) -> bool:
    print("| recipe | zeros | accuracy | bar | CPU seconds |\n|---|---:|---:|---:|---:|")
    chosen = [name for name in BARS if options.only in name]
    held = [_tuned(name, options) for name in chosen]  # all of them, whatever the first comes to
    return all(held)


def _tuned(name: str, options: argparse.Namespace) -> bool:
    text, level, bar = BARS[name]
    with tempfile.TemporaryDirectory() as folder:
        out, begun = os.path.join(folder, "out.onnx"), sum(os.times()[:4])
        recipe = osp.Recipe.load(text)
        report = osp.finetune(
            options.model,
            data=options.train,
            output=out,
            recipe=recipe,
            loss="cross-entropy",
            hardness=options.hardness,
            seed=options.seed,
        ).report
        spent, reached = sum(os.times()[:4]) - begun, _accuracy(out, options.test)
        found = weights_of(out)
    rows = [row for row in report.rows if row.status == "pruned"]
    zeros = {row.name: int(found[row.name].size - np.count_nonzero(found[row.name])) for row in rows}
    size = sum(found[row.name].size for row in rows)
    exact = sum(zeros.values()) == math.floor(level * size + 0.5)
    if "GMP" in name:
        exact = all(count == math.floor(level * found[one].size + 0.5) for one, count in zeros.items())
    print(f"| {name} | {sum(zeros.values()) / size:.4f} | {reached:.2f} % | {bar} % | {spent:.0f} |", flush=True)
    return exact and reached >= bar


def _accuracy(model: str, test: str) -> float:
    import onnxruntime

    session, data = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]), np.load(test)
    name, right = session.get_inputs()[0].name, 0
    for start in range(0, len(data["labels"]), 500):
        logits = session.run(None, {name: data["x"][start : start + 500]})[0]
        right += int((logits.argmax(1) == data["labels"][start : start + 500]).sum())
    return 100 * right / len(data["labels"])


# -- every example everywhere


def everywhere(options: argparse.Namespace) -> bool:
    loaded = np.load(options.train)
    data = {"x": loaded["x"][: options.count], "labels": loaded["labels"][: options.count]}
    layers = [name for name, array in weights_of(options.model).items() if array.ndim == 4 and array.shape[1] > 1]
    texts = examples(layers[:3], layers[3].rpartition(".weight")[0] or layers[3])
    print("| example | onnxruntime-training | torch | plain loop | zeros in masks |\n|---|---:|---:|---:|---:|")
    same = [_alike(name, text, options.model, data) for name, text in texts.items()]
    return all(same)


def _alike(name: str, text: str, model: str, data: dict[str, Any]) -> bool:
    found, seconds = [], []
    for way in ("ort", "torch", "loop"):
        begun = sum(os.times()[:4])
        found.append(_in_loop(text, model, data) if way == "loop" else _in_engine(text, model, data, way))
        seconds.append(sum(os.times()[:4]) - begun)
    shared = [key for key in found[0] if all(key in one for one in found)]
    same = all(found[0][key] == one[key] for one in found for key in shared)
    zeros = sum(found[0][key] for key in shared)
    spent = " | ".join(f"{one:.0f} s" for one in seconds)
    print(f"| {name} | {spent} | {zeros}{'' if same else ' NOT THE SAME'} |", flush=True)
    return same


def _in_engine(text: str, model: str, data: dict[str, Any], engine: str) -> dict[str, int]:
    recipe = osp.Recipe.load(text)
    epochs = None if recipe.max_epochs > 0 else 1
    result = osp.finetune(model, data=data, recipe=recipe, engine=engine, loss="cross-entropy", lr=1e-2, epochs=epochs)
    assert result.model is not None
    return {one.name: _zeros(numpy_helper.to_array(one)) for one in result.model.graph.initializer}


def _in_loop(text: str, model: str, data: dict[str, Any]) -> dict[str, int]:
    import torch

    from onnxsparse.dialects.sparseml import ScheduledModifierManager

    net = osp.torch.to_module(model)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
    manager = ScheduledModifierManager.from_yaml(text)
    steps = len(data["labels"]) // 32
    stepper = manager.modify(net, optimizer, steps_per_epoch=steps)
    for _ in range(max(manager.max_epochs, 1)):
        for step in range(steps):
            x, labels = (torch.from_numpy(data[key][32 * step : 32 * step + 32]) for key in ("x", "labels"))
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x), labels).backward()
            stepper.step()
    manager.finalize(net)
    return {name: _zeros(one.detach().numpy()) for name, one in net.named_parameters()}


def _zeros(array: Any) -> int:
    return int(array.size - np.count_nonzero(array))


# -- what modifiers cost


def cost(_: argparse.Namespace) -> bool:
    from onnxsparse.acts.params import Param
    from onnxsparse.engines.engine import Spec
    from onnxsparse.train.onnx_trainee import OnnxTrainee

    tags = [f"w{place}" for place in range(500)]
    weights = {tag: np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32) for tag in tags}
    frozen = {f"{tag}/mask": np.ones((8, 8), np.float32) for tag in tags}
    nothing = lambda *_: None  # noqa: E731
    engine: Any = SimpleNamespace(weights=weights, frozen=frozen, clear_moments=nothing, agree=nothing)
    four = (1, 8, 8, 1)
    params = [
        Param(tag, tag, (8, 8), lambda flat: flat.reshape(four), lambda view: view.reshape(-1), prunable=True)
        for tag in tags
    ]
    trainee = OnnxTrainee(lambda _: engine, params, 1000, 100_000)
    trainee.build(Spec(1))
    modifiers: Any = osp.Recipe.load(_many()).modifiers
    acts = [one.act() for one in modifiers]
    for act in acts:
        act.bind(params)
        trainee.admit(act)
    spent = []
    for step in range(60):
        begun = time.perf_counter()
        for act in acts:
            act.before_step(trainee, step)
        trainee.settle()
        for act in acts:
            act.after_step(trainee, step)
        spent.append(time.perf_counter() - begun)
    found = median(spent[1:50])
    print(f"{len(acts)} modifiers on {len(tags)} weights: {1e3 * found:.3f} ms a step without new masks")
    return found < MILLISECOND


def _many() -> str:
    rate = "!LearningRateFunctionModifier {lr_func: cosine, init_lr: 0.1, final_lr: 0.0, start_epoch: 0, end_epoch: "
    lines = [f"{rate}{100 + place}}}" for place in range(50)]
    for place in range(150):
        lines.append(
            f"!GMPruningModifier {{params: ['re:w\\d*{place % 10}$'], init_sparsity: 0.05, final_sparsity: 0.5, "
            f"start_epoch: 0, end_epoch: {50 + place}, update_frequency: 1}}"
        )
    return "modifiers:\n" + "".join(f"- {line}\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
