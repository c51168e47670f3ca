"""Pruning within a measured loss: the most zeros, or with N:M the fewest dense layers, that lose no more than allowed.

1. What is lost is measured on --eval-data, or on an eighth of the samples, which calibration does not see.
2. Levels are whole per cents, and the highest one that stays within the limit is found by halving. What calibration
   finds of the samples serves all of them.
3. A pattern that fixes its level leaves the most sensitive layers dense, as few as are needed, found by halving. How
   sensitive a layer is says what it costs the outputs where it alone is pruned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import ModelProto

from onnxsparse.calibration.feeding import Feeds
from onnxsparse.calibration.layers import CalibratedLayer
from onnxsparse.data import LABELS, Data, Samples, open_data
from onnxsparse.data.sources import InMemory
from onnxsparse.errors import OptionError, ProofError
from onnxsparse.graph.model import Model
from onnxsparse.metrics import Metric
from onnxsparse.passes.calibrate import Calibrated, Calibration
from onnxsparse.passes.calibration_asked import Asked
from onnxsparse.passes.delivery import untrained
from onnxsparse.passes.prune import Prune
from onnxsparse.passes.quantization.figures import SHARES, Figures, MaxLoss, metrics_for
from onnxsparse.planning.model_inputs import SampleAxes, fields_of
from onnxsparse.planning.plan import Plan, make_plan
from onnxsparse.planning.trainable import send_back

LEAST, MOST, PART = 32, 2048, 8
"""How many samples measure at least and at most, and which part of them."""
ON_DATA, ON_SAMPLES = "--eval-data", "samples that calibration did not see"
HIGHEST = 99

Level = Callable[[int], tuple[Plan, dict[str, float]]]


@dataclass(frozen=True)
class Wanted:
    """What is to be measured, and what may be lost."""

    eval_data: Any = None
    labels: str | None = None
    metrics: Sequence[Any] = ()
    limit: MaxLoss | None = None


@dataclass(frozen=True)
class Measuring:
    """Figures on samples of which calibration knows nothing, and the samples that it sees."""

    seen: Data
    figures: Figures
    on: str
    count: int


@dataclass(frozen=True)
class Within:
    """What a limit leaves: the result, its figures, and the layers that stay dense for it by what each costs."""

    found: Calibrated
    figures: dict[str, float]
    lost: float
    runs: int
    left: tuple[tuple[str, float], ...] = ()

    def or_else(
        self, moved: Calibrated, figures: Figures, limit: MaxLoss, write: Callable[[Calibrated], ModelProto]
    ) -> Within:
        """The same levels with other numbers, where these lose no more than the limit allows either; or with a note."""
        if moved.numbers is self.found.numbers:
            return replace(self, found=moved)
        measured = figures(write(moved))
        lost = figures.lost(limit, measured)
        if lost <= limit.most:
            return replace(self, found=moved, figures=measured, lost=lost)
        note = (
            f"the layers were refitted together, which lost {limit.told(lost)}, more than --max-loss allows: left out"
        )
        details = dict(moved.details)
        if "joint" in details:
            known = {name: value for name, value in details["joint"].items() if name != "rate"}
            details["joint"] = {**known, "taken": False}
        return replace(self, found=replace(self.found, notes=(*self.found.notes, note), details=details))


def measuring(model: Model, data: Data, asked: Asked, wanted: Wanted, axes: SampleAxes) -> Measuring:
    """Figures on the data that was named for it, or on a part of the samples."""
    seen, held = _parted(data, asked) if wanted.eval_data is None else (data, _opened(model, wanted, axes))
    on = ON_SAMPLES if wanted.eval_data is None else ON_DATA
    dense = model.copy_proto()
    feeds = Feeds(dense, held, None, axes.inputs, axes.states, stage="measure")
    figures = Figures(dense, feeds, metrics_for(dense, feeds, wanted.metrics, axes.outputs), axes.outputs)
    return Measuring(seen, figures, on, feeds.count)


def _opened(model: Model, wanted: Wanted, axes: SampleAxes) -> Data:
    return open_data(wanted.eval_data, fields_of(model, axes), wanted.labels, wanted.labels is not None, None)


def _parted(data: Data, asked: Asked) -> tuple[Samples, Samples]:
    """The samples that calibration sees, and others that measure: an eighth of all."""
    whole = data if isinstance(data, Samples) else _gathered(data, asked.samples)
    held = min(MOST, max(LEAST, whole.count // PART))
    seen = min(asked.samples, whole.count - held)
    if seen < held // 2:
        if asked.samples <= seen:
            raise OptionError(
                f"--max-loss measures on {held} samples that calibration does not see, which takes half as many at "
                f"least: --samples {asked.samples} are too few; pass more, or --eval-data"
            )
        raise OptionError(
            f"--max-loss measures on {LEAST} samples or more that calibration does not see, and there are "
            f"{whole.count} in all; pass --eval-data"
        )
    return whole.part(0, seen), whole.part(seen, seen + held)


def _gathered(data: Data, count: int) -> Samples:
    """The first samples of a stream."""
    feeds = list(_first(data, count))
    names = [field.name for field in data.fields if field.name in feeds[0]] + [LABELS] * (LABELS in feeds[0])
    arrays = {
        name: feeds[0][name] if name in data.shared else np.concatenate([feed[name] for feed in feeds])
        for name in names
    }
    fields = [replace(field, axis=0, given=False) for field in data.fields]
    return Samples(InMemory(arrays, data.called), fields, numbers=None)


def _first(data: Data, count: int) -> Any:
    for batch in data.through(LEAST):
        rows = next(len(array) for name, array in batch.items() if name not in data.shared)
        yield {name: one if name in data.shared else one[:count] for name, one in batch.items()}
        count -= rows
        if count <= 0:
            return


def within(
    limit: MaxLoss, calibration: Calibration, asked: Asked, figures: Figures, write: Callable[[Calibrated], ModelProto]
) -> Within:
    """As many zeros as lose no more than the limit."""
    search = _Search(limit, figures, calibration, write)
    pattern = calibration.plan.rule.pattern
    if pattern is not None and pattern.takes_sparsity:
        return search.of_levels(lambda level: _at(calibration, asked, level / 100))
    return search.of_layers()


def _at(calibration: Calibration, asked: Asked, sparsity: float) -> Plan:
    rule = replace(calibration.plan.rule, sparsity=sparsity)
    return calibration.leveled(asked, make_plan(calibration.file, rule))


@dataclass
class _Search:
    """Halving: each plan that is tried is swept, written and measured."""

    limit: MaxLoss
    figures: Figures
    calibration: Calibration
    write: Callable[[Calibrated], ModelProto]
    runs: int = 0

    @property
    def plan(self) -> Plan:
        return self.calibration.asked_plan

    def tried(self, plan: Plan) -> Within:
        self.runs += 1
        found = self.calibration.swept(plan)
        figures = self.figures(self.write(found))
        return Within(found, figures, self.figures.lost(self.limit, figures), self.runs)

    def of_levels(self, plan_at: Callable[[int], Plan]) -> Within:
        best, beyond, _ = self._halved(0, HIGHEST + 1, plan_at)
        if best is None:
            raise self._unmet(beyond, "1 % zeros")
        return replace(best, runs=self.runs)

    def of_layers(self) -> Within:
        whole = self.tried(self.plan)
        if whole.lost <= self.limit.most:
            return whole
        ranked = sorted(self.calibration.costs(), key=lambda one: -one[1])
        best, beyond, count = self._halved(
            len(ranked), 0, lambda count: self._without([layer for layer, _ in ranked[:count]])
        )
        if best is None:
            last = self.calibration.weights(ranked[-1][0])[0] if ranked else ""
            raise self._unmet(beyond or whole, f"'{last}' alone, the least sensitive of {len(ranked)} layers")
        return replace(best, runs=self.runs, left=tuple((layer.name, cost) for layer, cost in ranked[:count]))

    def _halved(
        self, within: int, beyond: int, plan_at: Callable[[int], Plan]
    ) -> tuple[Within | None, Within | None, int]:
        """The plans at the two sides of the limit, and where the first one is: between one end that stays within the
        limit and one that does not."""
        best, least = None, None
        while abs(beyond - within) > 1:
            middle = (within + beyond) // 2
            here = self.tried(plan_at(middle))
            if here.lost <= self.limit.most:
                within, best = middle, here
            else:
                beyond, least = middle, here
        return best, least, within

    def _without(self, layers: Sequence[CalibratedLayer]) -> Plan:
        """The plan with some layers dense."""
        plan, reason = self.plan, f"left dense for --max-loss {self.limit.text}"
        dense = {name for layer in layers for name in self.calibration.weights(layer)}
        rows = [
            replace(row, pattern=None, drop=0, cut=None, reason=reason, chosen=True) if row.name in dense else row
            for row in plan.rows
        ]
        return replace(plan, rows=tuple(rows))

    def _unmet(self, least: Within | None, where: str) -> ProofError:
        lost = "too much" if least is None else self.limit.told(least.lost)
        return ProofError(
            f"--max-loss {self.limit.text} cannot be met: {lost} of {self.figures.metrics[0].text} is lost with "
            f"{where}; nothing was written"
        )


def written(model: Model, found: Calibrated, refitted: bool = True) -> ModelProto:
    """The model with the zeros and numbers that were found, in memory; without a refit with the zeros alone."""
    numbers = found.numbers if refitted else {}
    with model.restored():
        Prune(Plan(tuple(untrained(found.plan, numbers, found.tags)), found.plan.rule))(model)
        send_back(numbers, found.tags)
        return model.copy_proto()


def told(
    measuring: Measuring, figures: dict[str, float], limit: MaxLoss | None, within: Within | None
) -> dict[str, Any]:
    """What a report says of it."""
    on = {"measured_on": measuring.on, "measured_samples": measuring.count}
    details = {**on, "metrics_dense": measuring.figures.dense, "metrics": figures}
    if limit is None or within is None:
        return details
    left = [{"layer": name, "distance": cost} for name, cost in within.left]
    facts = {"metric": measuring.figures.metrics[0].text, "lost": within.lost, "left": left, "runs": within.runs}
    return {**details, "max_loss": {"limit": limit.text, **facts}}


def remarks(measuring: Measuring, limit: MaxLoss | None, within: Within | None) -> list[str]:
    """What was lost, in words; and whether the samples could tell it."""
    if limit is None or within is None:
        return []
    metric, sparsity = measuring.figures.metrics[0], within.found.plan.rule.sparsity
    level = f"; {100 * sparsity:.0f} % is the highest level found within it" if sparsity is not None else ""
    notes = [f"{metric.text}: {limit.beside(within.lost)}, measured on {measuring.count} {_named(measuring)}{level}"]
    return [*notes, *_chance(metric, measuring, within, limit)]


def _chance(metric: Metric, measuring: Measuring, within: Within, limit: MaxLoss) -> list[str]:
    """That so few samples tell a share less exactly than the limit asks: to its deviation, and one sample at least."""
    count = measuring.count
    if metric.name not in SHARES or not count:
        return []
    figures = [next(iter(found.values())) for found in (measuring.figures.dense, within.figures)]
    allowed = limit.most * (max(figures) if limit.relative else 0.01)
    deviation = max(*(np.sqrt(max(share * (1 - share), 0.0) / count) for share in figures), 1 / count)
    few = f"{count} samples tell the {metric.text} to about {deviation:.1%} only, which is more than may be lost"
    return [f"{few}: measure on more of them, by --eval-data"] if deviation > allowed else []


def _named(measuring: Measuring) -> str:
    return measuring.on if measuring.on == ON_SAMPLES else f"samples of {measuring.on}"


__all__ = ["Measuring", "Wanted", "Within", "measuring", "remarks", "told", "within", "written"]
