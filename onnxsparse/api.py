"""The commands as functions: a path or a ModelProto in, a `Result` out. The command line is a thin layer over these.

The argument is never changed. With `output` the model is written there, all or nothing; without, `Result.model` holds
it in memory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Union

import onnx
from onnx import ModelProto

from onnxsparse.errors import OptionError
from onnxsparse.graph.model import Model, Source
from onnxsparse.graph.output import Staged, check_target, write_text
from onnxsparse.graph.storage import DataFolder
from onnxsparse.graph.weights import Weight
from onnxsparse.passes import outputs
from onnxsparse.passes.describe import checked_row, plain_row, planned_row, totals_of, with_macs
from onnxsparse.passes.expect import expect
from onnxsparse.passes.fold_masks import Folded, FoldMasks
from onnxsparse.passes.insert_masks import InsertMasks, maskable
from onnxsparse.passes.inspect import count_zeros
from onnxsparse.passes.matrices import Matrix
from onnxsparse.passes.plan import Plan, names_of
from onnxsparse.passes.planfile import write_plan
from onnxsparse.passes.prove import proved
from onnxsparse.passes.prune import Prune
from onnxsparse.passes.record import MASKED, record, settle
from onnxsparse.passes.request import Masks, Names, demand_whole, listed, planned
from onnxsparse.passes.rule import Rule
from onnxsparse.passes.verify import Verify
from onnxsparse.passes.words import words_of
from onnxsparse.report.rows import DENSE, Report, Row, Totals

Path = Union[str, "os.PathLike[str]"]


@dataclass
class Result:
    """The report of a command, and the model it made."""

    report: Report
    path: str | None = None
    proto: ModelProto | None = field(default=None, repr=False)

    @property
    def model(self) -> ModelProto | None:
        """The model as a ModelProto; read from the output file the first time when there is one."""
        if self.proto is None and self.path is not None:
            self.proto = onnx.load(self.path)
        return self.proto


def load(source: Source) -> Model:
    """Open a model and find its weights, without reading them."""
    return _found(Model.open(source))


def _look(source: Source) -> Model:
    """The same to read only: a ModelProto of the caller's is not copied."""
    return _found(Model.over(source) if isinstance(source, ModelProto) else Model.open(source))


def _found(model: Model) -> Model:
    _ = model.weights
    return model


def inspect(source: Source) -> Result:
    """Every weight of a model: where it is, how each use reads it, how many zeros it has, and what holds it back."""
    model = _look(source)
    names = names_of(model.weights)
    rows = [_inspected(weight, names[id(weight)]) for weight in model.weights]
    rows, exact = with_macs(rows, model.weights, model)
    notes = (
        () if exact else ("some activation shapes are not fixed; multiply-accumulates count unknown dimensions as 1",)
    )
    report = Report("inspect", _called(source), "", tuple(rows), totals_of(rows, model, {"prunable"}), notes=notes)
    return Result(report, proto=None)


def _inspected(weight: Weight, name: str) -> Row:
    row = plain_row(name, weight, DENSE if weight.refusal else "prunable")
    words = words_of(Matrix(name, weight, weight.uses[0]), None) if weight.uses and not weight.refusal else {}
    text = weight.refusal or ", ".join(f"{word} ({seen})" for word, seen in words.items())
    masked = "a mask is applied to it in the graph" if any(use.masks for use in weight.uses) else ""
    advice = f"stays dense by default; --allow {','.join(words)}" if words else ""
    return replace(row, zeros=count_zeros(weight), reason=text or masked, advice=advice, words=tuple(words))


def plan(
    source: Source,
    *,
    output: Path | None = None,
    overwrite: bool = False,
    plan: Path | None = None,
    masks: Masks | None = None,
    **options: Any,
) -> Result:
    """What `prune` with the same options would do; with `output` written as YAML to read, edit and pass to `plan=`."""
    model = _look(source)
    made, notes = planned(model, None if plan is None else os.fspath(plan), masks, options)
    rows, exact = _rows(made, model, "planned")
    report = Report(
        "plan",
        _called(source),
        _ruled(made),
        tuple(rows),
        totals_of(rows, model, {"planned"}),
        notes=(*notes, *_guessed(exact)),
    )
    if output is None:
        return Result(report)
    target = os.fspath(output)
    write_text(target, write_plan(made, model), overwrite)
    return Result(replace(report, output=target), target)


def prune(
    source: Source,
    *,
    output: Path | None = None,
    plan: Path | None = None,
    masks: Masks | None = None,
    strict: bool = False,
    overwrite: bool = False,
    **options: Any,
) -> Result:
    """Write zeros into the weights by a pattern or for a target, and prove them before the file gets its name."""
    target = _target(output, source, overwrite)
    model = load(source)
    made, notes = planned(model, None if plan is None else os.fspath(plan), masks, options)
    demand_whole(made, strict)
    rows, exact = _rows(made, model, "pruned")
    Prune(made)()
    record(model, made)
    report = _pruned_report("prune", source, made, rows, model, (*notes, *_guessed(exact)), target)
    return _finish(model, report, target, overwrite, made)


def insert_masks(
    source: Source,
    *,
    output: Path | None = None,
    plan: Path | None = None,
    masks: Masks | None = None,
    strict: bool = False,
    overwrite: bool = False,
    form: str = "mul",
    **options: Any,
) -> Result:
    """Put a mask-multiply before every weight that the same options would prune; the weights stay as they are."""
    target = _target(output, source, overwrite)
    model = load(source)
    made, notes = planned(model, None if plan is None else os.fspath(plan), masks, options)
    made = maskable(model, made)
    demand_whole(made, strict)
    rows, exact = _rows(made, model, "masked")
    record(model, made, MASKED)
    InsertMasks(model, made, form)()
    report = _pruned_report("mask", source, made, rows, model, (*notes, *_guessed(exact)), target)
    return _finish(model, report, target, overwrite)


def fold_masks(source: Source, *, output: Path | None = None, discard: bool = False, overwrite: bool = False) -> Result:
    """Fold every mask in the graph into its weight and remove the nodes; with `discard` the masks are dropped."""
    target = _target(output, source, overwrite)
    model = load(source)
    names, before = names_of(model.weights), model.weights
    folded = FoldMasks(model, discard)()
    rows = [_folded(weight, names[id(weight)], folded, discard) for weight in before]
    rows += [
        _folded(entry.weight, entry.weight.name, folded, discard) for entry in folded if id(entry.weight) not in names
    ]
    if discard:
        model.drop_metadata(MASKED)
    elif all(not entry.reason for entry in folded):
        settle(model)
    notes = () if folded else ("the graph holds no masks; the file is a copy",)
    title = "discard" if discard else "fold"
    report = Report(
        "fold",
        _called(source),
        title,
        tuple(rows),
        totals_of(rows, model, {"folded", "discarded"}),
        notes=notes,
        output=target or "",
    )
    return _finish(model, report, target, overwrite)


def _folded(weight: Weight, name: str, folded: Sequence[Folded], discard: bool) -> Row:
    entry = next((entry for entry in folded if entry.weight is weight), None)
    if entry is None:
        return replace(plain_row(name, weight, "left"), reason="no mask is applied to it")
    if entry.reason:
        return replace(plain_row(name, weight, "left"), reason=entry.reason, advice="make every reader see one mask")
    row = plain_row(name, weight, "discarded" if discard else "folded")
    return row if discard else replace(row, zeros=entry.zeros)


def verify(
    source: Source,
    *,
    pattern: str | None = None,
    target: str | None = None,
    sparsity: float | str | None = None,
    plan: Path | None = None,
    include: Names = (),
    exclude: Names = (),
    allow: Names = (),
    strict: bool = False,
) -> Result:
    """Check the zeros against a plan file, a pattern, a device, or what the model's metadata records."""
    model = _look(source)
    rule = Rule.make(pattern, target, sparsity, include=listed(include), exclude=listed(exclude), allow=listed(allow))
    expected = expect(model, rule, None if plan is None else os.fspath(plan))
    checked = Verify(list(expected.weights), expected.rule.target)()
    rows, exact = with_macs([checked_row(entry) for entry in checked], [one.weight for one in expected.weights], model)
    holds = sum(row.status == "holds" for row in rows) > 0 and all(row.status != "violated" for row in rows)
    open_rows = [
        row
        for entry, row in zip(checked, rows)
        if row.ragged or (row.status == "unchecked" and not entry.expected.chosen)
    ]
    notes = [*_guessed(exact), *_device_notes(expected.rule, rows)]
    if all(row.status == "unchecked" for row in rows):
        notes.append("no weight was checked, so nothing is proven")
    if strict and open_rows:
        notes.append(
            f"--strict: {len(open_rows)} weights are not checked, or not whole (the first: '{open_rows[0].name}')"
        )
    ok = holds and not (strict and open_rows)
    step = _next(expected.rule, _called(source)) if ok else ""
    totals = totals_of(rows, model, {"holds"})
    return Result(Report("verify", _called(source), expected.title, tuple(rows), totals, ok, "", tuple(notes), step))


def compare(
    dense: Source,
    sparse: Source,
    *,
    data: Path | None = None,
    samples: int | None = None,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
) -> Result:
    """Run both models on the same inputs (random ones when there is no data) and measure how far all outputs are."""
    if samples is not None and samples < 1:
        raise OptionError(f"samples is a number from 1, not {samples}")
    first, second = outputs.Session(_runnable(dense)), outputs.Session(_runnable(sparse))
    if data is not None:
        feeds = outputs.file_feeds(first, os.fspath(data), samples)
    else:
        feeds = outputs.random_feeds(first, samples or 8, seed, dict(dims or {}))
    distances = outputs.compare_outputs(first, second, feeds)
    title = f"data {os.fspath(data)}" if data is not None else f"{samples or 8} random samples, seed {seed}"
    details: dict[str, object] = {"outputs": [vars(distance) for distance in distances]}
    report = Report("compare", _called(dense), title, (), Totals(), output=_called(sparse), details=details)
    return Result(report)


def _runnable(source: Source) -> str | ModelProto:
    """The path, or the model; a file that is not a model is said in our own words first."""
    Model.open(source)
    return source if isinstance(source, ModelProto) else os.fspath(source)


# -- what the commands share


def _called(source: Source) -> str:
    return "(in memory)" if isinstance(source, ModelProto) else os.fspath(source)


def _target(output: Path | None, source: Source, overwrite: bool) -> str | None:
    if output is None:
        return None
    target = os.fspath(output)
    same = not isinstance(source, ModelProto) and os.path.realpath(target) == os.path.realpath(os.fspath(source))
    if same and not overwrite:
        raise OptionError(f"{target} is the model itself; pass --overwrite to replace it")
    check_target(target, overwrite)
    return target


def _rows(made: Plan, model: Model, status: str) -> tuple[list[Row], bool]:
    return with_macs([planned_row(row, status) for row in made.rows], [row.weight for row in made.rows], model)


def _guessed(exact: bool) -> tuple[str, ...]:
    return (
        () if exact else ("some activation shapes are not fixed; multiply-accumulates count unknown dimensions as 1",)
    )


def _ruled(made: Plan) -> str:
    return made.rule.text if made.rule.pattern else "the plan"


def _pruned_report(
    command: str, source: Source, made: Plan, rows: list[Row], model: Model, notes: Sequence[str], target: str | None
) -> Report:
    done = {"prune": "pruned", "mask": "masked"}[command]
    extra = [*_device_notes(made.rule, [row for row in rows if row.status == done])]
    if not made.planned:
        extra.append("nothing was pruned: every weight stays dense, see the reasons")
    step = _next(made.rule, target or "OUT") if command == "prune" and made.planned else ""
    return Report(
        command,
        _called(source),
        _ruled(made),
        tuple(rows),
        totals_of(rows, model, {done}),
        notes=(*notes, *extra),
        output=target or "",
        next_step=step,
    )


def _device_notes(rule: Rule, rows: Sequence[Row]) -> list[str]:
    note = rule.target.note({row.dtype for row in rows if row.pattern != DENSE}) if rule.target else ""
    return [note] if note else []


def _next(rule: Rule, path: str) -> str:
    return rule.target.next_step(path) if rule.target else ""


def _finish(model: Model, report: Report, target: str | None, overwrite: bool, made: Plan | None = None) -> Result:
    """Hand over the model, or write it; what was pruned is read again and checked before the file gets its name."""
    if target is None:
        proto = model.take_proto()
        return Result(_with_proof(report, Model.over(proto), made), proto=proto)
    with Staged() as staged:
        model.save(target, overwrite, staged)
        folder = DataFolder(os.path.dirname(os.path.abspath(target)), staged.waiting)
        written = Model.open(staged.waiting[os.path.realpath(target)], folder)
        report = _with_proof(report, written, made)
        staged.commit()
    return Result(report, target)


def _with_proof(report: Report, written: Model, made: Plan | None) -> Report:
    if made is None or not made.planned:
        return report
    rows = proved(report.rows, written, made)
    return replace(report, rows=tuple(rows), totals=totals_of(rows, written, {"pruned"}))


__all__ = ["Result", "compare", "fold_masks", "insert_masks", "inspect", "load", "plan", "prune", "verify"]
