"""Parameters that go from a first to a last value; the way is a straight line, whatever `inter_func` says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.epochs.act import Act
from onnxsparse.epochs.numbers import Leading
from onnxsparse.modifiers.gradual import RISES
from onnxsparse.modifiers.scheduled import (
    REQUIRED,
    Scheduled,
    WrongOptionError,
    demand_end,
    demand_known,
    demand_params,
    demand_trainable,
)


@dataclass(frozen=True)
class GradualParamModifier(Scheduled):
    """Lead parameters from a first to a last value.

    - !GradualParamModifier
      start_epoch: 0.0
      end_epoch: 5.0
      update_frequency: 0.1
      params: ['act.alpha']
      init_val: 0.0
      final_val: 1.0
    """

    name: ClassVar[str] = "GradualParamModifier"

    unwritten: ClassVar[tuple[str, ...]] = ()

    start_epoch: float = REQUIRED
    end_epoch: float = REQUIRED
    update_frequency: float = REQUIRED
    params: str | tuple[str, ...] = REQUIRED
    init_val: float | tuple[float, ...] = REQUIRED
    final_val: float | tuple[float, ...] = REQUIRED
    inter_func: str = "linear"
    params_strict: bool = True

    def check(self) -> None:
        demand_params("params", self.params)
        demand_known("inter_func", self.inter_func, RISES)
        demand_end(self)
        demand_trainable("init_val", self.init_val)
        demand_trainable("final_val", self.final_val)
        if _size(self.init_val) != _size(self.final_val):
            raise WrongOptionError("final_val", "it has as many values as init_val")

    def act(self) -> Act:
        return Leading(self.called, self.span, self.params, self.init_val, self.final_val, self.params_strict)


def _size(value: float | tuple[float, ...]) -> int:
    return len(value) if isinstance(value, tuple) else 0
