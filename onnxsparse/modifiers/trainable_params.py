"""Which parameters train; at the end they are as they were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.epochs.act import Act
from onnxsparse.epochs.numbers import Holding
from onnxsparse.modifiers.scheduled import REQUIRED, Scheduled, demand_params


@dataclass(frozen=True)
class TrainableParamsModifier(Scheduled):
    """Let parameters train, or hold them.

    - !TrainableParamsModifier
      params: __ALL__
      trainable: true
    """

    name: ClassVar[str] = "TrainableParamsModifier"

    params: str | tuple[str, ...] = REQUIRED
    trainable: bool = True
    params_strict: bool = True

    def check(self) -> None:
        demand_params("params", self.params)

    def act(self) -> Act:
        return Holding(self.called, self.span, self.params, self.trainable, self.params_strict)
