"""Distillation by layers: what the layers of a teacher give is learned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from onnxsparse.acts.act import TimedAct
from onnxsparse.acts.layer_pairs import LayerPairs, terms_of
from onnxsparse.acts.params import Param
from onnxsparse.acts.trainee import Trainee
from onnxsparse.engines.engine import Spec
from onnxsparse.engines.layer_terms import LayerTerm
from onnxsparse.graph.model import Model
from onnxsparse.recipes.modifiers.distillation import DISABLE, SELF, demand_file, is_file, steps_of
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
        self._terms: tuple[LayerTerm, ...] = ()

    def bind_graph(self, model: Model, params: Sequence[Param]) -> None:
        said = self.options
        if said.teacher != DISABLE:
            demand_file(self.where, said.teacher)
            pairs = LayerPairs(
                self.where, said.student_layer_names, said.teacher_layer_names, said.gain, said.normalize,
                said.project_features, said.epsilon, said.teacher if is_file(said.teacher) else "",
            )  # fmt: skip
            self._terms = terms_of(pairs, model)

    def boundaries(self, trainee: Trainee) -> Iterable[int]:
        return () if self.options.teacher == DISABLE else steps_of(self.span, trainee)

    def shape(self, trainee: Trainee, spec: Spec, step: int) -> Spec:
        first, end = steps_of(self.span, trainee)
        if self.options.teacher == DISABLE or not first <= step < end:
            return spec
        own = tuple(replace(term, key=(self.number, term.key[1])) for term in self._terms)
        return replace(spec, objective=replace(spec.objective, terms=(*spec.objective.terms, *own)))
