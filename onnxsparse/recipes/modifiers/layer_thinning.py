"""Layer thinning: pruned filters or channels are taken out of the layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from onnxsparse.recipes.modifiers.masked import CHANNEL, FILTER
from onnxsparse.recipes.modifiers.modifier import REQUIRED, Scheduled, demand_from, demand_known


@dataclass(frozen=True)
class LayerThinningModifier(Scheduled):
    """Take pruned filters or channels out of the layers.

    - !LayerThinningModifier
      param_group_dependency_map: {'conv1.weight': ['bn1.weight', 'conv2.weight']}
      structure_type: filter
      update_epochs: [4.0, 8.0]
    """

    name: ClassVar[str] = "LayerThinningModifier"
    missing: ClassVar[str] = "tensors that change their shape during a run"

    param_group_dependency_map: dict[str, tuple[str, ...]] | str = REQUIRED
    structure_type: str = FILTER
    update_epochs: tuple[float, ...] = ()
    strict: bool = True

    def check(self) -> None:
        demand_known("structure_type", self.structure_type, (FILTER, CHANNEL))
        for epoch in self.update_epochs:
            demand_from("update_epochs", epoch, 0)

    def times_after(self, epochs: float) -> dict[str, Any]:
        return {**super().times_after(epochs), "update_epochs": tuple(epoch + epochs for epoch in self.update_epochs)}
