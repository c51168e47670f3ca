"""Modifiers of parameters and of the run: set to a value, moved from one to another, frozen; epochs, logging."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Union

from onnxsparse.acts.act import TimedAct
from onnxsparse.acts.params import Param, find
from onnxsparse.acts.trainee import Trainee
from onnxsparse.errors import OptionError
from onnxsparse.recipes.modifiers.magnitude import RISES
from onnxsparse.recipes.modifiers.modifier import (
    REQUIRED,
    Scheduled,
    WrongOptionError,
    demand_end,
    demand_known,
    demand_params,
    demand_trainable,
    scaled_epochs,
)

Value = Union[float, Sequence[float]]


@dataclass(frozen=True)
class SetParamModifier(Scheduled):
    """Set parameters to a value.

    - !SetParamModifier
      start_epoch: 0.0
      params: ['act.alpha']
      val: 0.5
    """

    name: ClassVar[str] = "SetParamModifier"

    unwritten: ClassVar[tuple[str, ...]] = ("update_frequency", "constant_logging")

    params: str | tuple[str, ...] = REQUIRED
    val: float | tuple[float, ...] = REQUIRED
    params_strict: bool = True
    constant_logging: bool = False

    def check(self) -> None:
        demand_params("params", self.params)
        demand_trainable("val", self.val)

    def act(self) -> SetValue:
        return SetValue(self)


@dataclass(frozen=True)
class GradualParamModifier(Scheduled):
    """Lead parameters from a first to a last value.

    - !GradualParamModifier
      start_epoch: 0.0
      end_epoch: 5.0
      update_frequency: 0.1
      params: ['act.alpha']
      init_val: 0.0
      final_val: 1.0
    """

    name: ClassVar[str] = "GradualParamModifier"

    unwritten: ClassVar[tuple[str, ...]] = ()

    start_epoch: float = REQUIRED
    end_epoch: float = REQUIRED
    update_frequency: float = REQUIRED
    params: str | tuple[str, ...] = REQUIRED
    init_val: float | tuple[float, ...] = REQUIRED
    final_val: float | tuple[float, ...] = REQUIRED
    inter_func: str = "linear"
    params_strict: bool = True

    def check(self) -> None:
        demand_params("params", self.params)
        demand_known("inter_func", self.inter_func, RISES)
        demand_end(self)
        demand_trainable("init_val", self.init_val)
        demand_trainable("final_val", self.final_val)
        if _size(self.init_val) != _size(self.final_val):
            raise WrongOptionError("final_val", "it has as many values as init_val")

    def act(self) -> LeadValue:
        return LeadValue(self)


@dataclass(frozen=True)
class TrainableParamsModifier(Scheduled):
    """Let parameters train, or hold them.

    - !TrainableParamsModifier
      params: __ALL__
      trainable: true
    """

    name: ClassVar[str] = "TrainableParamsModifier"

    params: str | tuple[str, ...] = REQUIRED
    trainable: bool = True
    params_strict: bool = True

    def check(self) -> None:
        demand_params("params", self.params)

    def act(self) -> Freeze:
        return Freeze(self)


# -- what they do


class OfParameters(TimedAct):
    """An act on some parameters."""

    def __init__(self, options: SetParamModifier | GradualParamModifier | TrainableParamsModifier) -> None:
        super().__init__(options.called, options.span)
        self._wanted, self._strict = options.params, options.params_strict
        self._params: list[Param] = []

    def bind(self, params: Sequence[Param]) -> None:
        entries = [self._wanted] if isinstance(self._wanted, str) else list(self._wanted)
        if self._strict:
            self._params = find(params, entries, f"{self.where}: params")
            return
        known: set[str] = set()
        for entry in entries:
            try:
                known.update(param.tag for param in find(params, [entry], self.where))
            except OptionError:  # whoever is not strict does not mind what is not there
                continue
        self._params = [param for param in params if param.tag in known]


class SetValue(OfParameters):
    """One value, at its start."""

    def __init__(self, options: SetParamModifier) -> None:
        super().__init__(options)
        self._value = options.val

    def bind(self, params: Sequence[Param]) -> None:
        super().bind(params)
        demand_size(self._params, self._value, self.where)

    def begin(self, trainee: Trainee, epoch: float) -> None:
        for param in self._params:
            trainee.fill(param, self._value)


class LeadValue(OfParameters):
    """From a first to a last value, in a straight line."""

    def __init__(self, options: GradualParamModifier) -> None:
        super().__init__(options)
        self._first, self._last = options.init_val, options.final_val

    def bind(self, params: Sequence[Param]) -> None:
        super().bind(params)
        demand_size(self._params, self._first, self.where)

    def update(self, trainee: Trainee, epoch: float) -> None:
        share = self.span.progress(epoch)
        value = _between(self._first, self._last, share)
        for param in self._params:
            trainee.fill(param, value)


class Freeze(OfParameters):
    """Lets parameters train or stand still, and at its end do again what they did before."""

    def __init__(self, options: TrainableParamsModifier) -> None:
        super().__init__(options)
        self._trainable = options.trainable
        self._before: dict[str, bool] = {}

    def begin(self, trainee: Trainee, epoch: float) -> None:
        self._before = {param.tag: trainee.held(param) for param in self._params}
        for param in self._params:
            trainee.hold(param, not self._trainable)

    def end(self, trainee: Trainee) -> None:
        for param in self._params:
            trainee.hold(param, self._before[param.tag])

    def state(self) -> dict[str, Any]:
        return {**super().state(), "before": self._before}

    def restore(self, state: dict[str, Any], trainee: Trainee) -> None:
        super().restore(state, trainee)
        self._before = {str(tag): bool(held) for tag, held in state["before"].items()}


def demand_size(params: Sequence[Param], value: Value, where: str) -> None:
    for param in params:
        if not isinstance(value, (int, float)) and len(value) not in (1, param.size):
            raise OptionError(f"{where}: {param.name} has {param.size} numbers, not {len(value)}")


def _between(first: Value, last: Value, share: float) -> Value:
    if isinstance(first, (int, float)) and isinstance(last, (int, float)):
        return last if share == 1.0 else first + share * (last - first)
    assert not isinstance(first, (int, float))
    assert not isinstance(last, (int, float))
    return [_number(one, other, share) for one, other in zip(first, last)]


def _number(first: float, last: float, share: float) -> float:
    return last if share == 1.0 else first + share * (last - first)


def _size(value: float | tuple[float, ...]) -> int:
    return len(value) if isinstance(value, tuple) else 0


# -- How many epochs a run has, and when its sparsity is logged.


@dataclass(frozen=True)
class EpochRangeModifier(Scheduled):
    """Name the epochs of a run.

    - !EpochRangeModifier
      start_epoch: 0.0
      end_epoch: 70.0
    """

    name: ClassVar[str] = "EpochRangeModifier"

    start_epoch: float = REQUIRED
    end_epoch: float = REQUIRED

    def act(self) -> TimedAct:
        return TimedAct(self.called, self.span)


@dataclass(frozen=True)
class SparsificationLoggingModifier(Scheduled):
    """Tell how sparse the model is.

    - !SparsificationLoggingModifier
      start_epoch: 0.0
      update_frequency: 1.0
    """

    name: ClassVar[str] = "SparsificationLoggingModifier"

    unwritten: ClassVar[tuple[str, ...]] = ()

    start_epoch: float = REQUIRED
    update_frequency: float = 1.0

    def times_within(self, epochs: float, of: float) -> dict[str, Any]:
        """It tells as often in an epoch as before."""
        return scaled_epochs(self, ("start_epoch", "end_epoch"), epochs, of)

    def act(self) -> Telling:
        return Telling(self.called, self.span)


class Telling(TimedAct):
    """Says how sparse the model is."""

    def update(self, trainee: Trainee, epoch: float) -> None:
        trainee.tell(epoch)
