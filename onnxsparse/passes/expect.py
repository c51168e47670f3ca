"""What a verification expects of every weight: from a plan file, from a rule, or from the model's own record.

1. A plan file or the record says it for each weight by name.
2. A rule expects it of every weight that it would prune; weights recorded as left dense on purpose are named so.
3. A pattern with a level takes the level from the rule, else from the record, weight by weight.
4. A depthwise layer that is recorded as pruned is checked like the others, whether it was asked for by --allow or
   pruned before depthwise layers stayed dense by default.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from onnxsparse import allocations, patterns
from onnxsparse.errors import ModelError, OptionError
from onnxsparse.graph.model import Model
from onnxsparse.graph.weights import Weight
from onnxsparse.passes.names import NameFilter
from onnxsparse.passes.plan import PlanRow, make_plan
from onnxsparse.passes.planfile import plan_from_file, read_plan
from onnxsparse.passes.recorded import Recorded, readable, recorded
from onnxsparse.passes.rule import Rule
from onnxsparse.patterns import Pattern

EVEN = allocations.parse("uniform")
ELEMENTS = ("alive", "unstructured")
"""Patterns of single elements: what one of them promises, the other can check."""


@dataclass(frozen=True)
class Expectation:
    """What is expected of each weight, by which rule, and how to call that in a report."""

    weights: tuple[PlanRow, ...]
    rule: Rule
    title: str


def expect(model: Model, rule: Rule, plan: str | None) -> Expectation:
    """Everything a model is held to."""
    if plan is not None:
        return _by_file(model, rule, plan)
    known = recorded(model) if rule.pattern is None else readable(model)
    if rule.pattern is not None:
        return Expectation(tuple(_by_rule(model, rule, known)), rule, rule.text)
    if known is None:
        raise OptionError(
            "the model records no plan; say what to check: --pattern, --target or --plan (gs.import_onnx and "
            "gs.export_onnx drop the record of a plan, those of osp.graphsurgeon keep it)"
        )
    return Expectation(tuple(_by_record(model, known)), Rule.make(target=known.target or None), "its own record")


def _by_file(model: Model, rule: Rule, path: str) -> Expectation:
    named = (rule.pattern or rule.sparsity is not None) and not rule.knows_levels
    if named or rule.names != NameFilter() or (rule.allow and not rule.knows_levels):
        raise OptionError("--plan decides what is checked; leave every other rule and name out")
    file = read_plan(path)
    used = rule if rule.knows_levels else Rule.make(target=file.target or None)
    level = file.sparsity if used.sparsity is None and used.knows_levels else used.sparsity
    made, _ = plan_from_file(file, model, replace(used, sparsity=level))
    return Expectation(made.rows, made.rule, f"the plan {path}")


def _by_rule(model: Model, rule: Rule, known: Recorded | None) -> list[PlanRow]:
    rule.demand(level=False)
    leveled = rule.pattern is not None and rule.pattern.takes_sparsity
    if leveled and rule.sparsity is None and known is None and not rule.knows_levels:
        raise OptionError(f"pattern {rule.text} says nothing without a level; pass --sparsity or --plan")
    found = make_plan(model, _without_allocation(rule) if leveled else rule, verifying=True).rows
    return [_reconciled(entry, rule, known) for entry in found] if known else list(found)


def _without_allocation(rule: Rule) -> Rule:
    """Every weight at the level; where the level is that of the network, nobody knows what it makes of each."""
    level = 0.0 if rule.knows_levels or rule.sparsity is None else rule.sparsity
    return replace(rule, sparsity=level, allocation=EVEN if rule.knows_levels else rule.allocation)


def _reconciled(entry: PlanRow, rule: Rule, known: Recorded) -> PlanRow:
    if entry.pattern is None:
        return entry
    reason, chosen = known.dense.get(entry.name, ("", False))
    if chosen:
        return _without(entry, f"left dense on purpose: {reason}", chosen=True)
    if rule.knows_levels:
        text, drop = known.pruned.get(entry.name, ("", 0))
        return replace(entry, drop=drop) if text in ELEMENTS else entry
    if rule.sparsity is None and entry.pattern.takes_sparsity:
        text, drop = known.pruned.get(entry.name, ("", 0))
        return (
            replace(entry, drop=drop) if text == entry.pattern.text else _without(entry, "no level is recorded for it")
        )
    return entry


def _without(entry: PlanRow, reason: str, chosen: bool = False) -> PlanRow:
    return replace(entry, pattern=None, drop=0, reason=reason, chosen=chosen)


def _by_record(model: Model, known: Recorded) -> list[PlanRow]:
    weights = {weight.name: weight for weight in model.weights}
    gone = [name for name in known.pruned if name not in weights or not weights[name].uses]
    if gone:
        raise ModelError(
            f"the record in the model names '{gone[0]}', which is no weight of it; name a --pattern or --target"
        )
    return [_recorded(weight, known) for weight in model.weights]


def _pattern(text: str) -> Pattern:
    try:
        return patterns.parse(text)
    except OptionError as error:
        raise ModelError(f"the model records a pattern of a plug-in that is not installed: {error}") from error


def _recorded(weight: Weight, known: Recorded) -> PlanRow:
    if weight.name in known.pruned:
        text, drop = known.pruned[weight.name]
        return PlanRow(weight, _pattern(text), drop)
    reason, chosen = known.dense.get(weight.name, ("the record does not mention it", False))
    return PlanRow(weight, reason=reason or "left dense", chosen=chosen)
