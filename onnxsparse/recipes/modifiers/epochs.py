"""How many epochs a run has, and when its sparsity is logged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.modifiers.scheduled import REQUIRED, Scheduled
from onnxsparse.train.acts.act import TimedAct
from onnxsparse.train.trainee import Trainee


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

    def act(self) -> TimedAct:
        return TimedAct(self.called, self.span)


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

    def act(self) -> Telling:
        return Telling(self.called, self.span)


class Telling(TimedAct):
    """Says how sparse the model is."""

    def update(self, trainee: Trainee, epoch: float) -> None:
        trainee.tell(epoch)
