"""How long a run is: nothing happens, but the epochs count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.epochs.act import Act
from onnxsparse.modifiers.scheduled import REQUIRED, Scheduled


@dataclass(frozen=True)
class EpochRangeModifier(Scheduled):
    """Name the epochs of a run.

    - !EpochRangeModifier
      start_epoch: 0.0
      end_epoch: 70.0
    """

    name: ClassVar[str] = "EpochRangeModifier"

    start_epoch: float = REQUIRED
    end_epoch: float = REQUIRED

    def act(self) -> Act:
        return Act(self.called, self.span)
