"""Distillation: a teacher adds its share to the loss, from one epoch to another.

1. In a run of our own the training graph has the teacher's share between two steps; in a user's loop `loss_update`
   adds it.
2. The teacher `self` is the model as it was when the run began; another one is the path of an ONNX file.
3. Without labels the teacher is all there is to learn from, whatever the hardness.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from onnx import TensorProto

from onnxsparse.acts.act import TimedAct
from onnxsparse.acts.params import Param
from onnxsparse.acts.trainee import Trainee
from onnxsparse.engines.engine import Spec
from onnxsparse.engines.other_teacher import demand_outputs
from onnxsparse.errors import OptionError, absent
from onnxsparse.graph.edit import FLOATS
from onnxsparse.graph.model import Model
from onnxsparse.recipes.modifiers.modifier import Scheduled, WrongOptionError, demand_between, demand_positive
from onnxsparse.schedules import NEVER, Span

SELF, DISABLE = "self", "disable"


@dataclass(frozen=True)
class DistillationModifier(Scheduled):
    """Learn from a teacher besides the labels.

    - !DistillationModifier
      hardness: 0.5
      temperature: 2.0
    """

    name: ClassVar[str] = "DistillationModifier"

    unwritten: ClassVar[tuple[str, ...]] = ("update_frequency", "teacher")

    hardness: float = 0.5
    temperature: float = 2.0
    distill_output_keys: tuple[int | str, ...] | None = None
    teacher_input_keys: tuple[str, ...] | None = None
    teacher: str = SELF

    def check(self) -> None:
        demand_between("hardness", self.hardness, 0, 1)
        demand_positive("temperature", self.temperature)
        if not self.teacher:
            raise WrongOptionError("teacher", f"it is {SELF}, {DISABLE} or the path of an ONNX file")

    def outputs_of(self, names: Sequence[str]) -> list[str]:
        """The outputs of a model that its keys name."""
        found = []
        for key in self.distill_output_keys or ():
            name = meant(key, names)
            if name is None:
                known = ", ".join(names)[:100]
                raise OptionError(
                    f"{self.called}: distill_output_keys: the model has no output {key!r:.60} (it has {known}); name "
                    "one of those, or leave the key out"
                )
            found.append(name)
        return found

    def act(self) -> Distilling:
        return Distilling(self)


class Distilling(TimedAct):
    """When there is a teacher, which one, and how much of the loss it is: `options` says it."""

    def __init__(self, options: DistillationModifier) -> None:
        super().__init__(options.called, Span(options.start_epoch, options.end_epoch, NEVER))
        self.options = options
        self._outputs: tuple[str, ...] = ()

    def bind_graph(self, model: Model, params: Sequence[Param]) -> None:
        teacher, kinds = self.options.teacher, {one.name: one.type.tensor_type for one in model.proto.graph.output}
        self._outputs = tuple(dict.fromkeys(self.options.outputs_of(list(kinds))))
        for name in self._outputs:
            if kinds[name].elem_type not in (TensorProto.UNDEFINED, *FLOATS):
                raise OptionError(f"{self.where}: distill_output_keys: the output {name:.60} is not of floats")
        demand_file(self.where, teacher)
        if is_file(teacher):
            demand_outputs(teacher, self._outputs)

    def boundaries(self, trainee: Trainee) -> Iterable[int]:
        return () if self.options.teacher == DISABLE else steps_of(self.span, trainee)

    def shape(self, trainee: Trainee, spec: Spec, step: int) -> Spec:
        first, end = steps_of(self.span, trainee)
        if self.options.teacher == DISABLE or not first <= step < end:
            return spec
        options, task = self.options, spec.objective.task
        changed = replace(
            spec.objective,
            distillation="kl",
            hardness=options.hardness if task else 1.0,
            temperature=options.temperature,
            teacher="" if options.teacher == SELF else options.teacher,
            distilled=self._outputs,
        )
        return replace(spec, objective=changed)


def is_file(teacher: str) -> bool:
    """Whether a recipe's teacher is another model."""
    return teacher not in (SELF, DISABLE)


def demand_file(where: str, teacher: str) -> None:
    """A teacher that is another model is there."""
    if is_file(teacher) and not os.path.isfile(teacher):
        raise OptionError(f"{where}: teacher: {absent(teacher)}")


def steps_of(span: Span, trainee: Trainee) -> tuple[int, int]:
    """The first step with a teacher, and the first one without it again.

    As in SparseML the step at which the end comes has the teacher, too.
    """
    first = trainee.step_at(max(span.start, 0.0))
    end = trainee.step_at(span.end) if span.end >= 0 else trainee.total
    return first, end + (end > first)


def meant(key: int | str, names: Sequence[str]) -> str | None:
    """The output that a key means, by its name or its place."""
    if isinstance(key, int):
        return names[key] if -len(names) <= key < len(names) else None
    return key if key in names else None
