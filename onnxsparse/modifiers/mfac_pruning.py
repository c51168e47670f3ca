"""Gradual pruning by a loss of second order, made of the gradients of the last steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from onnxsparse.modifiers.scheduled import WrongOptionError, demand_from, demand_positive
from onnxsparse.recipes.modifiers.magnitude import GradualPruning


@dataclass(frozen=True)
class MFACPruningModifier(GradualPruning):
    """Prune by a loss of second order from the last gradients, more and more.

    - !MFACPruningModifier
      start_epoch: 0.0
      end_epoch: 40.0
      update_frequency: 1.0
      init_sparsity: 0.05
      final_sparsity: 0.85
      params: __ALL_PRUNABLE__
    """

    name: ClassVar[str] = "MFACPruningModifier"
    missing: ClassVar[str] = "a store of the last gradients, and the inverse of what they say"

    global_sparsity: bool = False
    num_grads: int | dict[float, int] = 64
    damp: float = 1e-5
    fisher_block_size: int | None = 2000
    grads_device: str | int = "cpu"
    num_pages: int = 1
    available_devices: tuple[str, ...] | None = None
    use_gradient_buffering: bool | None = None
    grad_sampler_kwargs: dict[str, Any] | None = None

    def check(self) -> None:
        super().check()
        counts = self.num_grads if isinstance(self.num_grads, dict) else {0.0: self.num_grads}
        if 0.0 not in counts:
            raise WrongOptionError("num_grads", "counts by sparsity begin at 0.0")
        demand_from("num_grads", min(counts.values()), 1)
        demand_from("num_pages", self.num_pages, 1)
        demand_from("fisher_block_size", self.fisher_block_size or 1, 1)
        demand_positive("damp", self.damp)
