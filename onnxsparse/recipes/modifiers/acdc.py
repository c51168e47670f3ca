"""AC/DC pruning: pruned and dense by turns, and pruned in the end.

1. Phases last `update_frequency` epochs; the first, third, ... are dense, but for the last one before the end.
2. In a dense phase nothing is masked, and what was pruned grows again from zero. The optimizer state of the weights is
   cleared when such a phase begins, if `momentum_buffer_reset` wants it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.modifiers.scheduled import REQUIRED, WrongOptionError, demand_end, demand_inside, demand_positive
from onnxsparse.recipes.modifiers.magnitude import Gradual
from onnxsparse.recipes.modifiers.masked import Masked
from onnxsparse.train.trainee import Trainee


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

    def act(self) -> Alternating:
        return Alternating(self)


class Alternating(Gradual):
    """One level, put and let go by turns."""

    def __init__(self, options: ACDCPruningModifier) -> None:
        level = options.compression_sparsity
        super().__init__(options, level, level, "linear", options.global_sparsity, options.leave_enabled)
        self._reset = options.momentum_buffer_reset

    def is_dense(self, epoch: float) -> bool:
        if epoch >= self.span.end - self.span.frequency:
            return False  # the last phase is pruned, so that the weights have time to settle under the final mask
        return math.floor((epoch - self.span.start) / self.span.frequency) % 2 == 0

    def update(self, trainee: Trainee, epoch: float) -> None:
        if not self.is_dense(epoch):
            super().update(trainee, epoch)
            return
        for param in self._params:
            trainee.release_for(self, param)
            if self._reset:
                trainee.forget(param)
