"""The masks that a file holds, as arrays: of a sparse model, of a model with masks in its graph, or by a plan.

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
from onnxsparse.math.values import Array
from onnxsparse.passes.plan import Plan, names_of
from onnxsparse.passes.planfile import PlanFile, plan_from_file
from onnxsparse.passes.prune import kept_by
from onnxsparse.passes.recorded import recorded
from onnxsparse.passes.rule import Rule


@dataclass(frozen=True, eq=False)
class GivenMask:
    """What stays of one stored tensor, in its shape; True = keep."""

    name: str
    weight: Weight
    keep: Array

    @property
    def inputs_first(self) -> bool:
        """Whether a matrix is stored as (in, out), where torch has (out, in)."""
        use = self.weight.uses[0]
        return len(self.weight.shape) == 2 and use.stored_axes(use.runs[1]) == (1,)


def masks_of_model(model: Model, called: str) -> list[GivenMask]:
    """The masks in the graph of a model, or the places of its zeros."""
    found = list(_found(model))
    if not found:
        raise PlanError(f"{called} holds no masks: none are in its graph, and no weight of it has zeros")
    return found


def _found(model: Model) -> Iterator[GivenMask]:
    known, names = recorded(model), names_of(model.weights)
    for weight in model.weights:
        name = names[id(weight)]
        if not weight.uses or weight.refusal or (known and name not in known.pruned):
            continue
        keep = graph_mask(weight, name) if any(use.masks for use in weight.uses) else _not_zero(weight, name)
        if known or not keep.all():
            yield GivenMask(name, weight, keep.reshape(weight.shape))


def graph_mask(weight: Weight, name: str) -> Array:
    """True where the masks in the graph keep a number, flat in stored order."""
    first, *others = (
        np.logical_and.reduce([mask.stored() for mask in use.masks] or [np.ones(weight.tensor.size, bool)])
        for use in weight.uses
    )
    if weight.bare or any(not np.array_equal(first, other) for other in others):
        raise ModelError(f"the readers of '{name}' see different masks of it, or none; a parameter has one mask")
    return np.asarray(first)


def _not_zero(weight: Weight, name: str) -> Array:
    if weight.tensor.kind not in FLOAT_KINDS:
        raise ModelError(
            f"weight '{name}' is stored as {weight.tensor.kind}; attach takes the model before quantization"
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
    return [GivenMask(row.name, row.weight, kept_by(row, score).reshape(row.weight.shape)) for row in made.planned]
