"""Analysis by samples: what zeros cost the outputs, weight by weight and level by level, and where to spend them.

1. The curve of a layer says how far the outputs move when it alone loses a share of its weights and the others are
   refitted; where there are labels, or arrays to measure on, the figures are measured, too.
2. Beside the levels stands what a pattern N:M costs each weight that it fits: 2:4, or the one that is asked for.
3. Whole levels are shared out by these curves, and by the allocations that know no samples; what each costs is the sum
   over the curves.
Nothing is written, and the model stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from onnxsparse import allocations, patterns, progress
from onnxsparse.allocations.curves import predicted
from onnxsparse.calibration.layers import CalibratedLayer
from onnxsparse.data.images import as_images
from onnxsparse.graph.model import Model
from onnxsparse.options import CalibrationOptions, SparsityOptions, options_of
from onnxsparse.passes.calibrate import Calibration, Numbered
from onnxsparse.passes.calibrated_pruning import Request, Run, calibration_run
from onnxsparse.passes.calibration_asked import SENSITIVITY, Asked
from onnxsparse.passes.loss_budget import Measuring, Wanted
from onnxsparse.patterns.nm import NM, NOfM
from onnxsparse.planning.plan import Plan, PlanRow, does_not_fit, make_plan
from onnxsparse.planning.rows import plain_row, totals_of, with_macs
from onnxsparse.planning.trainable import send_back
from onnxsparse.report.rows import DENSE, Report, Row

LEVELS, POINTS = (0.5, 0.7, 0.8, 0.9), (0.5, 0.7, 0.8, 0.9, 0.95)
"""The levels of whole models that are shared out, and those of single weights."""
LEVEL = LEVELS[0]
OTHERS = ("erk", "global", "uniform")
USUAL = NM(2, 4)
"""The pattern N:M that is looked at where none is asked for."""


def patterns_of(text: str | None) -> tuple[str, NOfM]:
    """The pattern of the levels, and the N:M beside them."""
    found = patterns.parse(text or "unstructured")
    return ("unstructured", found) if isinstance(found, NOfM) else (found.text, USUAL)


def analysis_request(zeros: SparsityOptions, given: Mapping[str, Any]) -> Request:
    """What the options of the command ask for."""
    known = {name: value for name, value in given.items() if name in options_of(CalibrationOptions)}
    options = CalibrationOptions(**{**known, "score": None, "allocation": None})
    images = options.resize, options.mean, options.std, options.layout
    data, eval_data = as_images([options.data, options.eval_data], *images)
    words = {name: given[name] for name in ("samples", "seed", "sensitivity") if given[name] is not None}
    asked, metrics = Asked(data, engine=options.engine, **words), options.metrics
    chosen = [metrics] if isinstance(metrics, str) or callable(metrics) else list(metrics or ())
    wanted = Wanted(eval_data, options.labels, chosen)
    return Request(zeros, asked, options, wanted, by_labels=eval_data is None)


def analyzed(model: Model, made: Plan, request: Request, called: str, beside: NOfM = USUAL) -> Report:
    """The report on every weight that a plan would prune; `beside` is looked at beside the levels."""
    with calibration_run(model, made, request) as run:
        weights = _weights(model, run, beside)
        spent = [_spent(model, run, level) for level in LEVELS]
        asked, measured = run.asked, run.measuring
        known = {"sensitivity": asked.sensitivity, "engine": run.calibration.sensitivity.engine}
        facts = {**known, "samples": run.calibration.samples.count, "seed": asked.seed}
        notes = (*run.remarks(), *run.calibration.sensitivity.notes)
        reasons = run.calibration.found.reasons
    details = {"weights": weights, "levels": spent, **{name: value for name, value in facts.items() if value != ""}}
    rows = [_row(plain_row(one.weight, "analyzed"), one.reason, one.pattern is None, reasons) for one in made.rows]
    rows, sized = with_macs(rows, [one.weight for one in made.rows], model)
    totals = totals_of(rows, model, {"analyzed"}, sized)
    figures: dict[str, Any] = {}
    if measured is not None:
        figures = {"measured_on": measured.on, "measured_samples": measured.count}
        figures["metrics_dense"] = measured.figures.dense
    title = f"{made.rule.pattern.text if made.rule.pattern else ''}, by {facts['samples']} samples"
    return Report(
        "analyze", called, title, tuple(rows), totals, notes=notes, details={"analysis": details, **figures}
    )  # fmt: skip


def _row(row: Row, reason: str, dense: bool, reasons: Mapping[str, str]) -> Row:
    if dense:
        return replace(row, status=DENSE, reason=reason)
    why = reasons.get(row.name)
    return replace(row, reason=f"not calibrated: {why}") if why else row


def _weights(model: Model, run: Run, beside: NOfM) -> list[dict[str, Any]]:
    """A point for each level of each layer, and one for the pattern beside them."""
    calibration, measured = run.calibration, run.measuring
    points: dict[str, list[dict[str, Any]]] = {}
    for layer, curve in zip(calibration.found.layers, calibration.curves):
        errors = curve.at(np.array([1 - level for level in POINTS]))
        points[layer.name] = [
            {"sparsity": level, "distance": float(np.sqrt(max(error, 0.0)))} for level, error in zip(POINTS, errors)
        ]
    fixed = _under(model, run, beside)
    if measured is not None:
        count = progress.Counter("measure", len(points))
        for layer, found in calibration.tried([1 - level for level in POINTS]):
            for point, numbers in zip(points[layer.name], found):
                point["metrics"] = _figures(model, numbers, measured)
            count.add(1)
    sizes = {weight.name: weight.tensor.size for weight in model.weights}
    return [
        {"name": name, "layer": layer.name, "size": sizes[name], "points": points[layer.name], "patterns": [point]}
        for layer, point in zip(calibration.found.layers, fixed)
        for name in calibration.weights(layer)
    ]


def _under(model: Model, run: Run, pattern: NOfM) -> list[dict[str, Any]]:
    """What a pattern costs each layer, or why it does not fit."""
    layers, measured = run.calibration.found.layers, run.measuring
    why = {layer: _misfit(layer, pattern) for layer in layers}
    points: dict[CalibratedLayer, dict[str, Any]] = {layer: {"reason": why[layer]} for layer in layers if why[layer]}
    for layer, cost, numbers in run.calibration.under(pattern, [layer for layer in layers if not why[layer]]):
        points[layer] = {"distance": float(np.sqrt(max(cost, 0.0)))}
        if measured is not None:
            points[layer]["metrics"] = _figures(model, numbers, measured)
    return [{"pattern": pattern.text, **points[layer]} for layer in layers]


def _misfit(layer: CalibratedLayer, pattern: NOfM) -> str:
    found = (does_not_fit(one.weight, pattern) for one in layer.parts if one.row)
    return next((reason.text for reason in found if reason), "")


def _figures(model: Model, found: Numbered, measured: Measuring) -> dict[str, float]:
    with model.restored():
        send_back(found.numbers, found.tags)
        proto = model.copy_proto()
    return measured.figures(proto)


def _spent(model: Model, run: Run, level: float) -> dict[str, Any]:
    """How each allocation shares a level out, and what that costs by the curves."""
    calibration = run.calibration
    plans = {SENSITIVITY: calibration.leveled(run.asked, _plan(model, calibration, "uniform", level))}
    pattern = calibration.plan.rule.pattern
    for word in OTHERS:
        if pattern is not None and allocations.parse(word).supports(pattern):
            plans[word] = _plan(model, calibration, word, level)
    ways = [{"allocation": word, **_of(calibration, plan)} for word, plan in plans.items()]
    return {"sparsity": level, "ways": ways}


def _plan(model: Model, calibration: Calibration, allocation: str, level: float) -> Plan:
    rule = replace(calibration.asked_plan.rule, sparsity=level, allocation=allocations.parse(allocation))
    return make_plan(model, rule)


def _of(calibration: Calibration, plan: Plan) -> dict[str, Any]:
    rows = {row.name: row for row in plan.planned}
    kept = [_kept([rows[name] for name in calibration.weights(layer)]) for layer in calibration.found.layers]
    cost = float(np.sqrt(max(predicted(calibration.curves, kept), 0.0)))
    return {"distance": cost, "weights": {name: row.sparsity or 0.0 for name, row in rows.items()}}


def _kept(rows: Sequence[PlanRow]) -> float:
    """The share of a layer that stays, of all its weights together."""
    gone = sum((row.sparsity or 0.0) * row.weight.tensor.size for row in rows)
    return 1 - gone / max(sum(row.weight.tensor.size for row in rows), 1)


__all__ = ["LEVEL", "analysis_request", "analyzed", "patterns_of"]
