"""Movement pruning: what training moves towards zero goes, more and more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.recipes.modifiers.magnitude import GradualPruning


@dataclass(frozen=True)
class MovementPruningModifier(GradualPruning):
    """Prune what training moves towards zero, more and more.

    - !MovementPruningModifier
      start_epoch: 0.0
      end_epoch: 40.0
      update_frequency: 1.0
      init_sparsity: 0.05
      final_sparsity: 0.85
      params: __ALL_PRUNABLE__
    """

    name: ClassVar[str] = "MovementPruningModifier"
    missing: ClassVar[str] = "scores that gather gradients at every step"
