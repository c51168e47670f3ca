"""How sparse the model is, told again and again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.epochs.act import Act
from onnxsparse.epochs.numbers import Telling
from onnxsparse.modifiers.scheduled import REQUIRED, Scheduled


@dataclass(frozen=True)
class SparsificationLoggingModifier(Scheduled):
    """Tell how sparse the model is.

    - !SparsificationLoggingModifier
      start_epoch: 0.0
      update_frequency: 1.0
    """

    name: ClassVar[str] = "SparsificationLoggingModifier"

    unwritten: ClassVar[tuple[str, ...]] = ()

    start_epoch: float = REQUIRED
    update_frequency: float = 1.0

    def act(self) -> Act:
        return Telling(self.called, self.span)
