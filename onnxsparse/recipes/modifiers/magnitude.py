"""Gradual magnitude pruning: its options and what it does, each parameter by itself or all of them together.

1. From `start_epoch` on the sparsity is `init_sparsity`, at `end_epoch` `final_sparsity`; between them it rises as
   `inter_func` says, with new masks every `update_frequency` epochs, chosen from what is not zero yet.
2. `init_sparsity: __FROM_PARAM__` begins with the zeros that each weight has, or had before the run, which may have
   trained until then.
3. `final_sparsity` may be a mapping of levels to names, with `params: []`.
4. With `leave_enabled: false` the masks are let go at `end_epoch`, and the zeros with them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Union

import numpy as np

from onnxsparse import schedules
from onnxsparse.acts.act import FinalMask, TimedAct
from onnxsparse.acts.params import Param, find, named
from onnxsparse.acts.trainee import Trainee
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array
from onnxsparse.patterns.nm import NMRamp
from onnxsparse.patterns.pattern import Pattern
from onnxsparse.recipes.modifiers.masked import (
    Masked,
    demand_levels,
    drop_of,
    drops_together,
    keep_of,
    no_unit,
    pattern_of,
)
from onnxsparse.recipes.modifiers.modifier import (
    REQUIRED,
    WrongOptionError,
    demand_between,
    demand_end,
    demand_inside,
    demand_known,
    demand_positive,
    number,
)

FinalLevels = Union[float, Mapping[float, Sequence[str]]]
FROM_PARAM = "__FROM_PARAM__"
CUBIC = "cubic"
RISES = ("linear", CUBIC, "inverse_cubic")
# cubic, of a share t of the way: last + (first - last) * (1 - t)^3 (Zhu and Gupta, 2017, equation 1)
MAGNITUDE = "magnitude"
OTHERS = {
    "movement": "; movement has its own, !MovementPruningModifier",
    "MFAC": "; M-FAC has its own, !MFACPruningModifier",
    "OBS": "; OBS has its own, !OBSPruningModifier",
}


@dataclass(frozen=True)
class GradualPruning(Masked):
    """A modifier that prunes more and more."""

    init_sparsity: float | str = REQUIRED
    final_sparsity: float | dict[float, tuple[str, ...]] = REQUIRED
    leave_enabled: bool = True
    inter_func: str = CUBIC

    def check(self) -> None:
        super().check()
        self._check_first_level()
        demand_known("inter_func", self.inter_func, RISES)
        demand_levels(self, "final_sparsity", self.final_sparsity)

    def by_magnitude(self, together: bool) -> Gradual:
        """What goes are the smallest numbers, of all weights together or of each."""
        return Gradual(self, self.init_sparsity, self.final_sparsity, self.inter_func, together, self.leave_enabled)

    def _check_first_level(self) -> None:
        """A number in quotes is one; any other text is the one word."""
        first = self.init_sparsity
        if isinstance(first, str) and first != FROM_PARAM:
            read = number(first)
            if read is None:
                raise WrongOptionError(
                    "init_sparsity", f"it is a number from 0 to 1 or {FROM_PARAM}, not {first!r:.40}"
                )
            object.__setattr__(self, "init_sparsity", read)
        if not isinstance(self.init_sparsity, str):
            demand_between("init_sparsity", self.init_sparsity, 0, 1)


@dataclass(frozen=True)
class GMPruningModifier(GradualPruning):
    """Prune by magnitude, more and more.

    - !GMPruningModifier
      start_epoch: 0.0
      end_epoch: 40.0
      update_frequency: 1.0
      init_sparsity: 0.05
      final_sparsity: 0.85
      params: __ALL_PRUNABLE__
    """

    name: ClassVar[str] = "GMPruningModifier"

    global_sparsity: bool = False
    phased: bool = False
    score_type: str = MAGNITUDE

    def check(self) -> None:
        super().check()
        if self.phased:
            raise WrongOptionError("phased", "phases are what !ACDCPruningModifier has")
        if self.score_type != MAGNITUDE:
            raise WrongOptionError("score_type", f"it is {MAGNITUDE} here{OTHERS.get(self.score_type, '')}")

    def act(self) -> Gradual:
        return self.by_magnitude(together=self.global_sparsity)


@dataclass(frozen=True)
class MagnitudePruningModifier(GradualPruning):
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

    def act(self) -> Gradual:
        return self.by_magnitude(together=False)


@dataclass(frozen=True)
class GlobalMagnitudePruningModifier(GradualPruning):
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

    def act(self) -> Gradual:
        return self.by_magnitude(together=True)


class Gradual(TimedAct):
    """New masks at every update, chosen from what is not zero yet."""

    def __init__(
        self, options: Masked, first: float | str, last: FinalLevels, rise: str, together: bool, leave_enabled: bool
    ) -> None:
        super().__init__(options.called, options.span)
        self._wanted, self._mask_type, self._first, self._last = options.params, options.mask_type, first, last
        self._schedule = schedules.parse(rise.replace("_", "-"))
        self._together, self._stays = together, leave_enabled
        self._params: list[Param] = []
        self._small: list[Param] = []
        self._left: dict[str, str] = {}
        self._own_first: dict[str, float] = {}
        self._zeros: dict[str, float] = {}

    def bind(self, params: Sequence[Param]) -> None:
        self._levels = self._levels_of(params)
        self._params = self._fitting([param for param in params if param.tag in self._levels])
        small = [param for param in self._params if param.is_small]
        own = self._named(params) if small else set()
        self._small = [param for param in small if param.tag not in own]
        self._patterns = [pattern_of(self._mask_type, param, self.where) for param in self._params]
        if self._first == FROM_PARAM:
            self._zeros = {param.tag: _zeros(param.numbers()) for param in self._params if param.numbers is not None}
        if self._together and len(set(self._levels.values())) > 1:
            raise OptionError(f"{self.where}: weights that are pruned together have one final_sparsity")
        if self._together and any(isinstance(one, NMRamp) for one in self._patterns):
            raise OptionError(f"{self.where}: N:M is the same in every weight; leave global_sparsity out")

    def _fitting(self, params: Sequence[Param]) -> list[Param]:
        """Those that hold a unit of the mask; whoever has none stays dense, unless it was named."""
        reasons = {param.tag: reason for param in params if (reason := no_unit(self._mask_type, param))}
        own = self._named(params) if reasons else set()
        for param in params:
            if param.tag in reasons and (param.tag in own or len(reasons) == len(params)):
                raise OptionError(
                    f"{self.where}: {param.name} cannot have mask_type {self._mask_type}: {reasons[param.tag]}"
                )
        self._left = reasons
        return [param for param in params if param.tag not in reasons]

    def _named(self, params: Sequence[Param]) -> set[str]:
        """The tags of those among some that are meant by their own names."""
        by_level = list(self._last.values()) if isinstance(self._last, Mapping) else [self._wanted]
        return {tag for names in by_level for tag in named(params, names, self.where)}

    def scales_and_biases(self) -> list[Param]:
        return self._small

    def left_dense(self) -> dict[str, str]:
        return self._left

    def _levels_of(self, params: Sequence[Param]) -> dict[str, float]:
        """The last level of each parameter; the first that names it counts."""
        if not isinstance(self._last, Mapping):
            return {param.tag: self._last for param in find(params, self._wanted, f"{self.where}: params")}
        found: dict[str, float] = {}
        for level, names in self._last.items():
            for param in find(params, names, f"{self.where}: final_sparsity"):
                found.setdefault(param.tag, level)
        return found

    def masked(self) -> list[Param]:
        return self._params

    def final_masks(self) -> dict[str, FinalMask]:
        drops = self._drops(self.levels_at(1.0), self._stored() if self._together else None)
        found = {}
        for param, pattern, drop in zip(self._params, self._patterns, drops):
            if isinstance(pattern, NMRamp):  # it counts groups, and the pattern that it comes to counts numbers
                whole = pattern.whole
                pattern, drop = whole, whole.drop_count(param.shape4, None)
            found[param.tag] = FinalMask(pattern, drop, None, self._together, self._stays)
        return found

    def _stored(self) -> list[Array]:
        """The numbers that the parameters begin with."""
        return [param.numbers().reshape(-1) for param in self._params if param.numbers is not None]

    def begin(self, trainee: Trainee, epoch: float) -> None:
        if self._first == FROM_PARAM:
            now = {param.tag: _zeros(trainee.numbers(param)) for param in self._params}
            self._own_first = {tag: max(level, self._zeros.get(tag, 0.0)) for tag, level in now.items()}

    def update(self, trainee: Trainee, epoch: float) -> None:
        self.prune(trainee, self.levels_at(self.span.progress(epoch)))

    def prune(self, trainee: Trainee, levels: Sequence[float]) -> None:
        """New masks, with a level for each parameter."""
        places = range(len(self._params))
        numbers = [self.chosen_by(trainee, place) for place in places] if self._together else None
        drops = self._drops(levels, numbers)
        self.put(trainee, (self._keep(trainee, place, drop) for place, drop in zip(places, drops)))

    def chosen_by(self, trainee: Trainee, place: int) -> Array:
        """The numbers by which the mask of a parameter is chosen: those of the smallest size go."""
        return trainee.numbers(self._params[place])

    def put(self, trainee: Trainee, keeps: Iterable[Array]) -> None:
        """The masks of all parameters, one after the other."""
        for param, keep in zip(self._params, keeps):
            trainee.put_for(self, param, keep)

    def levels_at(self, progress: float) -> list[float]:
        """The level of each parameter at a share of the way."""
        return [self._level(param, progress) for param in self._params]

    def _keep(self, trainee: Trainee, place: int, drop: int) -> Array:
        return keep_of(self._patterns[place], self._params[place], self.chosen_by(trainee, place), drop)

    def end(self, trainee: Trainee) -> None:
        if not self._stays:
            for param in self._params:
                trainee.release_for(self, param)

    def _drops(self, levels: Sequence[float], numbers: Sequence[Array] | None) -> list[int]:
        if numbers is not None and levels:
            # One threshold for all: what is small anywhere goes first, so counts depend on the numbers.
            return drops_together(self._patterns, self._params, numbers, levels[0])
        return [self._drop(*each) for each in zip(self._patterns, self._params, levels)]

    def _drop(self, pattern: Pattern, param: Param, level: float) -> int:
        # N:M is exactly 1 - N/M in the end, whatever rounded number the recipe has: 0.33 means 1/3 for 2:3.
        if isinstance(pattern, NMRamp) and level == self._levels[param.tag]:
            return pattern.units(param.shape4)
        return drop_of(pattern, param, level)

    def _level(self, param: Param, progress: float) -> float:
        first = self._own_first.get(param.tag, 0.0) if isinstance(self._first, str) else self._first
        return self._schedule.level(first, self._levels[param.tag], progress)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "first": self._own_first}

    def restore(self, state: dict[str, Any], trainee: Trainee) -> None:
        super().restore(state, trainee)
        self._own_first = {str(tag): float(level) for tag, level in state["first"].items()}


def _zeros(numbers: Array) -> float:
    return 1.0 - np.count_nonzero(numbers) / max(1, numbers.size)


# -- AC/DC pruning: pruned and dense by turns, and pruned in the end.
#
# 1. Phases last `update_frequency` epochs; the first, third, ... are dense, but for the last one before the end.
# 2. In a dense phase nothing is masked, and what was pruned grows again from zero.
# 3. With `momentum_buffer_reset` the momentum of everything that trains is zero after the first step of a dense phase,
#    as SparseML has it: that step still goes by the momentum from before the mask. `momentum_reset_at: phase` clears
#    what the optimizer knows of the pruned weights before that step, and of masked places when they are masked.


FIRST_STEP, PHASE = "first_step", "phase"


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

    unwritten: ClassVar[tuple[str, ...]] = ("momentum_reset_at",)

    compression_sparsity: float = REQUIRED
    global_sparsity: bool = True
    leave_enabled: bool = True
    momentum_buffer_reset: bool = True
    momentum_reset_at: str = FIRST_STEP

    def check(self) -> None:
        super().check()
        for option in ("start_epoch", "end_epoch", "update_frequency"):
            if not getattr(self, option).is_integer():
                raise WrongOptionError(option, f"phases last whole epochs, so it is no {getattr(self, option):g}")
        demand_positive("update_frequency", self.update_frequency)
        demand_known("momentum_reset_at", self.momentum_reset_at, (FIRST_STEP, PHASE))
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
        self._at = options.momentum_reset_at
        self._resets = options.momentum_buffer_reset
        self._dense, self._stale = True, False

    def is_dense(self, epoch: float) -> bool:
        if epoch >= self.span.end - self.span.frequency:
            return False  # the last phase is pruned, so that the weights have time to settle under the final mask
        return math.floor((epoch - self.span.start) / self.span.frequency) % 2 == 0

    def remembered(self) -> list[Param]:
        return self._params if self._at == FIRST_STEP else []

    def update(self, trainee: Trainee, epoch: float) -> None:
        self._dense = self.is_dense(epoch)
        if not self._dense:
            self._stale = True
            super().update(trainee, epoch)
            return
        for param in self._params:
            trainee.release_for(self, param)
            if self._resets and self._at == PHASE:
                trainee.forget(param)

    def after(self, trainee: Trainee) -> None:
        if self._dense and self._stale and self._resets and self._at == FIRST_STEP:
            trainee.forget_momentum()
            self._stale = False

    def state(self) -> dict[str, Any]:
        return {**super().state(), "dense": self._dense, "stale": self._stale}

    def restore(self, state: dict[str, Any], trainee: Trainee) -> None:
        super().restore(state, trainee)
        self._dense, self._stale = bool(state.get("dense", True)), bool(state.get("stale", False))
