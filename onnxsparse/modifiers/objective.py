"""What a run makes small."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from onnxsparse.errors import OptionError, nearest
from onnxsparse.modifiers.modifier import Modifier, Part

if TYPE_CHECKING:
    from onnxsparse.runs.run import Run

TASKS = ("cross-entropy", "mse", "bce", "l1")
DISTILLATIONS = ("distill", "kl")
MIXED = 0.7


@dataclass(frozen=True)
class Objective(Modifier):
    """Distillation from the dense model, a loss against labels, or both.

    - !objective
      loss: cross-entropy
      hardness: 0.5
    """

    name: ClassVar[str] = "objective"
    loss: str = "distill"
    hardness: float | None = None
    temperature: float = 2.0
    distillation: str = "distill"
    output: str = ""

    def __post_init__(self) -> None:
        if self.loss not in (*TASKS, *DISTILLATIONS):
            known = (*DISTILLATIONS, *TASKS)
            hint = nearest(self.loss, known) or f" (known: {', '.join(known)})"
            raise OptionError(f"--loss does not know {self.loss!r:.40}{hint}")
        if self.distillation not in DISTILLATIONS:
            raise OptionError(f"distillation is one of {', '.join(DISTILLATIONS)}, not {self.distillation!r:.40}")
        if self.hardness is not None and not 0 <= self.hardness <= 1:
            raise OptionError(f"hardness, the share of the distillation, lies from 0 to 1, not at {self.hardness}")
        if self.hardness is not None and not self.task and self.hardness != 1:
            raise OptionError("hardness mixes distillation with a task loss; name one, such as --loss cross-entropy")
        if not 0 < self.temperature < float("inf"):
            raise OptionError(f"temperature is a number above 0, not {self.temperature}")

    @property
    def task(self) -> str:
        return self.loss if self.loss in TASKS else ""

    @property
    def kind_of_distillation(self) -> str:
        return self.loss if self.loss in DISTILLATIONS else self.distillation

    @property
    def share(self) -> float:
        """The share of the distillation."""
        if not self.task:
            return 1.0
        return MIXED if self.hardness is None else self.hardness

    def start(self, run: Run) -> Part:
        return Part()
