"""Masks given in a file, as arrays: of a sparse model, of a model with masks in its graph, or by a plan.

1. A mask in the graph is the mask; every reader of the tensor has to see the same.
2. Otherwise zeros are the mask: those of the weights that the model records as pruned, or, where it records nothing,
   those of every weight that has some.
3. A plan says how many go. Which ones follows from the numbers of the model that it is given with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from onnxsparse.errors import ModelError, OptionError, PlanError
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import FLOAT_KINDS
from onnxsparse.graph.weights import Weight
from onnxsparse.math.param import demand_finite
from onnxsparse.math.values import Array, Values
from onnxsparse.patterns.unstructured import Unstructured
from onnxsparse.planning.plan import Plan, PlanRow
from onnxsparse.planning.plan_file import PlanFile, plan_from_file
from onnxsparse.planning.recorded import recorded
from onnxsparse.planning.rule import Rule
from onnxsparse.scores import Score


@dataclass(frozen=True, eq=False)
class GivenMask:
    """What stays of one stored tensor, in its shape; True = keep."""

    weight: Weight
    keep: Array

    @property
    def name(self) -> str:
        return self.weight.name

    @property
    def inputs_first(self) -> bool:
        """Whether a matrix is stored as (in, out), where torch has (out, in)."""
        use = self.weight.uses[0]
        return len(self.weight.shape) == 2 and use.stored_axes(use.runs[1]) == (1,)


def kept_by(row: PlanRow, score: Score) -> Array:
    """The mask that pruning a row would leave, in stored order, True = keep."""
    if row.keep is not None:
        return row.keep
    if row.tied is not None:
        return kept_by(row.tied, score)
    if row.pattern is None:
        raise PlanError(f"weight '{row.name}' is not planned")
    values = row.param.whole()
    demand_finite(values, row.name)
    if isinstance(row.pattern, Unstructured) and values.reading.scale is None:
        flat = Values(row.weight.tensor.read().reshape(1, 1, 1, -1), values.reading)
        return row.pattern.select(flat, score.bind(row.name), row.drop).reshape(-1)
    return row.use.restore(row.pattern.select(values, score.bind(row.name), row.drop))


def masks_of_model(model: Model, called: str) -> list[GivenMask]:
    """The masks in the graph of a model, or the places of its zeros."""
    found = list(_found(model))
    if not found:
        raise PlanError(f"{called} holds no masks: none are in its graph, and no weight of it has zeros")
    return found


def _found(model: Model) -> Iterator[GivenMask]:
    known = recorded(model)
    for weight in model.weights:
        name = weight.name
        if not weight.uses or weight.refusal or (known and name not in known.pruned):
            continue
        keep = graph_mask(weight) if any(use.masks for use in weight.uses) else _not_zero(weight)
        if known or not keep.all():
            yield GivenMask(weight, keep.reshape(weight.shape))


def graph_mask(weight: Weight) -> Array:
    """True where the masks in the graph keep a number, flat in stored order."""
    first, *others = (
        np.logical_and.reduce([mask.stored() for mask in use.masks] or [np.ones(weight.tensor.size, bool)])
        for use in weight.uses
    )
    if weight.bare or any(not np.array_equal(first, other) for other in others):
        raise ModelError(f"the readers of '{weight.name}' see different masks of it, or none; a parameter has one mask")
    return np.asarray(first)


def _not_zero(weight: Weight) -> Array:
    if weight.tensor.kind not in FLOAT_KINDS:
        raise ModelError(
            f"weight '{weight.name}' is stored as {weight.tensor.kind}; attach takes the model before quantization"
        )
    numbers = weight.tensor.read()
    bits = numbers << 1 if weight.tensor.kind == "bfloat16" else numbers  # the sign of a zero means nothing
    return np.asarray(bits != 0)


def masks_of_plan(file: PlanFile, model: Model) -> list[GivenMask]:
    """The masks that a plan makes of a model's numbers."""
    try:
        rule = Rule.make(target=file.target or None, score=file.score)
    except OptionError as error:
        raise PlanError(f"{file.path}: {error}") from error
    made, _ = plan_from_file(file, model, replace(rule, sparsity=file.sparsity))
    return masks_of_rows(made, file.path)


def masks_of_rows(made: Plan, called: str) -> list[GivenMask]:
    if not made.planned:
        raise PlanError(f"{called} prunes no weight; there is nothing to attach")
    score = made.rule.score
    return [GivenMask(row.weight, kept_by(row, score).reshape(row.weight.shape)) for row in made.planned]
