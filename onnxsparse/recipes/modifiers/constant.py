"""Constant pruning, for models that are sparse already: zeros stay zero, also those that others make later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from onnxsparse.acts.act import FinalMask, TimedAct
from onnxsparse.acts.params import Param, find
from onnxsparse.acts.trainee import Trainee
from onnxsparse.patterns.unstructured import Unstructured
from onnxsparse.recipes.modifiers.modifier import REQUIRED, Scheduled, demand_params
from onnxsparse.schedules import NEVER, Span


@dataclass(frozen=True)
class ConstantPruningModifier(Scheduled):
    """Keep the zeros that the weights have.

    - !ConstantPruningModifier
      params: __ALL__
    """

    name: ClassVar[str] = "ConstantPruningModifier"

    params: str | tuple[str, ...] = REQUIRED

    def check(self) -> None:
        demand_params("params", self.params)

    def act(self) -> HeldZeros:
        return HeldZeros(self)


class HeldZeros(TimedAct):
    """Holds the zeros that parameters have."""

    def __init__(self, options: ConstantPruningModifier) -> None:
        super().__init__(options.called, Span(options.start_epoch, options.end_epoch, NEVER))
        self._wanted = options.params
        self._seen: dict[str, tuple[int, int]] = {}

    def bind(self, params: Sequence[Param]) -> None:
        self._params = find(params, self._wanted, f"{self.where}: params")

    def masked(self) -> list[Param]:
        return self._params

    def final_masks(self) -> dict[str, FinalMask]:
        """The zeros of the beginning; what others make zero before it begins is theirs to name."""
        found = {}
        for param in self._params:
            assert param.numbers is not None
            keep = param.numbers().reshape(-1) != 0
            found[param.tag] = FinalMask(Unstructured(), int(keep.size - np.count_nonzero(keep)), keep)
        return found

    def update(self, trainee: Trainee, epoch: float) -> None:
        for param in self._params:
            # Comparing every number at every step costs more than the step: a count tells whether anything changed.
            if self._look(trainee, param) != self._seen.get(param.tag):
                keep, mask = trainee.numbers(param) != 0, trainee.mask(param)
                if mask is None or not np.array_equal(keep, mask):
                    trainee.put_for(self, param, keep)
                self._seen[param.tag] = self._look(trainee, param)

    def restore(self, state: dict[str, Any], trainee: Trainee) -> None:
        super().restore(state, trainee)
        self._seen = {}

    def _look(self, trainee: Trainee, param: Param) -> tuple[int, int]:
        """As long as neither changes, zeros and mask are what they were."""
        return trainee.count(param), trainee.renewals[param.tag]
