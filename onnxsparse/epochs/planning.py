"""The plan of a recipe that prunes by epochs: what each weight comes to, before anything runs and when it is done.

1. The last modifier that prunes a weight says what it comes to, unless an earlier one holds more; one that only holds
   zeros says it where no other does.
2. A weight that no modifier names stays dense, as the recipe says.
3. Counts that depend on the training, and zeros that were held, are those of the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from onnxsparse.epochs.act import Goal
from onnxsparse.epochs.params import Param
from onnxsparse.epochs.stored import params_of
from onnxsparse.errors import OptionError
from onnxsparse.graph.model import Model
from onnxsparse.graph.weights import Weight
from onnxsparse.math.values import Array
from onnxsparse.modifiers.scheduled import Scheduled
from onnxsparse.passes.plan import Plan, PlanRow, does_not_fit, names_of
from onnxsparse.passes.rule import Rule
from onnxsparse.passes.trainable import MARK

UNNAMED = "no modifier of the recipe prunes it"
NO_ZEROS = "the recipe holds its zeros, of which it has none"
LET_GO = "its masks were let go at the end_epoch of the recipe"


@dataclass(frozen=True, eq=False)
class ByEpochs:
    """What the modifiers of a recipe mean in a model."""

    params: Sequence[Param]
    goals: Mapping[str, Goal]
    plan: Plan

    @property
    def masked(self) -> list[str]:
        """The tags of all that has to have a mask, weights or not."""
        return list(self.goals)

    def done(self, arrays: Mapping[str, Array], model: Model) -> Plan:
        """The plan as it came out."""
        tags = {id(weight): tag for tag, weight in _weights(model).items()}
        return replace(self.plan, rows=tuple(self._row(row, tags, arrays) for row in self.plan.rows))

    def _row(self, row: PlanRow, tags: Mapping[int, str], arrays: Mapping[str, Array]) -> PlanRow:
        tag = tags.get(id(row.weight), "")
        if row.pattern is None or tag not in arrays:
            return row
        goal = self.goals[tag]
        if not goal.stays:
            return PlanRow(row.name, row.weight, reason=LET_GO, chosen=True)
        if goal.keep is not None:
            keep = arrays[tag] != 0
            return replace(row, keep=keep.reshape(-1), drop=int(keep.size - np.count_nonzero(keep)))
        return replace(row, drop=_zero_units(row, arrays[tag])) if goal.shared else row


def by_epochs(model: Model, modifiers: Iterable[Scheduled]) -> ByEpochs:
    """Bind every modifier to the model; what cannot be is refused."""
    params = params_of(model)
    goals: dict[str, Goal] = {}
    left: dict[str, str] = {}
    for modifier in modifiers:
        act = modifier.act()
        act.bind(params)
        left.update(act.left())
        for tag, goal in act.goals().items():
            goals[tag] = _beside(goals[tag], goal) if tag in goals else goal
    weights, names = _weights(model), names_of(model.weights)
    tags = {id(weight): tag for tag, weight in weights.items()}
    rows = []
    for weight in model.weights:
        tag = tags.get(id(weight), "")
        rows.append(_planned(weight, names[id(weight)], goals.get(tag), left.get(tag, "")))
    return ByEpochs(params, goals, Plan(tuple(rows), Rule.make()))


def _beside(earlier: Goal, later: Goal) -> Goal:
    """What two come to: zeros of both are there, so a count is known when the run is over."""
    if later.keep is not None or earlier.keep is not None:
        return later if later.keep is None else earlier
    if not (earlier.stays and later.stays):
        return earlier if earlier.stays else later
    more = earlier if earlier.pattern == later.pattern and earlier.drop > later.drop else later
    return replace(more, shared=True)


def _planned(weight: Weight, name: str, goal: Goal | None, left: str) -> PlanRow:
    if goal is None and left:
        return PlanRow(name, weight, reason=left)
    if goal is None:
        return PlanRow(name, weight, reason=weight.refusal or UNNAMED, chosen=not weight.refusal)
    if goal.keep is not None and goal.drop == 0:
        return PlanRow(name, weight, reason=NO_ZEROS, chosen=True)
    misfit = does_not_fit(weight, goal.pattern)
    if misfit is not None:
        raise OptionError(f"the recipe prunes {name} by {goal.pattern.text}: {misfit.text}")
    return PlanRow(name, weight, goal.pattern, goal.drop, keep=goal.keep)


def _weights(model: Model) -> dict[str, Weight]:
    """By tag."""
    by_tensor = {weight.tensor: weight for weight in model.weights}
    homes = enumerate(model.flow.stores.homes)
    return {f"{MARK}{number}": by_tensor[tensor] for number, tensor in homes if tensor in by_tensor}


def _zero_units(row: PlanRow, array: Array) -> int:
    """How many units of its pattern are zero in a weight."""
    assert row.pattern is not None
    zero = row.use.matrix(array.reshape(-1)) == 0
    units = row.pattern.units(zero.shape)
    return units - row.pattern.violations(zero, units).count
