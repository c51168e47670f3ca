"""Schedules of the learning rate, by the names that torch gives them; epochs stand for their steps."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any, ClassVar

from onnxsparse.epochs.act import Act
from onnxsparse.epochs.rates import Dropping
from onnxsparse.errors import nearest
from onnxsparse.modifiers.scheduled import (
    FARTHEST,
    NEVER,
    REQUIRED,
    Scheduled,
    WrongOptionError,
    demand_known,
    demand_positive,
)
from onnxsparse.rates import LARGEST, drops

GAMMA, STEP, MILESTONES, LEAST, CYCLE = "gamma", "step_size", "milestones", "lr_min", "cycle_epochs"
CLASSES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "ExponentialLR": ((GAMMA,), ()),
    "StepLR": ((STEP,), (GAMMA,)),
    "MultiStepLR": ((MILESTONES,), (GAMMA,)),
    "CosineAnnealingWarmRestarts": ((CYCLE,), (LEAST,)),
}
"""What each schedule needs to know, and what it may be told; a gamma that is not given is 0.1."""


@dataclass(frozen=True)
class LearningRateModifier(Scheduled):
    """Drive the learning rate by one of the known schedules.

    - !LearningRateModifier
      start_epoch: 0.0
      end_epoch: 25.0
      lr_class: MultiStepLR
      lr_kwargs: {gamma: 0.9, milestones: [2.0, 5.5, 10.0]}
      init_lr: 0.1
    """

    name: ClassVar[str] = "LearningRateModifier"

    start_epoch: float = REQUIRED
    lr_class: str = REQUIRED
    lr_kwargs: dict[str, Any] = REQUIRED
    init_lr: float | None = None
    constant_logging: bool = False

    def check(self) -> None:
        demand_known("lr_class", self.lr_class, CLASSES)
        needed, optional = CLASSES[self.lr_class]
        for name in self.lr_kwargs:
            if name not in (*needed, *optional):
                hint = nearest(name, (*needed, *optional)) or f" (known: {', '.join((*needed, *optional))})"
                raise WrongOptionError("lr_kwargs", f"{self.lr_class} has no {name!r:.40}{hint}")
        for name in needed:
            if name not in self.lr_kwargs:
                raise WrongOptionError("lr_kwargs", f"{self.lr_class} needs {name}")
        self._check_numbers()
        if self.init_lr is not None:
            demand_positive("init_lr", self.init_lr)
        self._check_height(max(self.start_epoch, self.end_epoch))

    def check_until(self, epoch: float) -> None:
        """Without an end it lasts as long as the run."""
        self._check_height(self.end_epoch if self.end_epoch >= 0 else epoch)

    def _check_height(self, until: float) -> None:
        """By a first rate that nobody knows it goes up as well, from next to nothing."""
        first = math.ulp(0.0) if self.init_lr is None else self.init_lr
        if first > LARGEST:
            raise WrongOptionError("init_lr", f"{first:g} is larger than any number that trains")
        if drops(self.lr_class, self.lr_kwargs, self.start_epoch).highest(first, self.start_epoch, until) > LARGEST:
            raise WrongOptionError("lr_kwargs", "the learning rate becomes larger than any number that trains")

    def _check_numbers(self) -> None:
        for name, value in self.lr_kwargs.items():
            values = value if name == MILESTONES and isinstance(value, tuple) else (value,)
            if not all(_is_number(one) for one in values):
                raise WrongOptionError(
                    "lr_kwargs", f"{name} is {'numbers' if name == MILESTONES else 'a number'} from 0"
                )
        for epoch in self.milestones:
            end = FARTHEST if self.end_epoch == NEVER else self.end_epoch
            if not self.start_epoch < epoch < end:
                raise WrongOptionError(
                    "lr_kwargs", f"the milestone {epoch:g} does not lie between start_epoch and end_epoch"
                )
        for name in (STEP, CYCLE):
            if name in self.lr_kwargs and not 0 < self.lr_kwargs[name] <= FARTHEST:
                raise WrongOptionError(
                    "lr_kwargs", f"{name} is a number above 0, up to {FARTHEST:g}, not {self.lr_kwargs[name]:g}"
                )

    @property
    def milestones(self) -> tuple[float, ...]:
        """Epochs at which the rate falls."""
        found = self.lr_kwargs.get(MILESTONES, ())
        return tuple(map(float, found if isinstance(found, tuple) else (found,)))

    def times_after(self, epochs: float) -> dict[str, Any]:
        """A schedule keeps its distance from the start: one that had none begins at 0."""
        later = super().times_after(epochs)
        if not self.milestones:
            return later
        moved = tuple(epoch + epochs for epoch in self.milestones)
        return {**later, "lr_kwargs": {**self.lr_kwargs, MILESTONES: moved}}

    def act(self) -> Act:
        return Dropping(self.called, self.span, self.lr_class, self.lr_kwargs, self.init_lr)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max
