"""Exporting a torch module as an ONNX file that records what its zeros are for.

1. Exporters fold batch normalizations into layers and turn matrices; such tensors get other names. Which parameter one
   is of is found by its numbers (`match`): the zeros of a weight whose rows were scaled are where they were.
2. What nothing is certain of has no promise, and that is said.
3. Integers have the names of their parameters, whose zeros are counted in the module: not what rounding adds to them.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onnxsparse.engines.torch.export import exporting
from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.match.match import match
from onnxsparse.engines.torch.parametrization import PATTERNS
from onnxsparse.engines.torch.quantized_module import stage_of
from onnxsparse.errors import OptionError, OutputError
from onnxsparse.files import Staged, make_folder
from onnxsparse.graph.model import Model
from onnxsparse.graph.torch_match import Match
from onnxsparse.graph.weights import Weight
from onnxsparse.math.values import Array
from onnxsparse.passes.device_levels import NEARLY_DENSE
from onnxsparse.patterns import parse as parse_pattern
from onnxsparse.patterns.nm import NOfM
from onnxsparse.patterns.unstructured import Unstructured
from onnxsparse.planning.plan import Plan, PlanRow
from onnxsparse.planning.record import record
from onnxsparse.planning.rule import Rule
from onnxsparse.planning.stored_params import count_zeros, weight_param
from onnxsparse.train.layers import Promise, dropped


@dataclass(frozen=True)
class Part:
    """A part of a network that is exported by itself, with the names of its tensors.

    Batch normalizations stay nodes: in eval mode the exporter folds them into the layers before, and stores a
    convolution that several of them share once for each.
    """

    inputs: Sequence[str]
    outputs: Sequence[str]
    any_rows: bool = False
    """Whether it answers for any number of rows, as what comes behind the proposals of a detector does."""

    def options(self) -> dict[str, Any]:
        """What torch's exporter is told."""
        free = [*self.inputs, *self.outputs] if self.any_rows else []
        return {
            "input_names": list(self.inputs),
            "output_names": list(self.outputs),
            "dynamic_axes": {name: {0: "rows"} for name in free},
            "training": torch().onnx.TrainingMode.PRESERVE,
        }


def promise_of(names: Collection[str], promise: Promise) -> Promise:
    """What of a promise concerns some parameters."""
    patterns = {name: text for name, text in promise.patterns.items() if name in names}
    dense = {name: reason for name, reason in promise.dense.items() if name in names}
    return replace(promise, patterns=patterns, dense=dense)


def export_onnx(
    module: Any, inputs: Any, path: str, promise: Promise, drops: Mapping[str, int], part: Part | None = None
) -> list[str]:
    """Write a plain module; `drops` are the zero units of each layer, by the path of its weight.

    Returns what has to be said of it.
    """
    folder = os.path.dirname(os.path.abspath(path))
    make_folder(folder)
    with tempfile.TemporaryDirectory(prefix=".onnxsparse-", dir=folder) as waiting:
        options = {} if part is None else part.options()
        model = Model.open(_exported(module, inputs, os.path.join(waiting, "model.onnx"), path, options))
        paths, lost = _paths(model, module, [*promise.patterns, *promise.dense])
        rows = tuple(_row(paths.get((one.scope, one.tensor.name), ""), one, promise, drops) for one in model.weights)
        record(model, Plan(rows, Rule.make(target=promise.target, sparsity=promise.level)))
        with Staged(True) as staged:
            left = model.save(path, True, staged)
            staged.commit()
    return [*_said([path for path in lost if path in promise.patterns], len(promise.patterns)), *left]


def _exported(module: Any, inputs: Any, file: str, path: str, options: Mapping[str, Any]) -> str:
    """What torch's exporter makes, in a file that waits for its record and its name."""
    module.eval()
    parts = tuple(inputs) if isinstance(inputs, (list, tuple)) else (inputs,)
    try:
        with exporting():
            torch().onnx.export(module, parts, file, dynamo=False, **options)
    except Exception as error:  # whatever the exporter raises
        raise OutputError(f"torch cannot export the module to {path}: {' '.join(str(error).split())[:200]}") from error
    return file


def _paths(model: Model, module: Any, wanted: Sequence[str]) -> tuple[dict[tuple[str, str], str], list[str]]:
    """The path of the parameter that each stored weight is, by scope and name; and the paths of those that are none."""
    stored = {(weight.scope, weight.tensor.name): weight.tensor.size for weight in model.weights}
    found = {key: key[1] for key in stored if key[1] in wanted}
    lost = [path for path in wanted if path not in found.values()]
    if lost:
        matched = _match(model, module)
        places = {path: _places(matched, path) for path in lost}
        found.update({key: path for path, keys in places.items() for key, size in keys if stored.get(key) == size})
    refused = {(weight.scope, weight.tensor.name) for weight in model.weights if weight.refusal}
    proven = {path for key, path in found.items() if key not in refused}
    return found, [path for path in wanted if path not in proven]


def _match(model: Model, module: Any) -> Match:
    try:
        return match(model, module)
    except OptionError:  # a module that has something in it that nobody can look for
        return Match()


def _places(matched: Match, path: str) -> list[tuple[tuple[str, str], int]]:
    """Where a parameter lies, and how many numbers it has: a tensor that holds more is not it."""
    if matched.aliases.get(path, path) not in matched.matched:
        return []
    one = matched[path]
    return [((copy.scope, copy.tensor), math.prod(copy.shape)) for copy in (one, *one.copies)]


def _said(lost: Sequence[str], total: int) -> list[str]:
    if not lost:
        return []
    more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
    line = (
        f"{len(lost)} of {total} layers have no promise in the record of the file, as no tensor in it is certainly "
        f"theirs: {', '.join(lost[:3])}{more}; verify them by a rule (--pattern, or --target and --level)"
    )
    return [line]


def _beside(weight: Weight) -> str:
    """Why a weight is dense that is in the file and was no layer to prune; a pruned one may have got another name."""
    nearly = (count_zeros(weight) or 0) < NEARLY_DENSE * max(weight.tensor.size, 1)
    return "no layer that the scheduler prunes" if nearly else ""


def _row(path: str, weight: Weight, promise: Promise, drops: Mapping[str, int]) -> PlanRow:
    text = promise.patterns.get(path)
    if text is None or weight.refusal:
        reason = promise.dense.get(path) or ("" if weight.refusal else _beside(weight))
        return PlanRow(weight, reason=reason or weight.refusal or "left dense", chosen=bool(reason))
    pattern = parse_pattern(text)
    drop = drops[path] if isinstance(pattern, NOfM) else min(drops[path], count_zeros(weight) or 0)
    return PlanRow(weight, pattern, drop)


# -- a module that a recipe pruned


PLAIN = Unstructured()


def record_zeros(model: Model, module: Any) -> list[str]:
    """Record in a model what a recipe pruned in the module that it was exported from.

    Returns what has to be said of it.
    """
    stage = stage_of(module)
    patterns = module.__dict__.get(PATTERNS, {}) if stage is None else stage.patterns
    if not patterns:
        return []
    zeros = {name: (one == 0).cpu().numpy() for name, one in module.state_dict().items() if name in patterns}
    paths = {} if stage is not None else _paths(model, module, list(zeros))[0]
    named = [(weight, paths.get((weight.scope, weight.tensor.name), weight.tensor.name)) for weight in model.weights]
    rows = [(name, _counted(weight, name, patterns, zeros)) for weight, name in named]
    record(model, Plan(tuple(row for _, row in rows), Rule.make()))
    names = {name for name, row in rows if row.pattern is not None}
    return _said([name for name in zeros if zeros[name].any() and name not in names], len(zeros))


def _counted(weight: Weight, name: str, patterns: Mapping[str, str], zeros: Mapping[str, Array]) -> PlanRow:
    """The promise of a weight: the pattern of the recipe, or single zeros where it did not come to that."""
    zero = zeros.get(name)
    if zero is None or weight.refusal or not weight.uses:
        return PlanRow(weight, reason=weight.refusal or "the recipe does not prune it", chosen=not weight.refusal)
    count = int(np.count_nonzero(zero))
    pattern, seen = parse_pattern(patterns[name]), np.asarray(weight_param(weight).whole().is_zero())
    if zero.shape == tuple(weight.shape):
        mine = weight.uses[0].matrix(zero.reshape(-1))
        seen = seen if (mine & ~seen).any() else mine  # a square matrix may have been turned
    drop = dropped(pattern, seen)
    if drop and not pattern.violations(seen, drop):
        return PlanRow(weight, pattern, drop)
    return PlanRow(weight, PLAIN, count) if count else PlanRow(weight, reason="the recipe left no zeros in it")
