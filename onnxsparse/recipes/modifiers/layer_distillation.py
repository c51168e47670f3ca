"""Distillation by layers: what the layers of a teacher give is learned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.recipes.modifiers.modifier import Scheduled, demand_from, demand_params, demand_positive


@dataclass(frozen=True)
class PerLayerDistillationModifier(Scheduled):
    """Learn from what the layers of a teacher give.

    - !PerLayerDistillationModifier
      gain: 1.5
      student_layer_names: ['re:.*conv']
    """

    name: ClassVar[str] = "PerLayerDistillationModifier"
    missing: ClassVar[str] = "what layers give, of the model and of a teacher"

    gain: float = 1.5
    normalize: bool = True
    student_layer_names: tuple[str, ...] | None = None
    teacher_layer_names: tuple[str, ...] | None = None
    project_features: bool = True
    epsilon: float = 1e-6

    def check(self) -> None:
        demand_from("gain", self.gain, 0)
        demand_positive("epsilon", self.epsilon)
        for option in ("student_layer_names", "teacher_layer_names"):
            demand_params(option, getattr(self, option) or ())
