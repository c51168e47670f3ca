"""Gradual pruning by magnitude, all weights together: what is small anywhere goes first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.epochs.act import Act
from onnxsparse.modifiers.gradual import Gradual


@dataclass(frozen=True)
class GlobalMagnitudePruningModifier(Gradual):
    """Prune all weights together by magnitude, more and more.

    - !GlobalMagnitudePruningModifier
      start_epoch: 0.0
      end_epoch: 40.0
      update_frequency: 1.0
      init_sparsity: 0.05
      final_sparsity: 0.85
      params: __ALL_PRUNABLE__
    """

    name: ClassVar[str] = "GlobalMagnitudePruningModifier"

    def act(self) -> Act:
        return self.by_magnitude(together=True)
