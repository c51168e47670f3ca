"""Learning from a teacher: the model itself as it was, or another one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.epochs.act import Act
from onnxsparse.epochs.distilling import Distilling
from onnxsparse.modifiers.scheduled import Scheduled, WrongOptionError, demand_between, demand_positive

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

    def act(self) -> Act:
        return Distilling(
            self.called, self.span, self.hardness, self.temperature, self.teacher, self.distill_output_keys
        )
