"""What an engine is to make small: the objective of a recipe, with what the model and the data say of it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from onnxsparse.data import Data, Stream
from onnxsparse.engines.spec import Objective as Goal
from onnxsparse.errors import OptionError, nearest
from onnxsparse.graph.model import Model
from onnxsparse.modifiers.distillation import DistillationModifier
from onnxsparse.modifiers.modifier import Modifier
from onnxsparse.modifiers.objective import Objective


def goal_of(objective: Objective, data: Data) -> Goal:
    shape: tuple[int, ...] = ()
    dtype = "int64" if objective.task == "cross-entropy" else "float32"
    if objective.task:
        some = data.take(np.zeros(1, np.int64)) if not isinstance(data, Stream) else data.batch(0, 1)
        shape = tuple(some["labels"].shape[1:])
    return Goal(
        objective.task,
        objective.output,
        shape,
        dtype,
        objective.kind_of_distillation,
        objective.share,
        objective.softness,
        objective.axis,
    )


def demand_output(model: Model, wanted: str) -> None:
    """The output that a loss is of is there; no name stands for whichever the engine takes."""
    names = [value.name for value in model.proto.graph.output]
    if wanted and wanted not in names:
        raise OptionError(f"the model has no output {wanted!r:.60}{nearest(wanted, names)}")


def demand_keys(model: Model, modifiers: Iterable[Modifier], wanted: str) -> None:
    """What a teacher is heard on is the output of the loss."""
    names = [value.name for value in model.proto.graph.output]
    for one in (some for some in modifiers if isinstance(some, DistillationModifier)):
        for name in one.outputs_of(names):
            if name != (wanted or names[0]):
                raise OptionError(
                    f"{one.called}: distill_output_keys names {name}, and the loss is of {wanted or names[0]}; pass "
                    f"--loss-output {name}, or leave the key out"
                )
