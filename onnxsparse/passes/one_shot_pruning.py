"""Pruning at once by a recipe: SparseGPT's and Wanda's method, on the layers that a recipe means.

1. Every targeted weight loses the same share, or as much as its target says, or by outliers (OWL, Yin et al. 2023): the
   more numbers of a group have |w| * norm of the input above M times their mean, the less of it goes.
2. Layers are pruned in the order of the graph, their inputs those of the net pruned so far; every output
   counts by what it varies, without gradients.
3. What was pruned before stays so, and stays recorded.
What it does not do: decide by names what a recipe asks for (that is `planning/layer_kinds`), or deliver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onnxsparse.calibration.moments import dense_moments
from onnxsparse.calibration.streams import Store
from onnxsparse.calibration.sweep import RIDGE, problem_of
from onnxsparse.errors import OptionError, nearest
from onnxsparse.graph.model import Model
from onnxsparse.graph.weights import Weight
from onnxsparse.math.values import Array
from onnxsparse.passes.calibrate import Calibrated, Calibration, calibrating
from onnxsparse.passes.calibration_asked import ALIKE, Asked
from onnxsparse.planning.graph_layers import GraphLayers
from onnxsparse.planning.layer_kinds import module_meant
from onnxsparse.planning.model_inputs import SampleAxes
from onnxsparse.planning.plan import Plan, PlanRow, make_plan
from onnxsparse.planning.recorded import readable
from onnxsparse.planning.request import held_row
from onnxsparse.planning.rule import Rule
from onnxsparse.planning.stored_params import weight_param

GIVEN = "given"
NOT_MEANT, IGNORED = "no target of the recipe means it", "the recipe ignores it"


@dataclass(frozen=True)
class OneShotPruning:
    """What is asked for: zeros, the method, and the layers by targets and what is ignored."""

    pattern: str
    levels: Sequence[float]
    """One for all targets, or one for each."""
    score: str
    solver: str
    targets: Sequence[str] = ()
    ignore: Sequence[str] = ()
    outliers: tuple[float, float] | None = None
    ridge: float = RIDGE
    keeps_zeros: bool = False


def pruned_at_once(
    model: Model, asked: OneShotPruning, data: Any, samples: int, seed: int, axes: SampleAxes
) -> tuple[Calibrated, list[str]]:
    """The plan with masks, the new numbers, and remarks."""
    aim = _Aim(model, asked.targets, asked.ignore)
    made = _planned(model, asked, aim)
    how = Asked(data, samples, seed, GIVEN, ALIKE, score=asked.score, solver=asked.solver, ridge=asked.ridge)
    with calibrating(model, made, how, axes) as calibration:
        if asked.outliers is not None and asked.pattern == "unstructured":
            made = _by_outliers(calibration, made, aim, asked.levels[0], *asked.outliers)
        found = calibration.swept(made)
        count, notes = calibration.samples.count, [*calibration.samples.notes, *aim.missed()]
    if asked.keeps_zeros:
        found = _with_zeros(found)
    facts = {"score": asked.score, "solver": asked.solver, "sensitivity": ALIKE, "samples": count, "seed": seed}
    plan = replace(_with_earlier(model, found.plan), calibration=facts)
    plan = replace(plan, rule=replace(plan.rule, by=asked.score))
    return replace(found, plan=plan, details={"calibration": {**facts, "ridge": asked.ridge}}), [*notes, *found.notes]


def _planned(model: Model, asked: OneShotPruning, aim: _Aim) -> Plan:
    """The plan of what the targets mean; how much goes may be decided by samples later."""
    leveled = asked.pattern == "unstructured"
    made = make_plan(model, Rule.make(pattern=asked.pattern, sparsity=asked.levels[0] if leveled else None).demand())
    rows = tuple(aim.row(row) for row in made.rows)
    if leveled and len(asked.levels) > 1:
        rows = tuple(_dropping(row, aim.level(row.weight, asked.levels)) for row in rows)
    if not any(row.pattern for row in rows):
        why = next((f"'{row.name}': {row.reason}" for row in rows if row.reason != NOT_MEANT), "no layer is meant")
        raise OptionError(f"the recipe prunes nothing of this model: {why}")
    return replace(made, rows=rows)


def _dropping(row: PlanRow, level: float) -> PlanRow:
    if row.pattern is None:
        return row
    return replace(row, drop=row.pattern.drop_count(row.use.shape4, level), cut=None)


class _Aim:
    """Which weights the targets of a recipe mean, and by which module."""

    def __init__(self, model: Model, targets: Sequence[str], ignore: Sequence[str]) -> None:
        self._layers, self._targets, self._ignore = GraphLayers(model.proto), targets, ignore
        self._known = {weight: self._known_as(weight) for weight in model.weights}
        unknown = next((entry for entry in targets if not any(self._by(entry, one) for one in self._known)), "")
        if unknown:
            words = {word for names, kinds in self._known.values() for word in (*names, *kinds)}
            hint = nearest(unknown, sorted(words))
            raise OptionError(f"targets: {unknown[:80]!r} is no layer and no module type of the model{hint}")

    def _known_as(self, weight: Weight) -> tuple[list[str], set[str]]:
        found = [self._layers.known_as(use.source) for use in weight.uses]
        names = [weight.name, *(name for names, _ in found for name in names)]
        return names, {kind for _, kinds in found for kind in kinds}

    def _by(self, entry: str, weight: Weight) -> str:
        """The module by which an entry means a weight: of a module type the weight itself."""
        names, kinds = self._known[weight]
        return weight.name if entry in kinds else module_meant(entry, names)

    def row(self, row: PlanRow) -> PlanRow:
        """The row of a weight, dense where no target means it."""
        if row.pattern is None:
            return row
        why = IGNORED if any(self._by(entry, row.weight) for entry in self._ignore) else ""
        why = why or ("" if not self._targets or self.group(row.weight) else NOT_MEANT)
        return PlanRow(row.weight, reason=why, chosen=True) if why else row

    def group(self, weight: Weight) -> str:
        """The module by which the first target that means a weight does; without targets the weight."""
        found = (self._by(entry, weight) for entry in self._targets)
        return next(filter(None, found), "") if self._targets else weight.name

    def level(self, weight: Weight, levels: Sequence[float]) -> float:
        """The level of the first target that means a weight."""
        if len(levels) != len(self._targets):
            raise OptionError(f"sparsity: {len(levels)} levels for {len(self._targets)} targets")
        return next((level for entry, level in zip(self._targets, levels) if self._by(entry, weight)), 0.0)

    def missed(self) -> list[str]:
        """What is ignored and is not there."""
        gone = [entry for entry in self._ignore if not any(self._by(entry, one) for one in self._known)]
        return [f"ignore: {entry[:80]!r} is no layer and no module type of the model" for entry in gone]


# -- levels by outliers


def _by_outliers(calibration: Calibration, made: Plan, aim: _Aim, level: float, above: float, spread: float) -> Plan:
    """The plan in which a group loses less the more outliers it has: within `spread` of the level, on average it."""
    found: dict[str, list[Array]] = {}
    store = Store(None)
    for layer, moments in dense_moments(calibration.cut, calibration.found.layers, calibration.samples, store):
        problem = problem_of(layer, moments.fit(), None)
        sizes = np.abs(problem.dense) * problem.norms
        for one in layer.parts:
            if one.row is not None:
                found.setdefault(aim.group(one.weight), []).append(sizes[:, one.part.columns].reshape(-1))
    levels = outlier_levels(found, level, above, spread)
    rows = [_dropping(row, levels.get(aim.group(row.weight), level)) for row in made.rows]
    return replace(made, rows=tuple(rows))


def outlier_levels(
    groups: Mapping[str, Sequence[Array]], level: float, above: float, spread: float
) -> dict[str, float]:
    """The level of each group: shares of outliers, stretched to twice the spread, around their mean."""
    shares = {name: _outliers(np.concatenate(parts), above) for name, parts in groups.items()}
    low, high = min(shares.values(), default=0.0), max(shares.values(), default=0.0)
    stretched = {name: (one - low) / ((high - low) or 1.0) * 2 * spread for name, one in shares.items()}
    mean = float(np.mean(list(stretched.values()))) if stretched else 0.0
    return {name: float(np.clip(level - (one - mean), 0.0, 0.99)) for name, one in stretched.items()}


def _outliers(sizes: Array, above: float) -> float:
    return float(np.count_nonzero(sizes > above * sizes.mean()) / max(sizes.size, 1))


# -- zeros that were there


def _with_zeros(found: Calibrated) -> Calibrated:
    """With the zeros that targeted weights had, beside the new ones."""
    numbers, tags = dict(found.numbers), {param.tensor: tag for tag, param in found.tags.items()}
    rows = []
    for row in found.plan.rows:
        tag = tags.get(row.weight.tensor, "")
        if row.keep is not None and tag in numbers:
            had = weight_param(row.weight).numbers() != 0
            numbers[tag] = np.where(had.reshape(numbers[tag].shape), numbers[tag], 0).astype(numbers[tag].dtype)
            row = replace(row, keep=row.keep & had.reshape(row.keep.shape))
        rows.append(row)
    return replace(found, plan=replace(found.plan, rows=tuple(rows)), numbers=numbers)


def _with_earlier(model: Model, plan: Plan) -> Plan:
    """The plan with the zeros of weights that were pruned before, by their pattern."""
    known = readable(model)
    if known is None:
        return plan
    rows = [
        held_row(row.weight, weight_param(row.weight).numbers().reshape(-1) != 0, *known.pruned[row.name])
        if row.pattern is None and row.name in known.pruned
        else row
        for row in plan.rows
    ]
    return replace(plan, rows=tuple(rows))


__all__ = ["OneShotPruning", "outlier_levels", "pruned_at_once"]
