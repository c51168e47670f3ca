"""Structured pruning: whole filters or input channels go, gradually, some parameters together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.acts.params import ALL_PRUNABLE, Param, find
from onnxsparse.acts.trainee import Trainee
from onnxsparse.recipes.modifiers.magnitude import Gradual, GradualPruning
from onnxsparse.recipes.modifiers.masked import CHANNEL, FILTER, demand_alike, drop_of, keep_together
from onnxsparse.recipes.modifiers.modifier import demand_params


@dataclass(frozen=True)
class StructuredPruningModifier(GradualPruning):
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

    def act(self) -> Structured:
        return Structured(self)


class Structured(Gradual):
    """Of a group of parameters the same outputs, or inputs, go: by the sum of their norms."""

    def __init__(self, options: StructuredPruningModifier) -> None:
        levels = options.init_sparsity, options.final_sparsity
        super().__init__(options, *levels, options.inter_func, together=False, leave_enabled=options.leave_enabled)
        self._named_groups = options.param_groups

    def bind(self, params: Sequence[Param]) -> None:
        super().bind(params)
        found = [find(self._params, names, f"{self.where}: param_groups") for names in self._named_groups]
        grouped = {param.tag for group in found for param in group}
        self._sets = [*found, *([param] for param in self._params if param.tag not in grouped)]
        self._pattern_by_tag = {param.tag: pattern for param, pattern in zip(self._params, self._patterns)}
        for group in found:
            demand_alike(self._pattern_by_tag[group[0].tag], group, f"{self.where}: param_groups")

    def update(self, trainee: Trainee, epoch: float) -> None:
        progress = self.span.progress(epoch)
        for group in self._sets:
            pattern = self._pattern_by_tag[group[0].tag]
            smallest = min(group, key=lambda param: pattern.units(param.shape4))
            drop = drop_of(pattern, smallest, self._level(smallest, progress))
            keeps = keep_together(pattern, group, [trainee.numbers(param) for param in group], drop)
            for param, keep in zip(group, keeps):
                trainee.put_for(self, param, keep)
