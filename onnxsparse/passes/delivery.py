"""Delivery: trained weights into the file's own graph, their record, the proof of what was written, then its name.

1. Trained numbers go into the stored tensors that they came from; planned weights that no engine trained get the zeros
   of the plan. The plan is recorded in the metadata.
2. The model is written beside its place, with the texts that belong to it, opened again, and held to the plan. Where
   the proof fails nothing has its name; then all files get theirs, or none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from onnx import ModelProto

from onnxsparse.calibration.new_biases import NewBias, put_biases
from onnxsparse.errors import OptionError
from onnxsparse.files import Staged, check_target, put
from onnxsparse.graph.model import Model, Source
from onnxsparse.graph.storage import DataFolder
from onnxsparse.graph.weights import Weight
from onnxsparse.math.values import Array
from onnxsparse.options import Path
from onnxsparse.passes.proof import Before, proved
from onnxsparse.passes.prune import Prune
from onnxsparse.patterns import Pattern
from onnxsparse.planning.plan import Plan, PlanRow
from onnxsparse.planning.record import record
from onnxsparse.planning.recorded import readable
from onnxsparse.planning.request import path_of
from onnxsparse.planning.rows import planned_report, totals_of
from onnxsparse.planning.stored_params import StoredParam, weight_param
from onnxsparse.planning.trainable import send_back
from onnxsparse.report.rows import Report

Check = Callable[[Report, Model], Report]
_DONE = {
    "prune": {"pruned"},
    "finetune": {"pruned"},
    "fold": {"folded", "discarded"},
    "permute": {"permuted"},
    "quantize": {"quantized"},
}
"""Which rows of a report count as done."""


class Delivered(NamedTuple):
    """The report of what was made, and where it is: a path, or a model in memory."""

    report: Report
    path: str | None = None
    proto: ModelProto | None = None


def called(source: Source) -> str:
    """What reports call a model that was given."""
    return "(in memory)" if isinstance(source, ModelProto) else os.fspath(source)


def target_of(output: Path | None, source: Source, overwrite: bool) -> str | None:
    if output is None:
        return None
    target = path_of(output, "output")
    if target == "-":
        raise OptionError("a model cannot be written to standard output; name a file")
    same = not isinstance(source, ModelProto) and os.path.realpath(target) == os.path.realpath(os.fspath(source))
    if same and not overwrite:
        raise OptionError(f"{target} is the model itself; pass --overwrite to replace it")
    check_target(target, overwrite)
    return target


def demand_unread(target: str | None, model: Model, *others: Any) -> None:
    """A result takes the place of nothing that is read for it, but of the model itself."""
    read = [one for one in model.inputs if one != model.path]
    read += [os.fspath(one) for one in others if isinstance(one, (str, os.PathLike))]
    if target is not None and os.path.realpath(target) in map(os.path.realpath, read):
        raise OptionError(f"{target} is a file that this command reads; choose another name")


def deliver(
    model: Model,
    plan: Plan,
    trained: Mapping[str, Array],
    tags: Mapping[str, StoredParam],
    target: str | None,
    overwrite: bool = True,
    *,
    name: str = "",
    notes: Sequence[str] = (),
    details: Mapping[str, Any] | None = None,
    beside: Mapping[str, str] | None = None,
    note: Callable[[Iterable[str]], None] | None = None,
    check: Check | None = None,
    change: Callable[[ModelProto], Sequence[str]] | None = None,
    command: str = "finetune",
    biases: Sequence[NewBias] = (),
) -> Delivered:
    """Write a model with trained numbers, by tag, and the zeros of a plan; the rest is as in `finish`.

    `biases` are new ones, for layers that have none.
    `details` make it the report of a `command`. `change` is what is done to the whole model in the end, in place; it
    returns what has to be said of it. What it made smaller has the zeros that are left.
    """
    Prune(Plan(tuple(untrained(plan, trained, tags)), plan.rule))(model)
    send_back(trained, tags)
    if not plan.holds or (plan.planned and readable(model) is None):  # what is recorded of zeros that stay stays, too
        record(model, plan)
    put_biases(model.proto, biases)
    if change is not None:
        proto = model.copy_proto()
        notes = [*notes, *change(proto)]
        model, made = Model.over(proto), plan
        plan = in_model(model, plan)
        if any(row.weight.shape != one.weight.shape for row, one in zip(plan.rows, made.rows)):
            record(model, plan)
    report = planned_report("prune", name, plan, model, notes, target, change is None)
    if details is not None:
        report = replace(report, command=command, details=dict(details))
    return finish(model, report, target, overwrite, plan, beside, note, check=check)


def in_model(model: Model, plan: Plan) -> Plan:
    """The same plan with the weights as they are stored in a model."""
    stored = {weight.name: weight for weight in model.weights}
    return replace(plan, rows=tuple(_as_stored(row, stored.get(row.name, row.weight)) for row in plan.rows))


def _as_stored(row: PlanRow, weight: Weight) -> PlanRow:
    """The row of a weight that may have become smaller, with the zeros that are left in it."""
    if weight.shape == row.weight.shape or not weight.uses:
        return replace(row, weight=weight)
    drop = _zero_units(row.pattern, weight) if row.pattern is not None else 0
    reason = "; ".join(filter(None, [row.reason, _sizes(row.weight.uses[0].shape4, weight.uses[0].shape4)]))
    return replace(row, weight=weight, drop=drop, reason=reason, keep=None, cut=None)


def _zero_units(pattern: Pattern, weight: Weight) -> int:
    zero = weight_param(weight).whole().is_zero()
    units = pattern.units(zero.shape) if pattern.takes_sparsity else 0
    return units - pattern.violations(zero, units).count


def _sizes(before: tuple[int, ...], after: tuple[int, ...]) -> str:
    pairs = ("filters", before[0] * before[1], after[0] * after[1]), ("inputs", before[2], after[2])
    return ", ".join(f"{what} {old} -> {new}" for what, old, new in pairs if old != new)


def untrained(plan: Plan, trained: Iterable[str], tags: Mapping[str, StoredParam]) -> list[PlanRow]:
    """The planned weights of which no engine gives numbers; `trained` are tags."""
    known = {tags[tag].tensor for tag in trained}
    return [row for row in plan.planned if row.weight.tensor not in known]


def finish(
    model: Model,
    report: Report,
    target: str | None,
    overwrite: bool,
    made: Plan | None = None,
    beside: Mapping[str, str] | None = None,
    note: Callable[[Iterable[str]], None] | None = None,
    before: Before | None = None,
    check: Check | None = None,
) -> Delivered:
    """Hand over the model, or write it; what was pruned is read again and checked before the file gets its name.

    Texts that belong `beside` it get their names just before it does: all of them or none. `note` is told the files
    before they have their names. What `check` finds wrong with the result is reported, and there is no result.
    """
    if before is not None:
        before.hold()
    if target is None:
        proto = model.take_proto()
        report = _counted(report, Model.over(proto), made, before, check)
        return Delivered(report, proto=proto if report.ok else None)
    with Staged(overwrite) as staged:
        for path, text in (beside or {}).items():
            with staged.create(path) as file:
                put(file, text.encode("utf-8", "backslashreplace"))
        left = model.save(target, overwrite, staged)
        folder = DataFolder(os.path.dirname(os.path.realpath(target)), staged.waiting)
        written = Model.open(staged.waiting[os.path.realpath(target)], folder)
        report = _counted(report, written, made, before, check)
        if not report.ok:
            return Delivered(report)
        if note is not None:
            note(staged.waiting.values())
        staged.commit()
    return Delivered(replace(report, notes=(*report.notes, *left)), target)


def _counted(
    report: Report,
    written: Model,
    made: Plan | None,
    before: Before | None,
    check: Check | None,
) -> Report:
    """The report with the zeros that are in the written model, proven where a plan promises them."""
    rows = proved(report.rows, written, made.planned if made else [], before, report.command == "mask")
    if report.command == "mask":
        return report  # its weights are as they were
    done = _DONE[report.command]
    totals = totals_of(rows, written, done, report.totals.macs is not None)
    report = replace(report, rows=tuple(rows), totals=totals)
    return check(report, written) if check else report


__all__ = ["Check", "Delivered", "called", "deliver", "demand_unread", "finish", "in_model", "target_of", "untrained"]
