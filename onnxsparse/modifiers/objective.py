"""What a run makes small."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from onnxsparse import losses
from onnxsparse.errors import OptionError, nearest
from onnxsparse.losses import KL
from onnxsparse.modifiers.modifier import Modifier, Part

if TYPE_CHECKING:
    from onnxsparse.runs.run import Run

TASKS = ("cross-entropy", "mse", "bce", "l1")
DISTILLATIONS = ("distill", "kl")
MIXED, TEMPERATURE = 0.7, 2.0


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
    temperature: float = TEMPERATURE
    distillation: str = "distill"
    output: str = ""

    def __post_init__(self) -> None:
        if _word(self.loss) not in (*TASKS, *DISTILLATIONS):
            known = (*DISTILLATIONS, *TASKS)
            hint = nearest(_word(self.loss), known) or f" (known: {', '.join(known)})"
            raise OptionError(f"--loss does not know {self.loss!r:.40}{hint}")
        if _word(self.distillation) not in DISTILLATIONS:
            raise OptionError(f"distillation is one of {', '.join(DISTILLATIONS)}, not {self.distillation!r:.40}")
        self._demand_known_options()
        if self.hardness is not None and not 0 <= self.hardness <= 1:
            raise OptionError(f"hardness, the share of the distillation, lies from 0 to 1, not at {self.hardness}")
        if self.hardness is not None and not self.task and self.hardness != 1:
            raise OptionError("hardness mixes distillation with a task loss; name one, such as --loss cross-entropy")
        if not 0 < self.temperature < float("inf"):
            raise OptionError(f"temperature is a number above 0, not {self.temperature}")

    def _demand_known_options(self) -> None:
        """Only kl has options here; an ignored label is always -100."""
        for text in (self.loss, self.distillation):
            if ":" in text and _word(text) != KL.name:
                raise OptionError(f"{_word(text)} takes no options here; leave {text.partition(':')[2]!r:.40} out")
        kl = self._kl
        if kl is not None and "temperature=" in self._distils and self.temperature not in (TEMPERATURE, kl.temperature):
            raise OptionError(f"the temperature is said twice: {kl.temperature:g} and {self.temperature:g}")

    @property
    def task(self) -> str:
        return self.loss if self.loss in TASKS else ""

    @property
    def _distils(self) -> str:
        return self.distillation if self.task else self.loss

    @property
    def _kl(self) -> KL | None:
        found = losses.parse(self._distils) if _word(self._distils) == KL.name else None
        return found if isinstance(found, KL) else None

    @property
    def kind_of_distillation(self) -> str:
        return _word(self._distils)

    @property
    def idle(self) -> list[str]:
        """What was said and changes nothing."""
        if self.temperature == TEMPERATURE or self.kind_of_distillation == KL.name:
            return []
        other = "--distillation kl" if self.task else "--loss kl"
        return [f"the temperature {self.temperature:g} changes nothing: it softens kl, which {other} asks for"]

    @property
    def softness(self) -> float:
        """The temperature, wherever it was said."""
        kl = self._kl
        return self.temperature if kl is None or "temperature=" not in self._distils else kl.temperature

    @property
    def axis(self) -> int | None:
        """The axis of the classes for kl, where the user says it."""
        return None if self._kl is None else self._kl.axis

    @property
    def share(self) -> float:
        """The share of the distillation."""
        if not self.task:
            return 1.0
        return MIXED if self.hardness is None else self.hardness

    def start(self, run: Run) -> Part:
        return Part()


def _word(text: str) -> str:
    return text.partition(":")[0]
