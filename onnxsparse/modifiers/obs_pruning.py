"""Gradual pruning by what a loss of second order says, with the rest moved to make up for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from onnxsparse.modifiers.scheduled import demand_from, demand_positive
from onnxsparse.recipes.modifiers.magnitude import GradualPruning
from onnxsparse.recipes.modifiers.masked import BLOCK4, UNSTRUCTURED


@dataclass(frozen=True)
class OBSPruningModifier(GradualPruning):
    """Prune by a loss of second order, more and more.

    - !OBSPruningModifier
      start_epoch: 0.0
      end_epoch: 40.0
      update_frequency: 1.0
      init_sparsity: 0.05
      final_sparsity: 0.85
      params: __ALL_PRUNABLE__
    """

    name: ClassVar[str] = "OBSPruningModifier"

    mask_types: ClassVar[tuple[str, ...]] = (UNSTRUCTURED, BLOCK4)
    missing: ClassVar[str] = "gradients of single samples, and the inverse of what they say"

    global_sparsity: bool = True
    num_grads: int = 1024
    damp: float = 1e-7
    fisher_block_size: int = 1
    grad_sampler_kwargs: dict[str, Any] | None = None
    num_recomputations: int = 1

    def check(self) -> None:
        super().check()
        for option in ("num_grads", "fisher_block_size", "num_recomputations"):
            demand_from(option, getattr(self, option), 1)
        demand_positive("damp", self.damp)
