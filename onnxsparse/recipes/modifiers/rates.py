"""Learning rate and weight decay modifiers by epochs: set once, by a scheduler of torch, or moved by a function."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any, ClassVar

from onnxsparse.acts.act import TimedAct
from onnxsparse.acts.trainee import Groups, Trainee
from onnxsparse.errors import nearest
from onnxsparse.rates import LARGEST, Way, drops, first_step, in_steps, on_the_way
from onnxsparse.recipes.modifiers.modifier import (
    FARTHEST,
    NEVER,
    REQUIRED,
    Scheduled,
    WrongOptionError,
    demand_between,
    demand_end,
    demand_from,
    demand_known,
    demand_positive,
    demand_trainable,
    scaled_epochs,
)
from onnxsparse.schedules import Span

GAMMA, STEP, MILESTONES, LEAST, CYCLE = "gamma", "step_size", "milestones", "lr_min", "cycle_epochs"
CLASSES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "ExponentialLR": ((GAMMA,), ()),
    "StepLR": ((STEP,), (GAMMA,)),
    "MultiStepLR": ((MILESTONES,), (GAMMA,)),
    "CosineAnnealingWarmRestarts": ((CYCLE,), (LEAST,)),
}
"""What each schedule needs to know, and what it may be told; a gamma that is not given is 0.1."""

FUNCTIONS = ("linear", "cosine", "cyclic_linear")


@dataclass(frozen=True)
class SetLearningRateModifier(Scheduled):
    """Set the learning rate.

    - !SetLearningRateModifier
      start_epoch: 5.0
      learning_rate: 0.1
    """

    name: ClassVar[str] = "SetLearningRateModifier"

    unwritten: ClassVar[tuple[str, ...]] = ("end_epoch", "update_frequency")

    learning_rate: float = REQUIRED
    param_groups: tuple[int, ...] | None = None
    constant_logging: bool = False

    def check(self) -> None:
        if not 0 < self.learning_rate <= 1:
            raise WrongOptionError("learning_rate", f"it is a number above 0, up to 1, not {self.learning_rate}")

    def act(self) -> SetRate:
        return SetRate(self)


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

    def times_within(self, epochs: float, of: float) -> dict[str, Any]:
        """What falls after every epoch falls as often in all: an ExponentialLR is a StepLR of other steps then."""
        made = super().times_within(epochs, of)
        name = CLASSES[self.lr_class][0][-1]
        if name == GAMMA:
            return {**made, "lr_class": "StepLR", "lr_kwargs": {**self.lr_kwargs, STEP: epochs / of}}
        given = self.lr_kwargs[name]
        scaled: Any = tuple(one * epochs / of for one in self.milestones) if name == MILESTONES else given * epochs / of
        return {**made, "lr_kwargs": {**self.lr_kwargs, name: scaled}}

    def act(self) -> RateSchedule:
        return RateSchedule(self)


@dataclass(frozen=True)
class LearningRateFunctionModifier(Scheduled):
    """Drive the learning rate from a first to a last value.

    - !LearningRateFunctionModifier
      start_epoch: 0.0
      end_epoch: 20.0
      lr_func: cosine
      init_lr: 0.1
      final_lr: 0.0
    """

    name: ClassVar[str] = "LearningRateFunctionModifier"

    unwritten: ClassVar[tuple[str, ...]] = ("constant_logging",)

    start_epoch: float = REQUIRED
    end_epoch: float = REQUIRED
    lr_func: str = REQUIRED
    init_lr: float = REQUIRED
    final_lr: float = REQUIRED
    cycle_epochs: float = 1.0
    param_groups: tuple[int, ...] | None = None
    constant_logging: bool = False

    def check(self) -> None:
        demand_known("lr_func", self.lr_func, FUNCTIONS)
        demand_between("init_lr", self.init_lr, 0, 1)
        demand_between("final_lr", self.final_lr, 0, 1)
        demand_positive("cycle_epochs", self.cycle_epochs)
        demand_between("cycle_epochs", self.cycle_epochs, 0, FARTHEST)
        demand_end(self)
        object.__setattr__(self, "update_frequency", NEVER)  # the rate moves at every step: unused, as in SparseML

    def times_within(self, epochs: float, of: float) -> dict[str, Any]:
        return {**super().times_within(epochs, of), **scaled_epochs(self, ("cycle_epochs",), epochs, of)}

    def act(self) -> RateFunction:
        return RateFunction(self)


@dataclass(frozen=True)
class SetWeightDecayModifier(Scheduled):
    """Set the weight decay.

    - !SetWeightDecayModifier
      start_epoch: 5.0
      weight_decay: 0.0
    """

    name: ClassVar[str] = "SetWeightDecayModifier"

    unwritten: ClassVar[tuple[str, ...]] = ("end_epoch", "update_frequency")

    weight_decay: float = REQUIRED
    param_groups: tuple[int, ...] | None = None
    constant_logging: bool = False

    def check(self) -> None:
        demand_from("weight_decay", self.weight_decay, 0)
        demand_trainable("weight_decay", self.weight_decay)

    def act(self) -> SetDecay:
        return SetDecay(self)


# -- what they do


class SetRate(TimedAct):
    """One rate, from its start on."""

    def __init__(self, options: SetLearningRateModifier) -> None:
        super().__init__(options.called, options.span)
        self._rate, self._groups = options.learning_rate, options.param_groups

    def groups(self) -> Groups:
        return self._groups

    def begin(self, trainee: Trainee, epoch: float) -> None:
        trainee.set_rates([self._rate], self._groups)


class SetDecay(TimedAct):
    """One weight decay, from its start on."""

    def __init__(self, options: SetWeightDecayModifier) -> None:
        super().__init__(options.called, options.span)
        self._decay, self._groups = options.weight_decay, options.param_groups

    def groups(self) -> Groups:
        return self._groups

    def begin(self, trainee: Trainee, epoch: float) -> None:
        trainee.set_decay(self._decay, self._groups)


class RateSchedule(TimedAct):
    """Rates that fall from a first one, by a class of its own; without a first one from what they are at the start."""

    def __init__(self, options: LearningRateModifier) -> None:
        start, end = options.start_epoch, options.end_epoch
        super().__init__(options.called, Span(start, end, NEVER))
        self._drops, self._given = drops(options.lr_class, dict(options.lr_kwargs), start), options.init_lr
        self._drops.check(start, end)
        self._first: list[float] = []

    def begin(self, trainee: Trainee, epoch: float) -> None:
        self._first = trainee.rates(None) if self._given is None else [self._given]

    def update(self, trainee: Trainee, epoch: float) -> None:
        step, first = in_steps(epoch, trainee.per_epoch), first_step(self.span.start, trainee.per_epoch)
        if self.span.end >= 0:  # the rate before the end stays behind it
            step = min(step, first_step(self.span.end, trainee.per_epoch) - 1)
        passed = max(0, step - first)
        trainee.set_rates([self._drops.rate(first, passed, trainee.per_epoch) for first in self._first], None)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "first": self._first}

    def restore(self, state: dict[str, Any], trainee: Trainee) -> None:
        super().restore(state, trainee)
        self._first = [float(one) for one in state["first"]]


class RateFunction(TimedAct):
    """A rate on its way from a first to a last one."""

    def __init__(self, options: LearningRateFunctionModifier) -> None:
        start, end = options.start_epoch, options.end_epoch
        super().__init__(options.called, Span(start, end, NEVER))
        self._way = Way(options.init_lr, options.final_lr, start, end, options.cycle_epochs)
        self._function, self._groups = options.lr_func, options.param_groups

    def groups(self) -> Groups:
        return self._groups

    def update(self, trainee: Trainee, epoch: float) -> None:
        trainee.set_rates([on_the_way(self._function, self._way, epoch, trainee.per_epoch)], self._groups)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max
