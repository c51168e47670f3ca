"""Gradual pruning: masks that are updated on a schedule until the goal is reached exactly.

1. At every update step each weight drops as many units as the schedule says, the smallest of `w * mask` first: what is
   pruned stays pruned while the level rises, unless `regrow` lets places come back. By `weights`, numbers keep what
   they were when they were hidden, and return when others have become smaller; by `gradient`, those return at 0 whose
   gradient is the largest.
2. At the end step the drop counts are those of the plan. From there on the masks stand still.
3. A learned sparser stands in for the weights until the end step; there the graph changes, each weight keeps as many
   places as the plan says, chosen by what was learned, and masks take over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse import schedules, sparsers
from onnxsparse.acts.act import MASK, Act, Run
from onnxsparse.acts.trainee import Trainee
from onnxsparse.engines.engine import Spec
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array
from onnxsparse.planning.plan import PlanRow
from onnxsparse.recipes.modifiers.modifier import Modifier
from onnxsparse.sparsers.mask_updates import Choice, exchange, renew, write
from onnxsparse.sparsers.sparser import Moment

PLAIN, CALIBRATED = "plain", "calibrated"
"""What a run starts from: the dense numbers, or calibrated ones under masks that stand still."""
REGROW = ("none", "weights", "gradient")


@dataclass(frozen=True)
class Pruning(Modifier):
    """Which zeros, how many, and when.

    - !pruning
      pattern: unstructured
      sparsity: 0.9
      allocation: erk
      schedule: cubic
    """

    name: ClassVar[str] = "pruning"
    pattern: str | None = None
    target: str | None = None
    sparsity: str | float | None = None
    allocation: str | None = None
    score: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    schedule: str | None = None
    start_sparsity: float = 0.0
    begin: float = 0.0
    end: float = 0.6
    updates: int = 60
    regrow: str = "none"
    regrow_share: float = 0.3
    sparser: str = MASK
    tie_equal: bool = False
    init: str = PLAIN

    def __post_init__(self) -> None:
        if not 0 <= self.begin <= self.end <= 1:
            raise OptionError(
                f"a schedule lies within 0 to 1 of the run and begins first, not {self.begin} to {self.end}"
            )
        if not 0 <= self.start_sparsity < 1:
            raise OptionError(f"start-sparsity lies from 0 to below 1, not at {self.start_sparsity}")
        if not 1 <= self.updates <= 10**9:
            raise OptionError(f"updates is a whole number from 1 to {10**9}, not {self.updates}")
        if self.regrow not in REGROW:
            raise OptionError(f"regrow is one of {', '.join(REGROW)}, not {self.regrow!r:.40}")
        if not 0 <= self.regrow_share <= 1:
            raise OptionError(f"regrow-share lies from 0 to 1, not at {self.regrow_share}")
        if self.init not in (PLAIN, CALIBRATED):
            raise OptionError(f"init is {CALIBRATED} or {PLAIN}, not {self.init!r:.40}")
        sparsers.parse(self.sparser)
        if self.schedule is not None:
            schedules.parse(self.schedule)

    def start(self, run: Run) -> Act:
        return PruningAct(self, run)


class PruningAct(Act):
    """The masks of a run, and what a sparser learns until they stand still."""

    def __init__(self, options: Pruning, run: Run) -> None:
        self._options, self._rows, self._total = options, run.planned, run.total
        self._score, self._seed = run.score, run.seed
        self._sparser = sparsers.parse(options.sparser)
        learns = self._sparser.name != MASK
        ramps = learns or not all(_is_fixed(row) for row in run.planned.values())
        self._schedule = schedules.parse(options.schedule or ("cubic" if ramps else "one-shot"))
        if not ramps and self._schedule.share(0.0) != 1.0:
            raise OptionError(
                f"schedule {options.schedule} needs a level that can rise; masks of a fixed level are set at once: "
                "leave --schedule out"
            )
        self._first = min(_rounded(options.begin * run.total), run.total - 1)
        self._last = self._end(learns)
        self._every = max(1, (self._last - self._first) // options.updates)
        self._learned = [tag for tag, row in self._rows.items() if learns and self._last > 0 and row.keep is None]
        self._settled: dict[str, tuple[Array, Array]] = {}

    def _end(self, learns: bool) -> int:
        """The step at which the goal is reached: at once where nothing ramps, nothing is learned and nothing grows."""
        grows = self._options.regrow != "none" and any(row.keep is None for row in self._rows.values())
        if self._schedule.share(0.0) == 1.0 and not learns and not grows:
            return self._first
        return min(max(_rounded(self._options.end * self._total), self._first), self._total - 1)

    def final_from(self, trainee: Trainee) -> int:
        """The first step whose masks are those of the plan."""
        return self._last

    # -- the graph

    def boundaries(self, trainee: Trainee) -> Iterable[int]:
        return (self._last,) if self._learned else ()

    def shape(self, trainee: Trainee, spec: Spec, step: int) -> Spec:
        learning = set(self._learned if step < self._last else ())
        mask = self._options.sparser if self._sparser.name == MASK else MASK
        return spec.with_sparsers({tag: self._options.sparser if tag in learning else mask for tag in self._rows})

    def leave(self, trainee: Trainee, step: int) -> None:
        """What was learned is settled: what stays of each weight, and the numbers it has then."""
        for tag in _live(trainee, self._learned) if step == self._last else ():
            weight, extra = trainee.weights[tag], _extra(trainee, tag)
            keep = self._sparser.keep(weight, extra, _open(weight), self._choice(tag, self._rows[tag].drop))
            self._settled[tag] = keep.reshape(-1), self._sparser.bake(weight, extra, keep)

    def enter(self, trainee: Trainee, step: int) -> None:
        for tag, (keep, numbers) in self._settled.items():
            weight = trainee.weights[tag]
            weight[...] = numbers
            write(weight, _mask(trainee, tag), keep)
            trainee.clear_moments(tag)
        self._settled = {}

    # -- the hooks

    def before_step(self, trainee: Trainee, step: int) -> None:
        if step < self._last:
            self._feed(trainee, step)
        if self._is_update(step):
            masked = _live(trainee, [tag for tag in self._rows if tag not in self._learned])
            self._renew(trainee, step, masked)

    def after_step(self, trainee: Trainee, step: int) -> None:
        tags = _live(trainee, self._learned) if step < self._last else []
        if tags:
            self._sparser.settle_all([_extra(trainee, tag) for tag in tags], self._budget(tags, step + 1))

    def _is_update(self, step: int) -> bool:
        inside = self._first <= step <= self._last
        return inside and (step == self._last or (step - self._first) % self._every == 0)

    def _renew(self, trainee: Trainee, step: int, tags: Sequence[str]) -> None:
        """New masks; optimizer state of what is masked is cleared."""
        given = [tag for tag in tags if self._rows[tag].keep is not None]
        chosen = [tag for tag in tags if self._rows[tag].keep is None]
        for tag in given:
            keep = self._rows[tag].keep
            assert keep is not None
            write(trainee.weights[tag], _mask(trainee, tag), keep.reshape(-1))
        if step < self._last and self._options.regrow == "gradient":
            self._exchange(trainee, step, chosen)
        else:
            self._choose(trainee, step, chosen)
        for tag in tags:
            trainee.clear_moments(tag, _mask(trainee, tag) == 0)

    def _choose(self, trainee: Trainee, step: int, tags: Sequence[str]) -> None:
        revive = step < self._last and self._options.regrow == "weights"
        for tag in tags:
            weight, mask, choice = trainee.weights[tag], _mask(trainee, tag), self._choice_at(tag, step)
            if revive:  # hidden numbers stay as they were, and may come back
                mask.reshape(-1)[...] = choice.keep(weight)
            else:
                renew(weight, mask, choice)

    def _exchange(self, trainee: Trainee, step: int, tags: Sequence[str]) -> None:
        """Drop to the level of the step, then regrow by the gradient that open masks have."""
        gains = trainee.dense_gradients(tags)
        share = self._options.regrow_share * (1 - self._progress(step))
        for tag in tags:
            weight, mask, choice = trainee.weights[tag], _mask(trainee, tag), self._choice_at(tag, step)
            renew(weight, mask, choice)
            if tag in gains:  # what stays still has no gradient to go by
                exchange(weight, mask, gains[tag], choice, share)
        trainee.discard_gradients()

    def _feed(self, trainee: Trainee, step: int) -> None:
        """What the sparser's frozen arrays hold in this step."""
        if step > 0 and not self._sparser.feeds:
            return
        for tag in _live(trainee, self._learned):
            weight, extra = trainee.weights[tag], _extra(trainee, tag)
            keep = _open(weight)
            if self._sparser.chooses:
                keep = self._sparser.keep(weight, extra, keep, self._choice_at(tag, step))
            moment = Moment(self._rows[tag].name, step, self._progress(step), self._seed)
            for role, array in self._sparser.feed(weight, extra, keep, moment).items():
                trainee.frozen[f"{tag}/{role}"][...] = array

    # -- how many go, and which

    def _choice(self, tag: str, drop: int) -> Choice:
        row = self._rows[tag]
        assert row.pattern is not None
        return Choice(row.pattern, self._score.bind(row.name), drop, row.use.matrix, row.use.restore)

    def _choice_at(self, tag: str, step: int) -> Choice:
        """As many units as the schedule says at a step, which is the plan's own number where nothing can rise."""
        row = self._rows[tag]
        share = 1.0 if _is_fixed(row) else self._share(step)
        return self._choice(tag, row.drop if share == 1.0 else _rounded(share * row.drop))

    def _share(self, step: int) -> float:
        """How much of the way has been gone before a step."""
        return self._schedule.level(self._options.start_sparsity, 1.0, self._progress(step))

    def _progress(self, step: int) -> float:
        return 1.0 if step >= self._last else (step - self._first) / max(1, self._last - self._first)

    def _budget(self, tags: Sequence[str], step: int) -> float:
        """How many elements of these weights may stay before a step."""
        size = sum(self._rows[tag].weight.tensor.size for tag in tags)
        return size - self._share(step) * sum(_elements(self._rows[tag]) for tag in tags)


def _is_fixed(row: PlanRow) -> bool:
    """Whether there is no level that could rise."""
    return row.pattern is None or not row.pattern.takes_sparsity or row.keep is not None


def _elements(row: PlanRow) -> int:
    """How many elements of a weight go in the end."""
    assert row.pattern is not None
    return row.pattern.dropped(row.use.shape4, row.drop) if row.pattern.takes_sparsity else row.drop


def _live(trainee: Trainee, tags: Sequence[str]) -> list[str]:
    return [tag for tag in tags if tag in trainee.weights]


def _mask(trainee: Trainee, tag: str) -> Array:
    return trainee.frozen[f"{tag}/{MASK}"]


def _extra(trainee: Trainee, tag: str) -> dict[str, Array]:
    """What is trained beside a weight."""
    prefix = f"{tag}/"
    return {key[len(prefix) :]: array for key, array in trainee.weights.items() if key.startswith(prefix)}


def _open(weight: Array) -> Array:
    """A mask that keeps everything, and takes no memory."""
    return np.broadcast_to(np.float32(1), weight.shape)


def _rounded(number: float) -> int:
    return math.floor(number + 0.5)
