"""Layer pruning: whole layers are left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.recipes.modifiers.modifier import REQUIRED, Scheduled, demand_params


@dataclass(frozen=True)
class LayerPruningModifier(Scheduled):
    """Leave whole layers out, until the end.

    - !LayerPruningModifier
      layers: ['blocks.3']
      start_epoch: 0.0
    """

    name: ClassVar[str] = "LayerPruningModifier"
    missing: ClassVar[str] = "layers that come and go during a run"

    layers: str | tuple[str, ...] = REQUIRED

    def check(self) -> None:
        demand_params("layers", self.layers)
