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

from onnxsparse.errors import OptionError
from onnxsparse.graph.model import Model
from onnxsparse.passes.arriving import SecondOpinion
from onnxsparse.passes.describe import (
    compressed,
    dropped_elements,
    in_training,
    judged,
    next_step,
    of_one_run,
    plain_row,
    target_notes,
    totals_of,
    use_row,
    with_macs,
)
from onnxsparse.passes.expect import Expectation, expect
from onnxsparse.passes.levels import Held, hold
from onnxsparse.passes.matrices import count_zeros
from onnxsparse.passes.model_pass import Check
from onnxsparse.passes.names import NameFilter
from onnxsparse.passes.recorded import readable, recorded
from onnxsparse.passes.remarks import pays_off, unknown_sizes
from onnxsparse.passes.rule import Rule
from onnxsparse.passes.sides import set_sizes
from onnxsparse.passes.verify import Checked, UseChecked, ZeroCheck
from onnxsparse.report.rows import DENSE, Report, Row, Totals, UseRow

NOT_FOLDED = Report("fold", "", "", (), Totals())
UNCHECKED = "nothing was checked: the file records no plan; say what has to hold: --target, --pattern or --plan"


MASKED_STILL = (
    "the zeros are made by nodes of the graph: devices see none behind a multiplication; run `onnxsparse fold` first"
)


def held_to(model: Model, called: str, expected: Expectation, strict: bool = False, full: bool = False) -> Report:
    """The zeros of a model against what is expected of each weight."""
    opinion, device = SecondOpinion(model.evaluator, full), expected.rule.target
    checked = opinion.of(ZeroCheck(expected.weights, device).checked())
    knows = device is not None and expected.rule.knows_levels
    held = hold(model, checked, device, expected.rule.sparsity) if device is not None and knows else None
    report = _verified(called, model, expected.rule, expected.title, checked, strict, held)
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
    held: Held | None = None,
) -> Report:
    """The report of `verify`, with the verdict; `held` is what a device's levels found."""
    checked = held.checked if held else checked
    weights = [one.expected.weight for one in checked]
    rows, sized = with_macs([_checked_row(one) for one in checked], weights, model)
    remarks = [
        *of_one_run(model, rows),
        *unknown_sizes(model, rows, weights),
        *target_notes(rule, rows),
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
