"""The levels modifier: sparsity levels one after the other in one run, each delivered when it is trained.

1. Stage k of n begins at step k * total // n. There each weight drops as many units as its level says, the smallest of
   `w * mask` first; until the next stage no mask moves. With `calibrates` the network as it is now is calibrated for
   the level, too, and the better of both on the samples held out is what the stage begins with.
2. The learning rate and its warm-up begin again with every stage; where nobody says a rate, it goes by how much of the
   level's numbers are gone.
3. When the last step of a stage is done, before any checkpoint of that step, the run says so: one that is killed and
   resumed hands over every level, and no level of another state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from onnxsparse import rates
from onnxsparse.acts import weights
from onnxsparse.acts.act import MASK, Act, Run
from onnxsparse.acts.trainee import Trainee
from onnxsparse.engines.engine import Spec
from onnxsparse.errors import MissingExtraError, ModelError, OptionError
from onnxsparse.math.values import Array
from onnxsparse.rates import factor_at
from onnxsparse.recipes.modifiers.modifier import Modifier
from onnxsparse.schedules import Stages
from onnxsparse.sparsers.mask_updates import renew, write

Arrays = Mapping[str, Array]
TABLE = "30,40,50,60,70,80,90"


def read_levels(text: str) -> tuple[float, ...]:
    """Levels in per cent, ascending, from 0 to below 100."""
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(0 <= one < 100 for one in found) or any(a >= b for a, b in zip(found, found[1:])):
        raise OptionError(
            f"levels are per cents that ascend, each from 0 to below 100, such as {TABLE}; not {text:.60}"
        )
    if any(0 < one < 1 for one in found):
        meant = ",".join(f"{100 * one if one < 1 else one:g}" for one in found)
        raise OptionError(f"levels are in per cent, not shares; did you mean {meant}?")
    return found


@dataclass(frozen=True)
class Levels(Modifier):
    """One level after the other, each with a stage of the run.

    - !levels
      levels: 30,50,70,90
    """

    name: ClassVar[str] = "levels"
    levels: str = TABLE

    def __post_init__(self) -> None:
        read_levels(self.levels)

    def start(self, run: Run) -> Act:
        if not run.task.levels:
            raise OptionError(
                "!levels is the record of an `onnxsparse levels`, and finetune does not run it: call that with the "
                f"options that stand here, --levels {self.levels} and the others"
            )
        return LevelsAct(self, run)


class LevelsAct(Act):
    """The masks of a run through levels, and the learning rate that begins again with each."""

    def __init__(self, options: Levels, run: Run) -> None:
        self._run, self._rows, self._score, self._drops = run, run.planned, run.score, run.task.levels
        self._levels = read_levels(options.levels)
        self.stages = Stages(run.total, len(self._levels))
        self._schedule, self._training = rates.parse(run.training.schedule_here), run.training
        size = sum(row.weight.tensor.size for row in run.planned.values())
        gone = [sum(self._drops[tag][stage] for tag in run.planned) for stage in range(self.stages.count)]
        self._shares = [count / max(size, 1) for count in gone]

    def final_from(self, trainee: Trainee) -> int:
        return self.stages.begin(self.stages.count - 1)

    def shape(self, trainee: Trainee, spec: Spec, step: int) -> Spec:
        return spec.with_sparsers(dict.fromkeys(self._rows, MASK))

    def before_step(self, trainee: Trainee, step: int) -> None:
        stage = self.stages.at(step)
        if self.stages.begins(step):
            self._enter(trainee, stage)
        at, length = step - self.stages.begin(stage), self.stages.length(stage)
        factor = factor_at(self._schedule, at, length, trainee.per_epoch, self._training.warm_up_at(length))
        rate = self._training.base_rate(self._shares[stage]) * trainee.caution * factor
        trainee.settings = replace(trainee.settings, rate=rate)

    def ended(self, step: int) -> Iterable[int]:
        return [self.stages.at(step)] if self.stages.ends(step) else []

    def _enter(self, trainee: Trainee, stage: int) -> None:
        """The masks of a level; optimizer state of what is masked is cleared."""
        found = self._calibrated(stage)
        for tag, row in weights.live(trainee, self._rows):
            renew(trainee.weights[tag], _mask(trainee, tag), weights.choice(row, self._score, self._drops[tag][stage]))
        if found is not None:
            self._take_better(trainee, stage, *found)
        for tag, _ in weights.live(trainee, self._rows):
            trainee.clear_moments(tag, _mask(trainee, tag) == 0)

    def _calibrated(self, stage: int) -> tuple[Arrays, Arrays] | None:
        """Masks and numbers for a level, of the network that the level before it left."""
        if not self._run.task.calibrates:
            return None
        try:
            return self._run.recalibrated({tag: drops[stage] for tag, drops in self._drops.items()})
        except (ModelError, MissingExtraError) as error:
            self._run.note(f"level {self._levels[stage]:g} does not start from a calibration: {error}")
            return None

    def _take_better(self, trainee: Trainee, stage: int, masks: Arrays, numbers: Arrays) -> None:
        """The calibrated network, unless it does worse on the samples held out than the pruned one that is there."""
        before = {tag: trainee.weights[tag].copy() for tag in {*masks, *numbers}}
        kept = {tag: (_mask(trainee, tag) != 0).reshape(-1) for tag in masks}
        pruned = self._run.probe_loss()
        _put(trainee, masks, numbers)
        if not self._run.probe_loss() <= pruned:
            _put(trainee, kept, before)
            self._run.note(f"level {self._levels[stage]:g} starts plainly pruned, which does better than calibrated")


def _put(trainee: Trainee, masks: Arrays, numbers: Arrays) -> None:
    for tag, array in numbers.items():
        trainee.weights[tag][...] = array
    for tag, keep in masks.items():
        write(trainee.weights[tag], _mask(trainee, tag), keep)


def _mask(trainee: Trainee, tag: str) -> Array:
    return trainee.frozen[f"{tag}/{MASK}"]
