"""Levels, one after the other in one run: each begins with its masks, and is handed over when it is trained.

1. Stage k of n begins at step k * total // n. There each weight drops as many units as its level says, the smallest of
   `w * mask` first; until the next stage no mask moves.
2. The learning rate and its warm-up begin again with every stage; where nobody says a rate, it goes by how much of the
   level's numbers are gone.
3. When the last step of a stage is done, before any checkpoint of that step, the run's milestone is called: a run that
   is killed and resumed hands over every level, and no level of another state.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from onnxsparse import rates
from onnxsparse.engines.spec import Spec
from onnxsparse.errors import OptionError
from onnxsparse.modifiers.modifier import Modifier, Part
from onnxsparse.rates import factor_at
from onnxsparse.runs import weights
from onnxsparse.schedules import Stages
from onnxsparse.sparsers.mask_updates import renew

if TYPE_CHECKING:
    from onnxsparse.runs.run import Run

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

    def start(self, run: Run) -> Part:
        if not run.job.levels:
            raise OptionError(
                "!levels is the record of an `onnxsparse levels`, and finetune does not run it: call that with the "
                f"options that stand here, --levels {self.levels} and the others"
            )
        return LevelsPart(self, run)


class LevelsPart(Part):
    """The masks of a run through levels."""

    def __init__(self, options: Levels, run: Run) -> None:
        self._run = run
        self.stages = Stages(run.total, len(read_levels(options.levels)))
        training = run.training
        self._schedule, self._training = rates.parse(training.schedule_here), training
        size = sum(row.weight.tensor.size for row in run.planned.values())
        gone = [sum(run.job.levels[tag][stage] for tag in run.planned) for stage in range(self.stages.count)]
        self._shares = [count / max(size, 1) for count in gone]

    @property
    def final_from(self) -> int:  # type: ignore[override]
        return self.stages.begin(self.stages.count - 1)

    def shape(self, spec: Spec, step: int) -> Spec:
        return spec.with_sparsers(dict.fromkeys(self._run.planned, "mask"))

    def before_step(self, step: int) -> None:
        stage, run = self.stages.at(step), self._run
        if self.stages.begins(step):
            self._enter(stage)
        at, length = step - self.stages.begin(stage), self.stages.length(stage)
        factor = factor_at(self._schedule, at, length, run.per_epoch, self._training.warm_up_at(length))
        run.pace = replace(run.pace, rate=self._training.base_rate(self._shares[stage]) * run.caution * factor)

    def after_update(self, step: int) -> None:
        if self.stages.ends(step) and self._run.job.milestone is not None:
            self._run.job.milestone(self.stages.at(step), self._run.engine)

    def _enter(self, stage: int) -> None:
        """The masks of a level; moments of what is masked are forgotten."""
        engine = self._run.engine
        for tag, row in weights.live(engine, self._run.planned):
            weight, mask = engine.weights[tag], engine.frozen[f"{tag}/mask"]
            renew(weight, mask, weights.choice(row, self._run.score, self._run.job.levels[tag][stage]))
            engine.clear_moments(tag, mask == 0)
