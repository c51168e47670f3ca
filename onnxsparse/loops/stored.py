"""Numbers back into the file that they came from, with the record of what the zeros are for, and proven there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onnx import ModelProto

from onnxsparse.api import finish
from onnxsparse.graph.model import Model, Source
from onnxsparse.graph.output import write_text
from onnxsparse.math.values import Array
from onnxsparse.passes.describe import planned_report
from onnxsparse.passes.plan import Plan, PlanRow, make_plan
from onnxsparse.passes.record import record
from onnxsparse.passes.rule import WORDS, Rule
from onnxsparse.passes.trainable import send_back, trainables
from onnxsparse.patterns import Pattern
from onnxsparse.patterns import parse as parse_pattern
from onnxsparse.patterns.nm import NM


@dataclass(frozen=True)
class Promise:
    """What the zeros of a network are: their pattern by layer, the target, the level, and why layers are dense."""

    patterns: Mapping[str, str] = field(default_factory=dict)  # by the key of the layer
    target: str | None = None
    level: float | None = None
    dense: Mapping[str, str] = field(default_factory=dict)
    """Layers that were left out on purpose."""


def delivered(
    source: Source,
    arrays: Mapping[str, Array],
    names: Mapping[str, str],
    promise: Promise,
    path: str | None,
    with_statistics: bool = False,
) -> ModelProto | None:
    """The model with these numbers, by tag: written to a path, or returned."""
    model = Model.open(source)
    rule = Rule.make(target=promise.target, sparsity=promise.level)
    base = make_plan(model, Rule.make("unstructured", sparsity=0.0, allow=tuple(WORDS)))
    tags = trainables(model, base, with_statistics)
    by_name = {name: tag for tag, name in names.items()}
    rows = tuple(_row(row, by_name.get(row.name), arrays, promise) for row in base.rows)
    send_back({tag: array for tag, array in arrays.items() if tag in tags}, tags)
    plan = Plan(rows, rule)
    report = planned_report("prune", "(in memory)", plan, model, (), path)
    record(model, plan)
    return finish(model, report, path, True, plan).proto


def _row(row: PlanRow, tag: str | None, arrays: Mapping[str, Array], promise: Promise) -> PlanRow:
    text = promise.patterns.get(tag or "", "")
    if tag is None or not text:
        reason = promise.dense.get(tag or "", "")
        return PlanRow(row.name, row.weight, reason=reason or row.reason or "left dense", chosen=bool(reason))
    pattern = parse_pattern(text)
    return PlanRow(row.name, row.weight, pattern, dropped(pattern, row.use.matrix(arrays[tag].reshape(-1) == 0)))


def dropped(pattern: Pattern, zero: Array) -> int:
    """How many units are zero in a weight of which that is said by element; of N:M how many elements have to be."""
    if isinstance(pattern, NM):
        return pattern.drop_count(zero.shape, None)
    units = pattern.units(zero.shape)
    return units - pattern.violations(zero, units).count


def write_facts(path: str, facts: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(facts, indent=2) + "\n", True)
