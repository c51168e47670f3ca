"""Dry run of a recipe: sparsity of the weights and learning rate at every epoch, without training.

The modifiers' own clocks and schedules are asked, step by step, for a run that nobody runs. Each row is an epoch right
after its first step has begun.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnxsparse import schedules
from onnxsparse.acts.act import TimedAct
from onnxsparse.recipes.checking import RATES
from onnxsparse.recipes.modifiers.magnitude import FROM_PARAM, ACDCPruningModifier, Alternating, GradualPruning
from onnxsparse.recipes.modifiers.masked import Masked
from onnxsparse.recipes.modifiers.modifier import Modifier
from onnxsparse.recipes.recipe import Recipe, epochs_of
from onnxsparse.recipes.writing import tag_of
from onnxsparse.schedules import Clock, epoch_at

STEPS = 100
"""Steps of an epoch, where nobody says it."""
MOST = 200_000
ROWS = 40
LONG = 10**9
NOT_RUN = "not run"


@dataclass(frozen=True)
class Row:
    """One epoch."""

    epoch: int
    sparsity: tuple[float, ...]
    rates: tuple[float, ...]
    begins: tuple[str, ...]
    ends: tuple[str, ...]


class _Paper:
    """All that modifiers of the rate see of a run; what they set is noted."""

    def __init__(self, per_epoch: int) -> None:
        self.per_epoch, self.rate = per_epoch, math.nan

    def rates(self, groups: Any) -> list[float]:
        return [self.rate]

    def set_rates(self, rates: Sequence[float], groups: Any) -> None:
        self.rate = float(rates[0])


class _Level:
    """How sparse a modifier makes its weights by now; where its masks are let go, nobody knows."""

    def __init__(self, modifier: Masked) -> None:
        self._clock, self._modifier = Clock(modifier.span), modifier
        self.levels: tuple[float, ...] = ()

    def before(self, epoch: float) -> None:
        tick = self._clock.tick(epoch)
        if tick is not None:
            gone = tick.ends and not getattr(self._modifier, "leave_enabled", True)
            self.levels = () if gone else _levels_at(self._modifier, epoch)


def _levels_at(modifier: Masked, epoch: float) -> tuple[float, ...]:
    if not isinstance(modifier, (GradualPruning, ACDCPruningModifier)):
        return modifier.levels
    if isinstance(modifier, ACDCPruningModifier):
        act = modifier.act()
        assert isinstance(act, Alternating)
        return (0.0 if act.is_dense(epoch) else modifier.compression_sparsity,)
    schedule, progress = schedules.parse(modifier.inter_func.replace("_", "-")), modifier.span.progress(epoch)
    last = modifier.final_sparsity
    first = 0.0 if modifier.init_sparsity == FROM_PARAM else float(modifier.init_sparsity)
    return tuple(schedule.level(first, one, progress) for one in (last if isinstance(last, Mapping) else (last,)))


def outline(recipe: Recipe, steps_per_epoch: int | None = None) -> list[Row]:
    """A row for every epoch of a recipe, or for some of them where there are many, the last one's end included."""
    epochs = max(recipe.max_epochs, 0)
    per_epoch = max(1, min(steps_per_epoch or STEPS, MOST // max(1, epochs)))
    driven = [one for one in recipe.modifiers if not one.missing]
    paper = _Paper(per_epoch)
    rates: list[TimedAct] = [one.act() for one in driven if isinstance(one, RATES)]
    levels = [_Level(one) for one in driven if isinstance(one, Masked)]
    rows = []
    for step in _steps(epochs, per_epoch, recipe.modifiers):
        epoch = epoch_at(step, per_epoch)
        for act in rates:
            act.before(paper, epoch)  # type: ignore[arg-type]
        for level in levels:
            level.before(epoch)
        if step % per_epoch == 0:
            rows.append(_row(int(epoch), paper, levels, recipe.modifiers))
    return _some(rows)


def _steps(epochs: int, per_epoch: int, modifiers: Iterable[Modifier]) -> Iterable[int]:
    """Every step; of more epochs than anybody can wait for some, with those where something begins or ends."""
    if epochs <= MOST:
        return range(epochs * per_epoch + 1)
    turns = {math.ceil(time) for one in modifiers for time in epochs_of(one) if time >= 0}
    return sorted({*(epochs * place // ROWS for place in range(ROWS + 1)), *turns})


def _row(epoch: int, paper: _Paper, levels: Iterable[_Level], modifiers: Iterable[Modifier]) -> Row:
    begins = [_called(one) for one in modifiers if math.floor(max(epochs_of(one)[0], 0)) == epoch and _is_timed(one)]
    ends = [tag_of(one) for one in modifiers if epochs_of(one)[1] >= 0 and math.ceil(epochs_of(one)[1]) == epoch]
    rates = () if math.isnan(paper.rate) else (paper.rate,)
    return Row(epoch, tuple(one for level in levels for one in level.levels), rates, tuple(begins), tuple(ends))


def _called(modifier: Modifier) -> str:
    return f"{tag_of(modifier)} ({NOT_RUN})" if modifier.missing else tag_of(modifier)


def _is_timed(modifier: Modifier) -> bool:
    return hasattr(modifier, "start_epoch")


def _some(rows: list[Row]) -> list[Row]:
    """Of many rows those where something begins or ends, and others at even distances."""
    every = math.ceil(len(rows) / ROWS)
    last = len(rows) - 1
    return [row for place, row in enumerate(rows) if place % every == 0 or place == last or row.begins or row.ends]


def table(rows: Sequence[Row]) -> str:
    """Rows as text."""
    titles = ("epoch", "sparsity", "learning rate", "")
    cells = [titles, *(_cells(row) for row in rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(titles))]
    lines = ("  ".join(cell.rjust(width) for cell, width in zip(row[:3], widths)) + f"  {row[3]}" for row in cells)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _cells(row: Row) -> tuple[str, str, str, str]:
    low, high = min(row.sparsity, default=None), max(row.sparsity, default=None)
    sparsity = "" if low is None or high is None else f"{low:.4f}" if low == high else f"{low:.4f} - {high:.4f}"
    rate = f"{row.rates[0]:.6g}" if row.rates else ""
    happens = [*(f"{tag} begins" for tag in row.begins), *(f"{tag} ends" for tag in row.ends)]
    return str(row.epoch) if row.epoch < LONG else f"{row.epoch:.6g}", sparsity, rate, ", ".join(happens)
