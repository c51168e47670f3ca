"""One weight decay from one moment on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.epochs.act import Act
from onnxsparse.epochs.rates import SetDecay
from onnxsparse.modifiers.scheduled import REQUIRED, Scheduled, demand_from, demand_trainable


@dataclass(frozen=True)
class SetWeightDecayModifier(Scheduled):
    """Set the weight decay.

    - !SetWeightDecayModifier
      start_epoch: 5.0
      weight_decay: 0.0
    """

    name: ClassVar[str] = "SetWeightDecayModifier"

    unwritten: ClassVar[tuple[str, ...]] = ("end_epoch", "update_frequency")

    weight_decay: float = REQUIRED
    param_groups: tuple[int, ...] | None = None
    constant_logging: bool = False

    def check(self) -> None:
        demand_from("weight_decay", self.weight_decay, 0)
        demand_trainable("weight_decay", self.weight_decay)

    def act(self) -> Act:
        return SetDecay(self.called, self.span, self.weight_decay, self.param_groups)
