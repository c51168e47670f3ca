"""What a folded model is held against before it gets its name.

1. The rule or the plan file that the user named, otherwise the plan that the file records. What is checked is the
   result as it was written, by the rules of `verify`: a file that `fold` delivers is one that `verify` says holds.
2. A row says what became of its mask (folded, left) and, from the check, its pattern, uses, verdicts and places; one
   that does not hold is `violated`.
3. Where nobody says what has to hold, nothing is checked, and that is said; under `strict` it is a fault, and so is a
   mask that stays in the graph: a device sees no zeros behind a multiplication.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from onnxsparse.errors import OptionError
from onnxsparse.graph.model import Model
from onnxsparse.passes.arriving import SecondOpinion
from onnxsparse.passes.describe import totals_of, verified_report
from onnxsparse.passes.expect import Expectation, expect
from onnxsparse.passes.levels import hold
from onnxsparse.passes.names import NameFilter
from onnxsparse.passes.recorded import recorded
from onnxsparse.passes.rule import Rule
from onnxsparse.passes.sides import set_sizes
from onnxsparse.passes.verify import Verify
from onnxsparse.report.rows import DENSE, Report, Row

UNCHECKED = "nothing was checked: the file records no plan; say what has to hold: --target, --pattern or --plan"


def verified(model: Model, called: str, rule: Rule, plan: str | None, strict: bool, full: bool = False) -> Report:
    """The zeros of a model against a plan file, a rule, or its own record."""
    return held_to(model, called, expect(model, rule, plan), strict, full)


def held_to(model: Model, called: str, expected: Expectation, strict: bool = False, full: bool = False) -> Report:
    """The zeros of a model against what is expected of each weight."""
    opinion, device = SecondOpinion(model.evaluator, full), expected.rule.target
    checked = opinion.of(Verify(list(expected.weights), device)())
    knows = device is not None and expected.rule.knows_levels
    held = hold(model, checked, device, expected.rule.sparsity) if device is not None and knows else None
    report = verified_report(called, model, expected.rule, expected.title, checked, strict, held)
    return replace(report, sampled=opinion.sampled)


@dataclass(frozen=True)
class FoldCheck:
    """What was asked of the folded model."""

    rule: Rule
    plan: str | None = None
    strict: bool = False
    full: bool = False
    dims: Mapping[str, int] = field(default_factory=dict)

    @property
    def _named(self) -> bool:
        return self.rule.pattern is not None or self.plan is not None

    def demand(self, discard: bool) -> FoldCheck:
        """Refuse what means nothing together."""
        beside = self.rule.sparsity is not None or self.rule.names != NameFilter() or bool(self.rule.allow)
        if discard and (self._named or beside or self.strict or self.full):
            raise OptionError(
                "--discard drops the masks and their zeros, so nothing can be checked; leave the rule out"
            )
        if beside and not self._named:
            raise OptionError("--sparsity and the names of weights belong to a rule; name a --pattern or --target, too")
        return self

    def __call__(self, report: Report, written: Model) -> Report:
        """The report of `fold` with what the check found in the model that is to be delivered."""
        known = None if self._named else recorded(written)
        if not self._named and (known is None or not known.pruned):
            return _unchecked(report, self.strict)
        set_sizes(written, self.dims)
        found = verified(written, report.output or report.model, self.rule, self.plan, self.strict, self.full)
        rows = _merged(report.rows, found.rows)
        faults = [*found.faults, *(_masks_left(rows) if self.strict else [])]
        ok = found.ok and not faults
        holding = sum(row.status == "holds" for row in found.rows)
        counts = f"checked against {found.rule}: {holding} of {len(found.rows)} weights hold"
        notes = [*report.notes, *([counts] if ok else []), *found.notes, *([] if self.strict else _masks_left(rows))]
        notes += [fault for fault in faults if fault not in notes]
        totals = totals_of(rows, written, {"folded"}, found.totals.macs is not None)
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
