"""Gradual pruning by magnitude, each weight by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.epochs.act import Act
from onnxsparse.modifiers.gradual import Gradual


@dataclass(frozen=True)
class MagnitudePruningModifier(Gradual):
    """Prune each weight by magnitude, more and more.

    - !MagnitudePruningModifier
      start_epoch: 0.0
      end_epoch: 40.0
      update_frequency: 1.0
      init_sparsity: 0.05
      final_sparsity: 0.85
      params: __ALL_PRUNABLE__
    """

    name: ClassVar[str] = "MagnitudePruningModifier"

    def act(self) -> Act:
        return self.by_magnitude(together=False)
