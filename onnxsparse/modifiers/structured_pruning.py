"""Gradual pruning of whole filters or input channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.epochs.act import Act
from onnxsparse.epochs.structured import Structured
from onnxsparse.modifiers.gradual import Gradual
from onnxsparse.modifiers.masked import CHANNEL, FILTER
from onnxsparse.modifiers.scheduled import ALL_PRUNABLE, demand_params


@dataclass(frozen=True)
class StructuredPruningModifier(Gradual):
    """Prune whole filters or input channels, more and more.

    - !StructuredPruningModifier
      start_epoch: 0.0
      end_epoch: 40.0
      update_frequency: 1.0
      init_sparsity: 0.05
      final_sparsity: 0.85
      params: __ALL_PRUNABLE__
      mask_type: filter
    """

    name: ClassVar[str] = "StructuredPruningModifier"

    mask_types: ClassVar[tuple[str, ...]] = (FILTER, CHANNEL)

    params: str | tuple[str, ...] | None = ALL_PRUNABLE
    mask_type: str | tuple[int, ...] = FILTER
    param_groups: tuple[tuple[str, ...], ...] = ()

    def check(self) -> None:
        super().check()
        for group in self.param_groups:
            demand_params("param_groups", group)

    def act(self) -> Act:
        return Structured(
            self.called, self.span, self.params, self.init_sparsity, self.final_sparsity, self.inter_func,
            self.mask_type, leave_enabled=self.leave_enabled, groups=self.param_groups,
        )  # fmt: skip
