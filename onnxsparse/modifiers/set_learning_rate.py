"""One learning rate from one moment on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.epochs.act import Act
from onnxsparse.epochs.rates import SetRate
from onnxsparse.modifiers.scheduled import REQUIRED, Scheduled, WrongOptionError


@dataclass(frozen=True)
class SetLearningRateModifier(Scheduled):
    """Set the learning rate.

    - !SetLearningRateModifier
      start_epoch: 5.0
      learning_rate: 0.1
    """

    name: ClassVar[str] = "SetLearningRateModifier"

    unwritten: ClassVar[tuple[str, ...]] = ("end_epoch", "update_frequency")

    learning_rate: float = REQUIRED
    param_groups: tuple[int, ...] | None = None
    constant_logging: bool = False

    def check(self) -> None:
        if not 0 < self.learning_rate <= 1:
            raise WrongOptionError("learning_rate", f"it is a number above 0, up to 1, not {self.learning_rate}")

    def act(self) -> Act:
        return SetRate(self.called, self.span, self.learning_rate, self.param_groups)
