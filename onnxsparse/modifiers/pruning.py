"""Masks that move on a schedule until the goal is reached exactly.

1. At every update step each weight drops as many units as the schedule says, the smallest of `w * mask` first: what is
   pruned stays pruned while the level rises, unless `regrow` lets places come back.
2. At the end step the drop counts are those of the plan. From there on the masks stand still.
3. A learned sparser stands in for the weights until the end step; there the graph changes, each weight keeps as many
   places as the plan says, chosen by what was learned, and masks take over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from onnxsparse import schedules, sparsers
from onnxsparse.engines.spec import Spec
from onnxsparse.errors import OptionError
from onnxsparse.modifiers.modifier import Modifier, Part
from onnxsparse.passes.plan import PlanRow
from onnxsparse.sparsers.renewal import Choice, exchange, renew, write
from onnxsparse.sparsers.sparser import Moment
from onnxsparse.values import Array

if TYPE_CHECKING:
    from onnxsparse.runs.run import Run

MASK = "mask"
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

    def __post_init__(self) -> None:
        if not 0 <= self.begin <= self.end <= 1:
            raise OptionError(
                f"a schedule lies within 0 to 1 of the run and begins first, not {self.begin} to {self.end}"
            )
        if not 0 <= self.start_sparsity < 1:
            raise OptionError(f"start-sparsity lies from 0 to below 1, not at {self.start_sparsity}")
        if not 1 <= self.updates <= 10**9:
            raise OptionError(f"updates is a whole number from 1, not {self.updates}")
        if self.regrow not in REGROW:
            raise OptionError(f"regrow is one of {', '.join(REGROW)}, not {self.regrow!r:.40}")
        if not 0 <= self.regrow_share <= 1:
            raise OptionError(f"regrow-share lies from 0 to 1, not at {self.regrow_share}")
        sparsers.parse(self.sparser)
        if self.schedule is not None:
            schedules.parse(self.schedule)

    def start(self, run: Run) -> Part:
        return PruningPart(self, run)


class PruningPart(Part):
    """The masks of a run."""

    def __init__(self, options: Pruning, run: Run) -> None:
        self._options, self._run = options, run
        self._rows = run.planned
        self._sparser = sparsers.parse(options.sparser)
        self._learns = self._sparser.name != MASK
        fixed = all(_is_fixed(row) for row in run.planned.values())
        self._schedule = schedules.parse(options.schedule or ("one-shot" if fixed else "cubic"))
        if fixed and options.schedule is not None and self._schedule.name not in ("one-shot", "constant"):
            raise OptionError(
                f"schedule {options.schedule} needs a level that can rise; masks of a fixed level are set at once: "
                "leave --schedule out"
            )
        self._first = math.floor(options.begin * run.total + 0.5)
        self._last = self._end()
        self._every = max(1, (self._last - self._first) // options.updates)

    def _end(self) -> int:
        """The step at which the goal is reached: at once where nothing ramps and nothing is learned."""
        at_once = self._schedule.share(0.0) == 1.0 and not self._learns and self._options.regrow == "none"
        end = math.floor(self._options.end * self._run.total + 0.5)
        return self._first if at_once else min(max(end, self._first), self._run.total - 1)

    # -- the graph

    def boundaries(self) -> Iterable[int]:
        return (self._last,) if self._learns else ()

    def shape(self, spec: Spec, step: int) -> Spec:
        learning = self._learns and step < self._last
        text = self._options.sparser if learning or not self._learns else MASK
        return spec.with_sparsers(dict.fromkeys(self._rows, text))

    def change(self, step: int) -> None:
        """The learned sparser has gone: its weights are in the engine, the choice is made from what it learned."""
        for tag, keep in self._run.learned.items():
            write(self._run.engine.weights[tag], self._mask(tag), keep)
            self._run.engine.clear_moments(tag)

    def learned(self, tag: str) -> tuple[Array, Array]:
        """What stays of a weight that was learned, and the numbers it has then."""
        weight, extra = self._run.engine.weights[tag], self._extra(tag)
        ones = np.ones(weight.shape, np.float32)
        keep = self._sparser.keep(weight, extra, ones, self._choice(tag, self._rows[tag].drop))
        return keep.reshape(-1), self._sparser.bake(weight, extra, keep)

    # -- the hooks

    def before_step(self, step: int) -> None:
        if self._learns and step < self._last:
            self._feed(step)
        elif not self._learns and self._is_update(step) and self._options.regrow != "gradient":
            self._renew(step)

    def before_update(self, step: int) -> None:
        if not self._learns and self._is_update(step) and self._options.regrow == "gradient":
            self._exchange(step)

    def after_update(self, step: int) -> None:
        if self._learns and step < self._last:
            for tag in self._tags():
                self._sparser.settle(self._extra(tag))

    @property
    def final_from(self) -> int:
        """The first step whose masks are those of the plan."""
        return self._last

    def _is_update(self, step: int) -> bool:
        inside = self._first <= step <= self._last
        return inside and (step == self._last or (step - self._first) % self._every == 0)

    def _renew(self, step: int) -> None:
        revive = self._options.regrow == "weights" and step < self._last
        for tag in self._tags():
            weight, mask, row = self._run.engine.weights[tag], self._mask(tag), self._rows[tag]
            if row.keep is not None:
                write(weight, mask, row.keep.reshape(-1))
            else:
                renew(weight, mask, self._choice(tag, self._drop(row, step)), revive=revive)
            self._run.engine.clear_moments(tag, mask == 0)

    def _exchange(self, step: int) -> None:
        """Regrow by the dense gradient, which needs a step with open masks; then drop to the level of the step."""
        gains = self._run.dense_gradients(list(self._tags()))
        share = self._options.regrow_share * (1 - self._progress(step))
        for tag in self._tags():
            weight, mask, row = self._run.engine.weights[tag], self._mask(tag), self._rows[tag]
            choice = self._choice(tag, self._drop(row, step))
            renew(weight, mask, choice)
            if step < self._last and share > 0:
                exchange(weight, mask, gains[tag], choice, share)
            self._run.engine.clear_moments(tag, mask == 0)

    def _feed(self, step: int) -> None:
        """What the sparser's frozen arrays hold in this step."""
        if step > self._first and not self._sparser.feeds:
            return
        run = self._run
        for tag in self._tags():
            weight, row = run.engine.weights[tag], self._rows[tag]
            keep = self._keep_now(tag, row, step)
            moment = Moment(row.name, step, self._progress(step), run.seed)
            for role, array in self._sparser.feed(weight, self._extra(tag), keep, moment).items():
                run.engine.frozen[f"{tag}/{role}"][...] = array

    def _keep_now(self, tag: str, row: PlanRow, step: int) -> Array:
        weight, extra = self._run.engine.weights[tag], self._extra(tag)
        ones = np.ones(weight.shape, np.float32)
        return self._sparser.keep(weight, extra, ones, self._choice(tag, self._drop(row, step)))

    # -- small things

    def _tags(self) -> list[str]:
        return [tag for tag in self._rows if tag in self._run.engine.weights]

    def _mask(self, tag: str) -> Array:
        return self._run.engine.frozen[f"{tag}/{MASK}"]

    def _extra(self, tag: str) -> dict[str, Array]:
        weights, prefix = self._run.engine.weights, f"{tag}/"
        return {key[len(prefix) :]: array for key, array in weights.items() if key.startswith(prefix)}

    def _choice(self, tag: str, drop: int) -> Choice:
        row = self._rows[tag]
        assert row.pattern is not None
        return Choice(row.pattern, self._run.score.bind(row.name), drop, row.use.matrix, row.use.restore)

    def _progress(self, step: int) -> float:
        return 1.0 if step >= self._last else (step - self._first) / max(1, self._last - self._first)

    def _drop(self, row: PlanRow, step: int) -> int:
        if row.pattern is None or not row.pattern.takes_sparsity:
            return row.drop
        share = self._schedule.level(self._options.start_sparsity, 1.0, self._progress(step))
        return row.drop if share == 1.0 else math.floor(share * row.drop + 0.5)


def _is_fixed(row: PlanRow) -> bool:
    """Whether there is no level that could rise."""
    return row.pattern is None or not row.pattern.takes_sparsity or row.keep is not None
