"""Learning from a teacher: the model itself as it was, or another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from onnxsparse.epochs.distilling import Distilling, meant
from onnxsparse.epochs.teaching import Teaching
from onnxsparse.errors import OptionError
from onnxsparse.modifiers.modifier import Part
from onnxsparse.modifiers.scheduled import Scheduled, WrongOptionError, demand_between, demand_positive

if TYPE_CHECKING:
    from onnxsparse.runs.run import Run

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

    def start(self, run: Run) -> Part:
        return Teaching(self.act(), run)

    def act(self) -> Distilling:
        return Distilling(
            self.called, self.span, self.hardness, self.temperature, self.teacher, self.distill_output_keys,
            self.teacher_input_keys,
        )  # fmt: skip
