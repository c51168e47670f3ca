"""Verifying a model, and what a folded one is held against before it gets its name.

1. The zeros of a model are held against a plan file, a rule, or its own record. What holds in a tensor has to hold in
   the numbers that its nodes get, too.
2. For a fold it is the rule or the plan file that the user named, otherwise the plan that the file records. What is
   checked is the result as it was written, by the rules of `verify`: a file that `fold` delivers is one that `verify`
   says holds.
3. A row says what became of its mask (folded, left) and, from the check, its pattern, uses, verdicts and places; one
   that does not hold is `violated`.
4. Where nobody says what has to hold, nothing is checked, and that is said; under `strict` it is a fault, and so is a
   mask that stays in the graph: a device sees no zeros behind a multiplication.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from onnxsparse import allocations, patterns
from onnxsparse.errors import ModelError, OptionError
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import FLOAT_KINDS
from onnxsparse.graph.weights import Weight
from onnxsparse.passes.device_levels import LevelCheck, check_level
from onnxsparse.passes.evaluated_weights import SecondOpinion
from onnxsparse.passes.integer_sides import with_integer_sides
from onnxsparse.passes.model_pass import Check
from onnxsparse.passes.pattern_check import Checked, UseChecked, ZeroCheck
from onnxsparse.patterns import Pattern
from onnxsparse.planning.macs import set_sizes
from onnxsparse.planning.names import NameFilter
from onnxsparse.planning.plan import PlanRow, make_plan
from onnxsparse.planning.plan_file import plan_from_file, read_plan
from onnxsparse.planning.recorded import PREFIX, Recorded, readable, recorded
from onnxsparse.planning.rows import (
    compressed,
    dropped_elements,
    in_training,
    judged,
    next_step,
    of_one_run,
    pays_off,
    plain_row,
    target_notes,
    totals_of,
    unknown_sizes,
    use_row,
    with_macs,
)
from onnxsparse.planning.rule import Rule
from onnxsparse.planning.stored_params import as_float32, count_zeros
from onnxsparse.report.rows import DENSE, Report, Row, Totals, UseRow

NOT_FOLDED = Report("fold", "", "", (), Totals())
UNCHECKED = "nothing was checked: the file records no plan; say what has to hold: --target, --pattern or --plan"


LINEAR = ("QuantizeLinear", "DequantizeLinear")


def damaged_scales(model: Model) -> tuple[str, ...]:
    """Scales by which no number is told from another: NaN, infinite, 0, or negative, which turns a layer around."""
    named = {node.input[1] for node in model.proto.graph.node if node.op_type in LINEAR and len(node.input) > 1}
    found = []
    for tensor in model.flow.stores.homes:
        if tensor.name in named and tensor.kind in FLOAT_KINDS:
            scales = as_float32(tensor)
            wrong = scales[~(np.isfinite(scales) & (scales > 0))]
            if wrong.size:
                many = f"{wrong.size} of {scales.size} scales in '{tensor.name}' are" if scales.size > 1 else ""
                found.append(f"{many or repr(tensor.name) + ' is a scale of'} {wrong[0]:g}; scales are above 0")
    return tuple(found)


MASKED_STILL = (
    "the zeros are made by nodes of the graph: devices see none behind a multiplication; run `onnxsparse fold` first"
)


def held_to(model: Model, called: str, expected: Expectation, strict: bool = False, full: bool = False) -> Report:
    """The zeros of a model against what is expected of each weight."""
    opinion, device = SecondOpinion(model.evaluator, full), expected.rule.target
    checked, sides = with_integer_sides(model, opinion.of(ZeroCheck(expected.weights, device).checked()), device)
    knows = device is not None and expected.rule.knows_levels
    held = check_level(model, checked, device, expected.rule.sparsity) if device is not None and knows else None
    report = _verified(called, model, expected.rule, expected.title, checked, strict, held, sides)
    return replace(report, sampled=opinion.sampled)


@dataclass(frozen=True)
class Verify(Check):
    """The zeros of a model, which reports call `called`, against a plan file, a rule, or its own record."""

    called: str
    rule: Rule
    plan: str | None = None
    strict: bool = False
    full: bool = False

    def call(self, model: Model) -> Report:
        damage = damaged_scales(model)
        if damage:
            rows = tuple(plain_row(weight, "unchecked") for weight in model.weights)
            totals, title = totals_of(rows, model, {"holds"}, sized=False), self.rule.text or "its own record"
            return Report("verify", self.called, title, rows, totals, ok=False, notes=damage, faults=damage)
        return held_to(model, self.called, expect(model, self.rule, self.plan), self.strict, self.full)


@dataclass(frozen=True)
class CheckFold(Check):
    """The report of a fold, `folded`, with what is found in the model that is to be delivered."""

    rule: Rule
    plan: str | None = None
    strict: bool = False
    full: bool = False
    dims: Mapping[str, int] = field(default_factory=dict)
    folded: Report = NOT_FOLDED

    @property
    def _named(self) -> bool:
        return self.rule.pattern is not None or self.plan is not None

    def demand(self, discard: bool) -> CheckFold:
        """Refuse what means nothing together."""
        beside = self.rule.sparsity is not None or self.rule.names != NameFilter() or bool(self.rule.allow)
        if discard and (self._named or beside or self.strict or self.full):
            raise OptionError(
                "--discard drops the masks and their zeros, so nothing can be checked; leave the rule out"
            )
        if beside and not self._named:
            raise OptionError("--sparsity and the names of weights belong to a rule; name a --pattern or --target, too")
        return self

    def after(self, folded: Report, written: Model) -> Report:
        """The report of a fold with what the check found in what was written."""
        return replace(self, folded=folded)(written)

    def call(self, model: Model) -> Report:
        report, known = self.folded, None if self._named else recorded(model)
        if not self._named and (known is None or not known.pruned):
            return _unchecked(report, self.strict)
        set_sizes(model, self.dims)
        found = Verify(report.output or report.model, self.rule, self.plan, self.strict, self.full)(model)
        rows = _merged(report.rows, found.rows)
        faults = [*found.faults, *(_masks_left(rows) if self.strict else [])]
        ok = found.ok and not faults
        holding = sum(row.status == "holds" for row in found.rows)
        counts = f"checked against {found.rule}: {holding} of {len(found.rows)} weights hold"
        notes = [*report.notes, *([counts] if ok else []), *found.notes, *([] if self.strict else _masks_left(rows))]
        notes += [fault for fault in faults if fault not in notes]
        totals = totals_of(rows, model, {"folded"}, found.totals.macs is not None)
        return replace(
            report,
            rule=found.rule,
            rows=tuple(rows),
            totals=totals,
            ok=ok,
            output=report.output if ok else "",
            notes=tuple(notes),
            next_step=found.next_step if ok else "",
            verdict=found.verdict,
            faults=tuple(faults),
            sampled=found.sampled,
        )


def _unchecked(report: Report, strict: bool) -> Report:
    notes, faults = (*report.notes, UNCHECKED), (UNCHECKED,) if strict else ()
    return replace(report, notes=notes, ok=not strict, faults=faults, output="" if strict else report.output)


def _masks_left(rows: Sequence[Row]) -> list[str]:
    left = [row.name for row in rows if row.status == "left" and row.masked]
    if not left:
        return []
    count = "1 mask stays" if len(left) == 1 else f"{len(left)} masks stay"
    return [f"{count} in the graph (the first: of '{left[0]}'): a device sees no zeros behind a multiplication"]


def _merged(folded: Sequence[Row], checked: Sequence[Row]) -> list[Row]:
    """What was found of each weight, under what became of its mask; a weight of only one of the two keeps its row."""
    found = {row.name: row for row in checked}
    rows = [_both(row, found.pop(row.name)) if row.name in found else row for row in folded]
    return rows + [row if row.status == "violated" else replace(row, status="left") for row in found.values()]


def _both(folded: Row, checked: Row) -> Row:
    if checked.status == "violated":
        return checked
    reasons, advice = [folded.reason], folded.advice
    if checked.status == "unchecked":
        reasons.append(f"not checked: {checked.reason}" if checked.reason else "not checked")
    elif checked.pattern != DENSE and not checked.masked:
        reasons = [checked.reason]
    return replace(
        checked, status=folded.status, reason="; ".join(filter(None, reasons)), advice=advice or checked.advice
    )


# -- the report of `verify`


def _verified(
    called: str,
    model: Model,
    rule: Rule,
    title: str,
    checked: Sequence[Checked],
    strict: bool,
    held: LevelCheck | None = None,
    sides: Sequence[str] = (),
) -> Report:
    """The report of `verify`, with the verdict; `held` is what a device's levels found, `sides` what integer kernels
    want."""
    checked = held.checked if held else checked
    weights = [one.expected.weight for one in checked]
    rows, sized = with_macs([_checked_row(one) for one in checked], weights, model)
    remarks = [
        *of_one_run(model, rows),
        *unknown_sizes(model, rows, weights),
        *target_notes(rule, rows),
        *sides,
        *(held.notes if held else ()),
        *in_training(model),
        *([MASKED_STILL] if model.flow.mask_sites else []),
    ]
    faults = list(held.faults if held else ())
    if all(row.status == "unchecked" for row in rows):
        faults.append("no weight was checked, so nothing is proven")
    left = [
        row.name
        for row, one in zip(rows, checked)
        if row.ragged or (row.status == "unchecked" and not one.expected.chosen)
    ]
    if strict and left:
        count = f"{len(left)} weights are" if len(left) > 1 else "1 weight is"
        faults.append(f"--strict: {count} not checked, or not whole (the first: '{left[0]}')")
    holds = any(row.status == "holds" for row in rows) and all(row.status != "violated" for row in rows)
    if not holds and rule.sparsity is not None and not rule.knows_levels and readable(model) is not None:
        remarks.append("the file records a level for each weight; leave --sparsity out to check those")
    ok = holds and not faults
    used = [one.expected.weight for one in checked if one.status == "holds"]
    step = next_step(rule, called, used) if ok else ""
    totals, notes = totals_of(rows, model, {"holds"}, sized), (*remarks, *faults)
    verdict = pays_off(rows, "holds", rule)
    return Report(
        "verify", called, title, tuple(rows), totals, ok, "", notes, step, verdict=verdict, faults=tuple(faults)
    )


def of_integers(report: Report, written: Model) -> Report:
    """The report of what was pruned in floats, with the types, the bytes and the device's word of what was written."""
    known = readable(written)
    try:
        rule = Rule.make(target=known.target or None) if known else Rule.make()
    except OptionError:  # of a plug-in that is not installed
        rule = Rule.make()
    pruned = {row.name: patterns.parse(row.pattern) for row in report.rows if row.pattern != DENSE}
    expected = [PlanRow(weight, pruned.get(weight.name)) for weight in written.weights]
    checked, sides = with_integer_sides(written, ZeroCheck(expected, rule.target).checked(), rule.target)
    found = {row.name: row for row in map(_checked_row, checked)}
    rows = [_as_written(row, found.get(row.name, row)) for row in report.rows]
    stale = target_notes(rule, report.rows)
    notes = [*(note for note in report.notes if note not in stale), *target_notes(rule, rows), *sides]
    used = [one.expected.weight for one in checked if one.expected.pattern is not None]
    return replace(
        report,
        rows=tuple(rows),
        totals=totals_of(rows, written, {"pruned"}, report.totals.macs is not None),
        notes=tuple(notes),
        next_step=next_step(rule, report.output or "OUT", used) if used else "",
        verdict=pays_off(rows, "pruned", rule),
    )


def _as_written(row: Row, found: Row) -> Row:
    return replace(
        row,
        dtype=found.dtype,
        storage=found.storage,
        bytes_dense=found.bytes_dense,
        bytes_sparse=found.bytes_sparse,
        uses=found.uses,
    )


def _checked_row(checked: Checked) -> Row:
    """One row of `verify`."""
    expected = checked.expected
    plain = plain_row(expected.weight, checked.status)
    plain = replace(plain, target_density=checked.target_density, wasted=checked.wasted)
    if expected.pattern is None:
        zeros = count_zeros(expected.weight)
        reason = checked.fault or expected.reason
        return replace(plain, zeros=zeros, reason=reason, advice=expected.advice, words=expected.words)
    row = replace(
        plain,
        pattern=expected.pattern.text,
        zeros=checked.zeros,
        dropped=dropped_elements(expected.pattern, expected.weight.uses[0].shape4, expected.drop),
        ragged=expected.pattern.ragged(expected.weight.uses[0].shape4),
        uses=tuple(_checked_use(use) for use in checked.uses),
        violations=sum(use.violations for use in checked.uses),
        places=next((use.places for use in checked.uses if use.places), ()),
        reason=_why_violated(checked),
        advice=_mend(checked),
    )
    return compressed(row, expected.pattern, checked.zeros or 0)


def _checked_use(checked: UseChecked) -> UseRow:
    row = replace(use_row(checked.use), verdict="violated" if checked.violations else "holds")
    return judged(row, checked.verdict)


def _why_violated(checked: Checked) -> str:
    pattern = checked.expected.pattern
    bad = next((use for use in checked.uses if use.violations), None)
    if bad is None:
        return checked.missing or checked.fault or checked.doubt
    if pattern is not None and not pattern.takes_sparsity:
        places = ", ".join(str(list(place)) for place in bad.places[:3])
        return f"{bad.violations} groups hold more than {pattern.text.partition(':')[0]} non-zeros, first at {places}"
    return f"{bad.violations} more zeros of {pattern.text if pattern else ''} needed"


def _mend(checked: Checked) -> str:
    if checked.fault:
        return "plan it again for the device, or another level"
    if checked.doubt:
        return "--exclude it, or simplify the nodes between its tensor and that input"
    if checked.missing:
        return "leave it dense, or choose another profile"
    return "prune it, or --exclude it" if checked.status == "violated" else ""


# -- What a verification expects of every weight: from a plan file, from a rule, or from the model's own record.
#
# 1. A plan file or the record says it for each weight by name.
# 2. A rule expects it of every weight that it would prune; weights recorded as left dense on purpose are named so.
# 3. A pattern with a level takes the level from the rule, else from the record, weight by weight.
# 4. A depthwise layer that is recorded as pruned is checked like the others, whether it was asked for by --allow or
#    pruned before depthwise layers stayed dense by default.


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
            f"the model records no plan{'' if _was_quantized(model) else UNRECORDED}; "
            "say what to check: --pattern, --target or --plan"
        )
    return Expectation(tuple(_by_record(model, known)), Rule.make(target=known.target or None), "its own record")


UNRECORDED = " (onnxsparse did not write it, or a tool such as onnx_graphsurgeon dropped its metadata)"


def _was_quantized(model: Model) -> bool:
    """Whether a file has been through `quantize`: metadata that have that record have lost no other."""
    return PREFIX + "quantization" in model.metadata


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
        return replace(entry, drop=drop) if _is_said(text, entry) else _without(entry, "no level is recorded for it")
    return entry


def _is_said(text: str, entry: PlanRow) -> bool:
    """Whether a recorded pattern is the one that is expected; tiles are blocks where no edge cuts one."""
    assert entry.pattern is not None
    if {text.partition(":")[0], entry.pattern.text.partition(":")[0]} != {"block", "tile"}:
        return text == entry.pattern.text
    _, outputs, inputs, _ = entry.weight.uses[0].shape4
    rows, _, columns = text.partition(":")[2].partition("x")
    same = text.partition(":")[2] == entry.pattern.text.partition(":")[2]
    return same and outputs % int(rows) == 0 and inputs % int(columns) == 0


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
