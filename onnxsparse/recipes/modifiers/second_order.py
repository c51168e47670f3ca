"""OBS and M-FAC pruning: what a model of second order says the loss needs least goes, more and more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from onnxsparse.recipes.modifiers.magnitude import GradualPruning
from onnxsparse.recipes.modifiers.masked import BLOCK4, UNSTRUCTURED
from onnxsparse.recipes.modifiers.modifier import WrongOptionError, demand_from, demand_positive


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
