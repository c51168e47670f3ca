"""RigL pruning: one level from the start, with places that move by the gradient."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from onnxsparse.recipes.modifiers.masked import UNSTRUCTURED, Masked, demand_levels
from onnxsparse.recipes.modifiers.modifier import REQUIRED, demand_between, demand_end, demand_from, demand_known

STRATEGIES = ("erdos_renyi_kernel", "erdos_renyi", "uniform")


@dataclass(frozen=True)
class RigLPruningModifier(Masked):
    """Prune at once, and exchange places while training.

    - !RigLPruningModifier
      start_epoch: 0.0
      end_epoch: 8.0
      update_frequency: 0.5
      final_sparsity: 0.9
      params: __ALL_PRUNABLE__
    """

    name: ClassVar[str] = "RigLPruningModifier"

    mask_types: ClassVar[tuple[str, ...]] = (UNSTRUCTURED,)
    missing: ClassVar[str] = "gradients at places that are masked, on a schedule of its own"

    final_sparsity: float | dict[float, tuple[str, ...]] = REQUIRED
    num_grads: int = 1
    init_update_fraction: float = 0.3
    momentum_buffer_reset: bool = True
    sparsity_strategy: str = STRATEGIES[0]
    leave_enabled: bool = True
    global_sparsity: bool = False
    grad_sampler_kwargs: dict[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        super().check()
        demand_levels(self, "final_sparsity", self.final_sparsity)
        demand_end(self)
        demand_from("num_grads", self.num_grads, 1)
        demand_between("init_update_fraction", self.init_update_fraction, 0, 1)
        demand_known("sparsity_strategy", self.sparsity_strategy, STRATEGIES)
