"""Recipes of other people, run to their ends: in a torch loop, and on an ONNX model; what cannot run says why.

    python tools/bench/bench_recipes.py FOLDER ... [--json OUT.json] [--only TEXT] [--engine torch|ort] [--jobs 2]
        [--work FOLDER]

1. The model is made for the recipe: every layer that its options name is a layer at that path, in their order. Paths
   that speak of text make linear layers and tables on tokens, others convolutions; what a path calls a norm or an
   activation is one. A class of modules that they name stands there, too, and hands on what it gets (a LayerNorm is
   one). Of a pattern the usual paths that it fits are taken or, where it fits none, a path that it fits, with 0 for its
   wildcards. A layer without a name stands behind them, and what is not a layer holds others.
2. Epochs are scaled so that the recipe ends at 5, and nothing begins behind 4.75; AC/DC gets phases of one epoch, which
   it needs whole. Rates are at most 0.001, gradients of second-order pruning at most 8 and their blocks at most 16, and
   updates come four times an epoch or less often. On ONNX all parameters are one group, so rates of other groups are of
   that one, and a teacher is heard on the first output that is named. The rest is as it is written.
3. A loop goes one step past the end. A modifier has run if it began, and ended where it has an end.

Exit code 1: a modifier did not begin or end, or a run failed that should not. The environment needs torch and
onnxruntime-training.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import logging
import os
import re
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import torch  # noqa: E402 - after the number of threads

import onnxsparse as osp  # noqa: E402
import onnxsparse.torch  # noqa: E402
from onnxsparse.acts.act import TimedAct  # noqa: E402
from onnxsparse.dialects.sparseml import ScheduledModifierManager  # noqa: E402
from onnxsparse.errors import OnnxSparseError  # noqa: E402
from onnxsparse.recipes.modifiers.modifier import Scheduled, changed  # noqa: E402
from onnxsparse.recipes.modifiers.quantization import Quantizing  # noqa: E402
from onnxsparse.recipes.writing import tag_of  # noqa: E402

WIDTH, SAMPLES, PER_BATCH, LAST = 8, 64, 8, 5
PER_EPOCH = SAMPLES // PER_BATCH
LATEST = 4.75
PARTS = ("attention.self.query", "attention.self.key", "attention.output.dense", "intermediate.dense", "output.dense")
USUAL = (
    *(
        f"{model}.encoder.layer.{place}.{part}"
        for model in ("bert", "mobilebert")
        for place in (0, 1)
        for part in PARTS
    ),
    "bert.embeddings.word_embeddings",
    "bert.pooler.dense",
    "classifier",
    "qa_outputs",
    *(f"model.layers.{place}.{part}" for place in (0, 1) for part in ("self_attn.q_proj", "mlp.down_proj")),
    *(f"model.{place}.{part}" for place in (0, 1, 4) for part in ("conv", "cv1.conv", "m.0.cv1.conv")),
    *(f"sections.{place}.0.{part}" for place in (0, 1) for part in ("conv1", "conv2", "point.conv", "depth.conv")),
    "input.conv",
    "layer1.0.conv1",
    "layer2.1.conv2",
    "classifier.fc",
)
"""Paths of layers in models that recipes are written for."""
TEXT = re.compile(r"bert|layernorm|layers\.\d|attention|mlp|encoder|lm_head|q_proj|embed")
CLASS = re.compile(r"[A-Z]\w*")
PARSER: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
HEAD = "own_head"
NAMED = ("params", "layers", "student_layer_names", "teacher_layer_names", "submodules", "ignore")
TORCH, ONNX = "torch", "onnx"


# -- the model


def layers_named(modifiers: Iterable[Scheduled]) -> list[str]:
    """The paths of the layers that the options of modifiers name, or that their patterns fit."""
    found: dict[str, None] = {}
    for modifier in modifiers:
        for name in names_in(modifier):
            if CLASS.fullmatch(name):
                continue
            for path in [name] if not name.startswith("re:") else fitting(name[3:]):
                found[re.sub(r"\.(weight|bias|running_mean|running_var)$", "", path)] = None
    return [one for one in found if one and not any(other.startswith(f"{one}.") for other in found)]


def classes_named(modifiers: Iterable[Scheduled]) -> list[str]:
    """The classes of modules that they name, but those whose place a path takes."""
    return list(dict.fromkeys(name for one in modifiers for name in names_in(one) if CLASS.fullmatch(name)))


def names_in(modifier: Scheduled) -> Iterator[str]:
    """Paths, patterns and classes."""
    levels = getattr(modifier, "final_sparsity", None)
    groups = list(levels.values()) if isinstance(levels, dict) else []
    groups += [getattr(modifier, option, None) for option in NAMED]
    if isinstance(modifier, Quantizing) and not modifier.missing:
        scheme = modifier.scheme_of()
        groups.append([*scheme.overrides, *scheme.only])
    depending = getattr(modifier, "param_group_dependency_map", None) or {}
    groups += [name.split(",") for name in depending] + list(depending.values())
    for names in groups:
        for name in [names] if isinstance(names, str) else names or ():
            if not name.startswith("__"):
                yield name.strip()


def fitting(pattern: str) -> list[str]:
    try:
        found = [path for path in USUAL if re.match(pattern, f"{path}.weight") or re.match(pattern, path)]
    except re.error:  # the run says what is wrong with it
        return []
    return found or [like(PARSER.parse(pattern)).strip(".")]


def like(parsed: Any) -> str:
    """The shortest text that shows all of a pattern: the first of alternatives, 0 for what may be anything."""
    return "".join(part(str(kind), value) for kind, value in parsed)


def part(kind: str, value: Any) -> str:
    if kind in ("LITERAL", "ANY"):
        return chr(value) if value else "."
    if kind == "IN":
        return part(*[str(value[0][0]), value[0][1]])
    if kind == "RANGE":
        return chr(value[0])
    if kind in ("MAX_REPEAT", "MIN_REPEAT"):
        return "0" if str(value[2][0][0]) == "ANY" else like(value[2])
    if kind == "SUBPATTERN":
        return like(value[-1])
    if kind == "BRANCH":
        return like(value[1][0])
    return "0" if kind in ("CATEGORY", "NEGATE", "NOT_LITERAL") else ""


class Block(torch.nn.Module):  # type: ignore[misc]
    """What it holds, one after the other, beside a straight way."""

    share = 0.3

    def forward(self, values: Any) -> Any:
        for name, one in self.named_children():
            if name != HEAD and isinstance(one, (torch.nn.Linear, torch.nn.Conv2d)):
                values = values + self.share * torch.relu(one(values))
            elif name != HEAD and not isinstance(one, torch.nn.Embedding):
                values = one(values)
        return values


class Net(Block):
    """Layers at given paths, and a head of four classes."""

    def __init__(self, paths: list[str], classes: list[str], outputs: list[str]) -> None:
        super().__init__()
        for name in sorted(set(classes) - {"Linear", "Conv2d", "Embedding"}):
            own = torch.nn.LayerNorm(WIDTH) if name == "LayerNorm" else type(name, (torch.nn.Identity,), {})()
            self.add_module(f"own_{name.lower()}", own)
        self.attends, self.outputs = any("MatMul" in name for name in classes), outputs
        self.on_tokens = self.attends or bool(TEXT.search("|".join([*paths, *classes]).lower()))
        paths = [*paths, *(["own_embeddings"] if self.on_tokens else []), "own_layer"]
        for path in paths:
            self.put(path)
        for one in self.modules():
            one.share = min(Block.share, 2 / len(paths))
        self.own_head = torch.nn.Linear(WIDTH, 4)

    def put(self, path: str) -> None:
        *above, last = path.split(".")
        place: Any = self
        for step in above:
            if step not in place._modules:
                place.add_module(step, Block())
            place = place._modules[step]
        place.add_module(last, self.layer(path))

    def layer(self, path: str) -> Any:
        name = path.lower()
        if "norm" in name or re.search(r"(^|\.)bn\d*$", name):
            return torch.nn.LayerNorm(WIDTH) if self.on_tokens else torch.nn.BatchNorm2d(WIDTH)
        if re.search(r"(^|\.)(act|relu|silu)\w*$", name):
            return torch.nn.ReLU()
        if not self.on_tokens:
            return torch.nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        return torch.nn.Embedding(30, WIDTH) if "embed" in name else torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        tables = [one for one in self.modules() if isinstance(one, torch.nn.Embedding)]
        values = sum(one(x) for one in tables) if tables else x
        values = super().forward(values)
        if self.attends:
            values = values + torch.softmax(values @ values.transpose(1, 2), -1) @ values
        answer = self.own_head(values.mean(1) if self.on_tokens else values.mean((2, 3)))
        return dict.fromkeys(self.outputs, answer) if self.outputs else answer


def samples(net: Net) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 4, (SAMPLES,), generator=generator)
    if net.on_tokens:
        return torch.randint(0, 30, (SAMPLES, 6), generator=generator), labels
    return torch.randn((SAMPLES, WIDTH, 5, 5), generator=generator), labels


# -- the recipe


def scaled(recipe: osp.Recipe) -> osp.Recipe:
    """The recipe in five epochs, and small enough for the model."""
    of = recipe.max_epochs
    return recipe.holding(smaller(one, of) if isinstance(one, Scheduled) else one for one in recipe.modifiers)


def smaller(modifier: Scheduled, of: int) -> Scheduled:
    if modifier.name == "ACDCPruningModifier":
        return changed(modifier, start_epoch=0.0, end_epoch=4.0, update_frequency=1.0)
    options = modifier.times_within(LAST, of) if of > 0 else {}
    if options.get("start_epoch", 0) > LATEST:
        options["start_epoch"] = LATEST
    if options.get("update_frequency", 0) > 0:
        options["update_frequency"] = max(options["update_frequency"], 0.25)
    for name, most in (("num_grads", 8), ("fisher_block_size", 16)):
        if isinstance(getattr(modifier, name, None), int):
            options[name] = min(getattr(modifier, name), most)
    for name in ("learning_rate", "init_lr", "final_lr"):
        if isinstance(getattr(modifier, name, None), float):
            options[name] = min(getattr(modifier, name), 1e-3)
    return changed(modifier, **options)


# -- what ran


@contextmanager
def watched() -> Iterator[dict[str, TimedAct]]:
    """The acts that go by the clock meanwhile, by where they stand in the recipe."""
    made: dict[str, TimedAct] = {}
    before = TimedAct.before

    def remember(self: TimedAct, *arguments: Any) -> None:
        made[self.where] = self
        before(self, *arguments)

    with mock.patch.object(TimedAct, "before", remember):
        yield made


def unfinished(recipe: osp.Recipe, acts: dict[str, TimedAct]) -> list[str]:
    """The modifiers that did not begin, or did not end though they have an end."""
    found = []
    for one in recipe.modifiers:
        act = acts.get(one.called) if isinstance(one, Scheduled) else None
        if isinstance(one, Scheduled) and (act is None or not act.clock.started):
            found.append(f"{one.name} did not begin")
        elif act is not None and act.span.end >= 0 and not act.clock.ended:
            found.append(f"{act.where} did not end")
    return found


def in_torch(recipe: osp.Recipe, net: Net) -> None:
    inputs, labels = samples(net)
    biases = [one for one in net.parameters() if one.ndim < 2]
    others = [one for one in net.parameters() if one.ndim > 1]
    plain = torch.optim.SGD([{"params": others[:1]}, {"params": others[1:]}, {"params": biases}], 5e-4, momentum=0.9)
    manager = ScheduledModifierManager.from_yaml(recipe)
    sampler = {"data_loader_builder": lambda *_, **__: [([inputs], {}, labels)] * 8, "loss_function": loss_of}
    optimizer = manager.modify(net, plain, PER_EPOCH, grad_sampler=sampler)
    for step in range(max(manager.max_epochs, 1) * PER_EPOCH + 1):
        chosen = slice(step % PER_EPOCH * PER_BATCH, (step % PER_EPOCH + 1) * PER_BATCH)
        plain.zero_grad()
        optimizer.loss_update(loss_of(net(inputs[chosen]), labels[chosen])).backward()
        optimizer.step()
    manager.finalize(net)


def loss_of(outputs: Any, labels: Any) -> Any:
    answer = next(iter(outputs.values())) if isinstance(outputs, dict) else outputs
    return torch.nn.functional.cross_entropy(answer, labels)


def on_one(modifier: Scheduled) -> dict[str, Any]:
    """What a run with one group of parameters and a loss of one output has for groups and outputs."""
    found: dict[str, Any] = {}
    if getattr(modifier, "param_groups", None) and modifier.name != "StructuredPruningModifier":
        found["param_groups"] = (0,)
    if len(getattr(modifier, "distill_output_keys", None) or ()) > 1:
        found["distill_output_keys"] = modifier.distill_output_keys[:1]  # type: ignore[attr-defined]
    return found


def on_onnx(recipe: osp.Recipe, net: Net, folder: Path, engine: str) -> None:
    inputs, _ = samples(net)
    names, path = net.outputs or ["y"], folder / "model.onnx"
    axes = {name: {0: "n"} for name in ("x", *names)}
    torch.onnx.export(
        net.eval(), (inputs[:2],), str(path), dynamo=False, input_names=["x"], output_names=names, dynamic_axes=axes
    )
    osp.torch.record_match(path, osp.torch.match(path, net), output=folder / "named.onnx")
    data = {"x": inputs.numpy()}
    timed = [one for one in recipe.modifiers if isinstance(one, Scheduled)]
    recipe = recipe.holding(changed(one, **on_one(one)) for one in timed)
    more: dict[str, Any] = {"engine": engine, **({} if recipe.max_epochs > 0 else {"epochs": 1})}
    osp.finetune(folder / "named.onnx", output=folder / "out.onnx", data=data, recipe=recipe, batch_size=4, **more)


# -- the table


def tried(path: Path, work: Path, engine: str) -> dict[str, Any]:
    """One recipe, both ways: `ran`, or why not."""
    begun = time.perf_counter()
    row: dict[str, Any] = {"file": path.name}
    try:
        recipe = scaled(osp.Recipe.load(path))
    except OnnxSparseError as error:
        return {**row, TORCH: f"unreadable: {error}", ONNX: f"unreadable: {error}", "modifiers": []}
    row["modifiers"] = [one.name for one in recipe.modifiers]
    waiting = [one for one in recipe.modifiers if getattr(one, "missing", "")]
    if waiting:
        return {**row, **dict.fromkeys((TORCH, ONNX), f"nothing runs !{tag_of(waiting[0])}")}
    teaching = [one for one in recipe.modifiers if one.name == "DistillationModifier"]
    keys = [str(key) for one in teaching for key in getattr(one, "distill_output_keys", None) or ()]
    timed = [one for one in recipe.modifiers if isinstance(one, Scheduled)]
    torch.manual_seed(0)
    net = Net(layers_named(timed), classes_named(timed), list(dict.fromkeys(keys)))
    with tempfile.TemporaryDirectory(dir=work) as folder:
        for kind, run in (
            (TORCH, lambda: in_torch(recipe, copy.deepcopy(net))),
            (ONNX, lambda: on_onnx(recipe, copy.deepcopy(net), Path(folder), engine)),
        ):
            with watched() as acts:
                row[kind] = outcome(run) or "; ".join(unfinished(recipe, acts)) or "ran"
    return {**row, "seconds": round(time.perf_counter() - begun, 1)}


def outcome(run: Any) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            run()
        except OnnxSparseError as error:
            return f"refused: {error}"
        except Exception as error:
            return f"failed: {type(error).__name__}: {error}"[:400]
    return ""


def attempt(given: tuple[Path, Path, str]) -> dict[str, Any]:
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    return tried(*given)


def shown(rows: list[dict[str, Any]]) -> None:
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in (TORCH, ONNX)}
    for row in rows:
        for name in set(row["modifiers"]):
            for kind in counts:
                counts[kind][name] += row[kind] == "ran"
    total = Counter(name for row in rows for name in set(row["modifiers"]))
    print("| modifier | recipes | ran in torch | ran on ONNX |\n|---|---:|---:|---:|")
    for name, count in total.most_common():
        print(f"| `{name}` | {count} | {counts[TORCH][name]} | {counts[ONNX][name]} |")
    for kind in (TORCH, ONNX):
        print(f"\n{kind}: {sum(row[kind] == 'ran' for row in rows)} of {len(rows)} ran to their ends\n")
        for row in rows:
            if row[kind] != "ran":
                print(f"| {row['file'][:60]} | {row[kind][:230]} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument(
        "--engine", default="torch", help="for ONNX models: torch, or ort, which takes five times as long"
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()))
    asked = parser.parse_args()
    paths = [path for folder in asked.folders for path in sorted(folder.iterdir()) if asked.only in path.name]
    with ProcessPoolExecutor(asked.jobs) as pool:
        rows = []
        for row in pool.map(attempt, [(path, asked.work, asked.engine) for path in paths]):
            rows.append(row)
            print(f"{row['file'][:50]}: {row[TORCH][:90]} | {row[ONNX][:90]}", file=sys.stderr, flush=True)
    shown(rows)
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    good = ("ran", "refused", "unreadable", "nothing runs")
    return 0 if all(row[kind].startswith(good) for row in rows for kind in (TORCH, ONNX)) else 1


if __name__ == "__main__":
    sys.exit(main())
