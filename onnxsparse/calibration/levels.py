"""Levels from curves: how much of each layer goes, by what it costs the outputs, within what a device can use.

1. The level is the share that goes of all that the planned weights cost: parameters, bytes or multiply-accumulates. A
   weight that could not be calibrated keeps the level of the plan.
2. Of every weight something stays, as on its curve.
3. A level of a device is that of its whole network, in whole per cents, with a cap for each layer beyond which zeros
   gain nothing; the other layers make up for it as far as they can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from onnxsparse.allocations.curves import Curve, allocate
from onnxsparse.allocations.energy import HIGHEST
from onnxsparse.calibration.layers import CalibratedLayer
from onnxsparse.errors import OptionError
from onnxsparse.graph.model import Model
from onnxsparse.planning import macs
from onnxsparse.planning.layers import bound_of, counts
from onnxsparse.planning.plan import Plan, PlanRow
from onnxsparse.planning.rule import Rule


def shared_out(
    model: Model,
    plan: Plan,
    layers: Sequence[CalibratedLayer],
    curves: Sequence[Curve],
    sparsity: float,
    budget: str = "params",
) -> Plan:
    """The plan with as much of each layer dropped as costs the least together."""
    rows = tuple(_capped(row, plan.rule) for row in plan.rows)
    own = {one.weight.name for layer in layers for one in layer.parts}
    priced = _priced(model, layers, curves, budget)
    if plan.rule.knows_levels:
        priced = [_bounded(curve, layer, plan.rule) for curve, layer in zip(priced, layers)]
        sparsity = _of_calibrated(rows, own, sparsity)
    shares = allocate(priced, 1 - sparsity) if priced else []
    kept = {one.weight.name: share for layer, share in zip(layers, shares) for one in layer.parts}
    return replace(plan, rows=tuple(_with_share(row, kept, plan.rule) for row in rows))


def _priced(model: Model, layers: Sequence[CalibratedLayer], curves: Sequence[Curve], budget: str) -> list[Curve]:
    """The curves with what each number of their weights costs."""
    if budget == "params":
        return list(curves)
    weights = [one.weight for layer in layers for one in layer.parts if one.row]
    if budget == "bytes":
        cost = {weight: weight.tensor.nbytes for weight in weights}
    else:
        cost = dict(macs.of_weights(model, weights)[0])
        lost = next((weight.name for weight in weights if not cost.get(weight)), None)
        if lost is not None:
            raise OptionError(
                f"--budget macs: the multiply-accumulates of '{lost}' are not known; say sizes by --dim or take params"
            )
    totals = [sum(cost[one.weight] for one in layer.parts if one.row) for layer in layers]
    return [replace(curve, price=total / max(curve.size, 1)) for curve, total in zip(curves, totals)]


def _bounded(curve: Curve, layer: CalibratedLayer, rule: Rule) -> Curve:
    """With the least that a device wants kept of a layer."""
    bounds = [bound_of(one.weight, rule.target) for one in layer.parts]
    return replace(curve, least=max([1 - HIGHEST / 100, *(bound for bound in bounds if bound is not None)]))


def _capped(row: PlanRow, rule: Rule) -> PlanRow:
    """A weight of a device's level with no more dropped than the device can use, in whole per cents."""
    if not rule.knows_levels or row.pattern is None:
        return row
    return _with_share(row, {row.name: 1 - (row.sparsity or 0.0)}, rule)


def _of_calibrated(rows: Sequence[PlanRow], own: set[str], level: float) -> float:
    """The sparsity of calibrated layers by which the whole network has its level."""
    network = [row for row in rows if row.tied is None and counts(row.weight)]
    size = sum(row.weight.tensor.size for row in network)
    there = sum(row.drop for row in network if row.name not in own)
    calibrated = sum(row.weight.tensor.size for row in rows if row.name in own and row.pattern)
    return min(HIGHEST / 100, max(0.0, (level * size - there) / max(calibrated, 1)))


def _with_share(row: PlanRow, kept: Mapping[str, float], rule: Rule) -> PlanRow:
    if row.pattern is None or row.name not in kept:
        return row
    units, share = row.pattern.units(row.use.shape4), 1 - kept[row.name]
    if rule.knows_levels:
        bound = bound_of(row.weight, rule.target)
        most = int(100 * min(HIGHEST / 100, 1.0 if bound is None else 1 - bound) + 1e-9)
        share = min(most, round(100 * share)) / 100
        return replace(row, drop=row.pattern.drop_count(row.use.shape4, share), cut=None)
    return replace(row, drop=min(units - 1, round(units * share)) if share > 0 and units else 0, cut=None)


__all__ = ["shared_out"]
