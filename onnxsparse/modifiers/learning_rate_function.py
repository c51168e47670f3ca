"""The learning rate as a function of the epoch, from a first to a last value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.epochs.act import Act
from onnxsparse.epochs.rates import Moving
from onnxsparse.modifiers.scheduled import (
    FARTHEST,
    NEVER,
    REQUIRED,
    Scheduled,
    WrongOptionError,
    demand_between,
    demand_end,
    demand_known,
    demand_positive,
)
from onnxsparse.rates import Way

FUNCTIONS = ("linear", "cosine", "cyclic_linear")


@dataclass(frozen=True)
class LearningRateFunctionModifier(Scheduled):
    """Drive the learning rate from a first to a last value.

    - !LearningRateFunctionModifier
      start_epoch: 0.0
      end_epoch: 20.0
      lr_func: cosine
      init_lr: 0.1
      final_lr: 0.0
    """

    name: ClassVar[str] = "LearningRateFunctionModifier"

    start_epoch: float = REQUIRED
    end_epoch: float = REQUIRED
    lr_func: str = REQUIRED
    init_lr: float = REQUIRED
    final_lr: float = REQUIRED
    cycle_epochs: float = 1.0
    param_groups: tuple[int, ...] | None = None
    constant_logging: bool = False

    def check(self) -> None:
        demand_known("lr_func", self.lr_func, FUNCTIONS)
        demand_between("init_lr", self.init_lr, 0, 1)
        demand_between("final_lr", self.final_lr, 0, 1)
        demand_positive("cycle_epochs", self.cycle_epochs)
        demand_between("cycle_epochs", self.cycle_epochs, 0, FARTHEST)
        demand_end(self)
        if self.update_frequency != NEVER:
            raise WrongOptionError("update_frequency", "the rate moves at every step, so it is -1")

    def act(self) -> Act:
        way = Way(self.init_lr, self.final_lr, self.start_epoch, self.end_epoch, self.cycle_epochs)
        return Moving(self.called, self.span, self.lr_func, way, self.param_groups)
