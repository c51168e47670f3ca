"""Masks of a recipe at one epoch, applied to a file that is not trained.

1. Every modifier that masks acts as it would before the step at that epoch, by the weights as they are. Its clock says
   when: at its start, by its frequency, at its end. With steps per epoch they are those steps, which may drift (see
   `schedules.clock`); without, the moments themselves.
2. Masks whose level rises are chosen once, at the last of these times: those of earlier times lie inside of them.
3. Without a moment the recipe is over, and what should have happened by its end has happened.
4. What was masked before counts as zero. Weights are never changed; rates and what else a recipe says mask nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from onnxsparse.acts.act import TimedAct
from onnxsparse.acts.params import Param
from onnxsparse.acts.trainee import Groups, Trainee
from onnxsparse.errors import OptionError
from onnxsparse.graph.model import Model
from onnxsparse.math.values import Array
from onnxsparse.patterns.nm import NMRamp, NOfM
from onnxsparse.patterns.pattern import Pattern
from onnxsparse.patterns.unstructured import Unstructured
from onnxsparse.recipes.modifiers.constant import HeldZeros
from onnxsparse.recipes.modifiers.layer_thinning import ThinLayers
from onnxsparse.recipes.modifiers.magnitude import Gradual
from onnxsparse.recipes.modifiers.modifier import Scheduled
from onnxsparse.recipes.modifiers.structured import Structured
from onnxsparse.recipes.plan_by_epochs import params_of
from onnxsparse.schedules import NEVER, Clock, epoch_at

RISING = (Gradual, Structured)
MOST = 1_000_000
"""Times at which one modifier may act."""


@dataclass(frozen=True, eq=False)
class AtEpoch:
    """By tag: what is kept, and the pattern of it; and the parameters."""

    params: Sequence[Param]
    masks: Mapping[str, Array]
    patterns: Mapping[str, Pattern]


def at_epoch(
    model: Model,
    modifiers: Iterable[Scheduled],
    epoch: float | None,
    per_epoch: int | None = None,
    before: Mapping[str, Array] | None = None,
) -> AtEpoch:
    """The masks of a recipe's modifiers at an epoch, or when it is over; `before` has those of the file, by name."""
    trainee = FileTrainee(params_of(model), before or {})
    acts = []
    for modifier in modifiers:
        act = modifier.act()
        if isinstance(act, ThinLayers):  # it changes what is delivered, by masks that others make
            continue
        act.bind(trainee.params)
        trainee.demand(act)
        trainee.admit(act)
        if list(act.masked()):
            acts.append(act)
    for event in _events(acts, epoch, per_epoch):
        event(trainee)
    masks = {tag: keep for tag, keep in trainee.masks.items() if not keep.all()}
    patterns = {tag: _pattern(acts, tag) for tag in masks}
    return AtEpoch(trainee.params, masks, patterns)


def _pattern(acts: Sequence[TimedAct], tag: str) -> Pattern:
    """That of the one act that masks it; several share nothing but single numbers."""
    goals = [goal for act in acts for one, goal in act.final_masks().items() if one == tag]
    first: Pattern = goals[0].pattern if len(goals) == 1 and goals[0].keep is None else Unstructured()
    return first


@dataclass(frozen=True)
class _Event:
    """One act at one of its times."""

    epoch: float
    place: int
    act: TimedAct
    begins: bool
    ends: bool

    def __call__(self, trainee: Trainee) -> None:
        if self.begins:
            self.act.begin(trainee, self.epoch)
        self.act.update(trainee, self.epoch)
        if self.ends:
            self.act.end(trainee)


def _events(acts: Sequence[TimedAct], epoch: float | None, per_epoch: int | None) -> list[_Event]:
    """Everything that happens until an epoch, in the order in which it does."""
    last = _last(acts) if epoch is None else epoch
    found: list[_Event] = []
    for place, act in enumerate(acts):
        if not isinstance(act, HeldZeros):
            found += _of(act, place, _times(act, last, per_epoch))
    times = sorted({event.epoch for event in found} | {last})
    for place, act in enumerate(acts):
        if isinstance(act, HeldZeros):  # it looks at every step; what others do is all that changes
            first = _first_step(act.span.start, per_epoch)
            found += _of(act, place, sorted({first, *(one for one in times if one >= first)} if first <= last else ()))
    return sorted(found, key=lambda event: (event.epoch, event.place))


def _last(acts: Sequence[TimedAct]) -> float:
    return max((max(act.span.start, act.span.end, 0.0) for act in acts), default=0.0)


def _of(act: TimedAct, place: int, times: Iterable[float]) -> list[_Event]:
    clock, found = Clock(act.span), list[_Event]()
    for time in times:
        tick = clock.tick(time)
        if tick is not None:
            found.append(_Event(time, place, act, tick.begins, tick.ends))
    if type(act) in RISING and len(found) > 2:
        return [found[0], found[-1]]
    return found


def _first_step(start: float, per_epoch: int | None) -> float:
    """The epoch of the first step that is not before a start."""
    start = max(start, 0.0)
    if per_epoch is None:
        return start
    near = max(0, int(start * per_epoch) - 1)
    return next(at for step in range(near, near + 3) if (at := epoch_at(step, per_epoch)) >= start)


def _times(act: TimedAct, last: float, per_epoch: int | None) -> list[float]:
    """The epochs at which an act may do something, until one."""
    span = act.span
    end = min(last, span.end) if span.end >= 0 else last
    if per_epoch is not None:
        # The end is acted on at the first step that is not before it.
        stop = _first_step(span.end, per_epoch) if span.end >= 0 else last
        steps = range(int(max(span.start, 0.0) * per_epoch), int(min(stop, last) * per_epoch) + 2)
        _demand_few(len(steps), act)
        return [time for step in steps if (time := epoch_at(step, per_epoch)) <= last]
    if span.start > last:
        return []
    times = [max(span.start, 0.0)]
    if span.frequency == NEVER:
        return sorted({*times, end})
    if span.frequency > 0:
        _demand_few((end - times[0]) / span.frequency, act)
    while span.frequency > 0 and times[-1] + span.frequency <= end:
        times.append(times[-1] + span.frequency)
    return sorted({*times, end} if span.end >= 0 and end == span.end else times)


def _demand_few(count: float, act: TimedAct) -> None:
    if count > MOST:
        raise OptionError(f"{act.where}: it acts more than {MOST} times until then; raise its update_frequency")


class FileTrainee(Trainee):
    """The parameters of a file, which no step moves, with masks over them."""

    moves = False

    def __init__(self, params: Sequence[Param], before: Mapping[str, Array]) -> None:
        super().__init__()
        self.params, self.per_epoch, self.masks = params, 1, dict[str, Array]()
        self._before = {param.tag: before[param.name].reshape(-1) for param in params if param.name in before}
        self._live: dict[str, Array] = {}

    def demand(self, act: TimedAct) -> None:
        if act.by_gradients:
            raise OptionError(
                f"{act.where}: it goes by gradients, and a file that is not trained has none; train with the recipe, "
                "or take it out"
            )

    def numbers(self, param: Param) -> Array:
        """The numbers of the file; what is or was masked is zero, and stays so when a mask goes, as in training."""
        if param.tag not in self._live:
            assert param.numbers is not None
            numbers = np.array(param.numbers(), np.float32).reshape(-1)
            keep = self._before.get(param.tag)
            self._live[param.tag] = numbers if keep is None else np.where(keep, numbers, np.float32(0))
        return self._live[param.tag]

    def mask(self, param: Param) -> Array | None:
        return self.masks.get(param.tag)

    def put(self, param: Param, keep: Array) -> None:
        self.renewals[param.tag] += 1
        self.masks[param.tag] = np.array(keep, bool).reshape(-1)
        self._live[param.tag] = np.where(self.masks[param.tag], self.numbers(param), np.float32(0))

    def release(self, param: Param) -> None:
        self.renewals[param.tag] += 1
        self.masks.pop(param.tag, None)

    def fill(self, param: Param, value: float | Sequence[float] | Array) -> None:
        """Nothing is trained."""

    def forget(self, param: Param) -> None:
        """There is no optimizer."""

    def forget_momentum(self) -> None:
        """There is no optimizer."""

    def held(self, param: Param) -> bool:
        return False

    def hold(self, param: Param, still: bool) -> None:
        """Nothing moves."""

    def rates(self, groups: Groups) -> list[float]:
        return [0.0]

    def set_rates(self, rates: Sequence[float], groups: Groups) -> None:
        """There is no optimizer."""

    def set_decay(self, decay: float, groups: Groups) -> None:
        """There is no optimizer."""

    def tell(self, epoch: float) -> None:
        """Nobody listens."""


def held_by(pattern: Pattern, zero: Array) -> tuple[Pattern, int]:
    """The pattern that zeros have, and how many of its units they are: a ramp of N:M on its way is no N:M yet."""
    if isinstance(pattern, (NOfM, NMRamp)):
        fixed = pattern.whole if isinstance(pattern, NMRamp) else pattern
        drop = fixed.drop_count(zero.shape, None)
        return (Unstructured(), int(np.count_nonzero(zero))) if fixed.violations(zero, drop) else (fixed, drop)
    units = pattern.units(zero.shape)
    return pattern, units - pattern.violations(zero, units).count
