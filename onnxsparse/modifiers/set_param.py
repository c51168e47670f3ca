"""Parameters that are given a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.epochs.act import Act
from onnxsparse.epochs.numbers import Setting
from onnxsparse.modifiers.scheduled import REQUIRED, Scheduled, demand_params, demand_trainable


@dataclass(frozen=True)
class SetParamModifier(Scheduled):
    """Set parameters to a value.

    - !SetParamModifier
      start_epoch: 0.0
      params: ['act.alpha']
      val: 0.5
    """

    name: ClassVar[str] = "SetParamModifier"

    params: str | tuple[str, ...] = REQUIRED
    val: float | tuple[float, ...] = REQUIRED
    params_strict: bool = True
    constant_logging: bool = False

    def check(self) -> None:
        demand_params("params", self.params)
        demand_trainable("val", self.val)

    def act(self) -> Act:
        return Setting(self.called, self.span, self.params, self.val, self.params_strict)
