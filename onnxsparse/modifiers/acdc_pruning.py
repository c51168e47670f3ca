"""Pruning in phases: compressed and dense by turns, compressed at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.epochs.act import Act
from onnxsparse.epochs.alternating import Alternating
from onnxsparse.modifiers.masked import Masked
from onnxsparse.modifiers.scheduled import REQUIRED, WrongOptionError, demand_end, demand_inside, demand_positive


@dataclass(frozen=True)
class ACDCPruningModifier(Masked):
    """Prune and let go by turns, and end pruned.

    - !ACDCPruningModifier
      start_epoch: 0.0
      end_epoch: 8.0
      update_frequency: 2.0
      compression_sparsity: 0.9
      params: __ALL_PRUNABLE__
    """

    name: ClassVar[str] = "ACDCPruningModifier"

    compression_sparsity: float = REQUIRED
    global_sparsity: bool = True
    leave_enabled: bool = True
    momentum_buffer_reset: bool = True

    def check(self) -> None:
        super().check()
        for option in ("start_epoch", "end_epoch", "update_frequency"):
            if not getattr(self, option).is_integer():
                raise WrongOptionError(option, f"phases last whole epochs, so it is no {getattr(self, option):g}")
        demand_positive("update_frequency", self.update_frequency)
        demand_end(self)
        demand_inside("compression_sparsity", self.compression_sparsity, 0, 1)
        self.demand_fit("compression_sparsity", self.compression_sparsity)

    def act(self) -> Act:
        return Alternating(
            self.called, self.span, self.params, self.compression_sparsity, self.mask_type, self.global_sparsity,
            self.leave_enabled, self.momentum_buffer_reset,
        )  # fmt: skip
