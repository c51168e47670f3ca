"""Distillation by layers: what the layers of a teacher give is learned."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from onnxsparse.acts.act import TimedAct
from onnxsparse.acts.trainee import Trainee
from onnxsparse.engines.engine import Spec
from onnxsparse.engines.layer_terms import LayerPairs
from onnxsparse.errors import OptionError
from onnxsparse.recipes.modifiers.distillation import DISABLE, SELF, steps_of
from onnxsparse.recipes.modifiers.modifier import (
    Scheduled,
    WrongOptionError,
    demand_from,
    demand_params,
    demand_positive,
)
from onnxsparse.schedules import NEVER, Span


@dataclass(frozen=True)
class PerLayerDistillationModifier(Scheduled):
    """Learn from what the layers of a teacher give.

    - !PerLayerDistillationModifier
      gain: 1.5
      student_layer_names: ['re:.*conv']
    """

    name: ClassVar[str] = "PerLayerDistillationModifier"

    unwritten: ClassVar[tuple[str, ...]] = ("update_frequency", "teacher")

    gain: float = 1.5
    normalize: bool = True
    student_layer_names: tuple[str, ...] | None = None
    teacher_layer_names: tuple[str, ...] | None = None
    project_features: bool = True
    epsilon: float = 1e-6
    teacher: str = SELF

    def check(self) -> None:
        demand_from("gain", self.gain, 0)
        demand_positive("epsilon", self.epsilon)
        for option in ("student_layer_names", "teacher_layer_names"):
            demand_params(option, getattr(self, option) or ())
        if not self.teacher:
            raise WrongOptionError("teacher", f"it is {SELF}, {DISABLE} or the path of an ONNX file")
        ours, theirs = self.student_layer_names, self.teacher_layer_names
        patterns = any(name.startswith("re:") for name in (*(ours or ()), *(theirs or ())))
        if ours is not None and theirs is not None and len(ours) != len(theirs) and not patterns:
            raise WrongOptionError(
                "teacher_layer_names", f"{len(theirs)} layers are not paired with {len(ours)} in student_layer_names"
            )

    def act(self) -> LayerDistilling:
        return LayerDistilling(self)


class LayerDistilling(TimedAct):
    """When layers learn, and of which teacher: `options` says it."""

    def __init__(self, options: PerLayerDistillationModifier) -> None:
        super().__init__(options.called, Span(options.start_epoch, options.end_epoch, NEVER))
        self.options = options

    def demand_run(self) -> None:
        teacher = self.options.teacher
        if teacher not in (SELF, DISABLE) and not os.path.isfile(teacher):
            raise OptionError(f"{self.where}: teacher: there is no file {teacher:.100}")

    def boundaries(self, trainee: Trainee) -> Iterable[int]:
        return () if self.options.teacher == DISABLE else steps_of(self.span, trainee)

    def shape(self, trainee: Trainee, spec: Spec, step: int) -> Spec:
        first, end = steps_of(self.span, trainee)
        if self.options.teacher == DISABLE or not first <= step < end:
            return spec
        said = self.options
        pairs = LayerPairs(
            self.where, said.student_layer_names, said.teacher_layer_names, said.gain, said.normalize,
            said.project_features, said.epsilon, "" if said.teacher == SELF else said.teacher, self.number,
        )  # fmt: skip
        return replace(spec, objective=replace(spec.objective, layers=(*spec.objective.layers, pairs)))
