"""Powerpropagation: powers of the weights train, so that small ones stay small."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.recipes.modifiers.modifier import REQUIRED, Scheduled, demand_params, demand_positive


@dataclass(frozen=True)
class PowerpropagationModifier(Scheduled):
    """Train powers of the weights, so that small ones stay small.

    - !PowerpropagationModifier
      start_epoch: 0.0
      end_epoch: 8.0
      params: __ALL_PRUNABLE__
      alpha: 2.0
    """

    name: ClassVar[str] = "PowerpropagationModifier"
    missing: ClassVar[str] = "weights that are a function of what trains"

    start_epoch: float = REQUIRED
    end_epoch: float = REQUIRED
    params: str | tuple[str, ...] = REQUIRED
    alpha: float = 1.0
    strict: bool = True

    def check(self) -> None:
        demand_params("params", self.params)
        demand_positive("alpha", self.alpha)
