"""Top-KAST pruning: one level from the start, and more places that train than the model uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.recipes.modifiers.masked import UNSTRUCTURED, Masked
from onnxsparse.recipes.modifiers.modifier import REQUIRED, WrongOptionError, demand_from, demand_inside


@dataclass(frozen=True)
class TopKASTPruningModifier(Masked):
    """Prune at once, and train more places than are used.

    - !TopKASTPruningModifier
      start_epoch: 0.0
      end_epoch: 8.0
      update_frequency: 0.5
      forward_sparsity: 0.9
      backward_sparsity: 0.5
      params: __ALL_PRUNABLE__
    """

    name: ClassVar[str] = "TopKASTPruningModifier"

    mask_types: ClassVar[tuple[str, ...]] = (UNSTRUCTURED,)
    missing: ClassVar[str] = "one mask for the model and another for its gradients"

    forward_sparsity: float = REQUIRED
    backward_sparsity: float = REQUIRED
    global_sparsity: bool = True
    leave_enabled: bool = True
    active_weight_decay: float = 1e-4

    def check(self) -> None:
        super().check()
        demand_inside("forward_sparsity", self.forward_sparsity, 0, 1)
        demand_from("backward_sparsity", self.backward_sparsity, 0)
        if self.backward_sparsity > self.forward_sparsity:
            raise WrongOptionError(
                "backward_sparsity", "more places train than are used, so it is at most forward_sparsity"
            )
        demand_from("active_weight_decay", self.active_weight_decay, 0)
