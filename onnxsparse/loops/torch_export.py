"""A finished module as an ONNX file that records what its zeros are for."""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from onnxsparse.engines.torch.library import torch
from onnxsparse.errors import OutputError
from onnxsparse.graph.model import Model
from onnxsparse.graph.output import Staged
from onnxsparse.graph.weights import Weight
from onnxsparse.loops.stored import Promise
from onnxsparse.passes.inspect import count_zeros
from onnxsparse.passes.levels import NEARLY_DENSE
from onnxsparse.passes.plan import Plan, PlanRow, names_of
from onnxsparse.passes.record import record
from onnxsparse.passes.rule import Rule
from onnxsparse.patterns import parse as parse_pattern
from onnxsparse.patterns.nm import NM


def export_onnx(module: Any, inputs: Any, path: str, promise: Promise, drops: Mapping[str, int]) -> None:
    """Write a plain module; `drops` are the zero units of each layer, by the path of its weight."""
    module.eval()
    parts = tuple(inputs) if isinstance(inputs, (list, tuple)) else (inputs,)
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            torch().no_grad(),
            _attention_in_parts(),
        ):
            warnings.simplefilter("ignore")
            torch().onnx.export(module, parts, path, dynamo=False)
    except Exception as error:  # whatever the exporter raises
        raise OutputError(f"torch cannot export the module to {path}: {' '.join(str(error).split())[:200]}") from error
    model = Model.open(path)
    names = names_of(model.weights)
    rows = tuple(_row(names[id(weight)], weight, promise, drops) for weight in model.weights)
    record(model, Plan(rows, Rule.make(target=promise.target, sparsity=promise.level)))
    with Staged(True) as staged:
        model.save(path, True, staged)
        staged.commit()


@contextlib.contextmanager
def _attention_in_parts() -> Iterator[None]:
    """Attention in one kernel, which torch takes where nothing trains, has no form in ONNX."""
    mha = torch().backends.mha
    before = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        mha.set_fastpath_enabled(before)


def _beside(weight: Weight) -> str:
    """Why a weight is dense that is in the file and was no layer to prune; a pruned one may have got another name."""
    nearly = (count_zeros(weight) or 0) < NEARLY_DENSE * max(weight.tensor.size, 1)
    return "no layer that the scheduler prunes" if nearly else ""


def _row(name: str, weight: Weight, promise: Promise, drops: Mapping[str, int]) -> PlanRow:
    """Exporters keep the names of most weights; what is called otherwise has no promise."""
    text = promise.patterns.get(name)
    if text is None or weight.refusal:
        reason = promise.dense.get(name) or ("" if weight.refusal else _beside(weight))
        return PlanRow(name, weight, reason=reason or weight.refusal or "left dense", chosen=bool(reason))
    pattern = parse_pattern(text)
    drop = drops[name] if isinstance(pattern, NM) else min(drops[name], count_zeros(weight) or 0)
    return PlanRow(name, weight, pattern, drop)
