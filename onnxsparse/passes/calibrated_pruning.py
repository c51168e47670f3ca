"""Calibrated pruning for commands: from options to a plan with masks and numbers from samples, and what is said of it.

1. With samples the default is the recipe: score `obs`, solver `least-squares`, allocation `sensitivity` for patterns
   that take a sparsity. Without samples an option that needs them is refused.
2. What decides a plan by samples is recorded in it, and a plan that was made so is taken with samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from onnxsparse.allocations.curves import Sensitivity
from onnxsparse.calibration.sweep import RIDGE, Swept
from onnxsparse.data.images import as_images
from onnxsparse.errors import OptionError
from onnxsparse.graph.model import Model
from onnxsparse.options import CalibrationOptions, Masks, Path, SparsityOptions, options_of
from onnxsparse.passes.calibrate import SCORES, SENSITIVITY, Asked, Calibrated, Calibration, by_curves, calibrating
from onnxsparse.planning.model_inputs import sample_axes
from onnxsparse.planning.plan import Plan

SHARED = ("seed", "score", "allocation")
"""Options that mean something without samples, too."""
RECORDED = ("score", "solver", "sensitivity", "samples", "seed")
"""What of a plan's calibration holds for whoever takes the plan."""
IMAGES, GIVEN = ("resize", "mean", "std", "layout"), "given"
NEUTRAL: tuple[Any, ...] = (None, False, "auto", (), [])
FEW = 64
"""Samples below which it is said that they are few."""


@dataclass(frozen=True)
class Request:
    """What a command is asked for: which zeros, as a rule has them, and the calibration, where there are samples."""

    zeros: SparsityOptions
    asked: Asked | None = None
    options: CalibrationOptions = field(default_factory=CalibrationOptions)

    def with_plan(self, made: Plan, file: Path | None) -> tuple[Plan, Request]:
        """A plan file says how it was calibrated, and its levels stay."""
        if file is None or self.asked is None:
            if made.calibration and self.asked is None:
                raise OptionError(f"{file} was made with samples (score {made.calibration.get('score')}): pass --data")
            return made, self
        said = {name: made.calibration[name] for name in RECORDED if name in made.calibration}
        other = next((name for name in said if getattr(self.options, name) not in (None, said[name])), "")
        if other:
            raise OptionError(f"--plan decides that already; leave --{other} out")
        return made, replace(self, asked=replace(self.asked, allocation=GIVEN, **said))


def requested(zeros: SparsityOptions, options: CalibrationOptions, plan: Path | None, masks: Masks | None) -> Request:
    """What the options of a command ask for, checked."""
    if options.data is None:
        _demand_samples(options)
        return Request(zeros)
    if masks is not None:
        raise OptionError("--masks says which zeros, and --data finds them from samples; leave one of the two out")
    if zeros.tie_equal:
        raise OptionError("--tie-equal does not go with --data: each weight is refitted to what comes into it")
    if options.max_loss is not None:
        raise OptionError("calibration cannot do --max-loss yet; leave it out")
    given = {name: getattr(options, name) for name in ("samples", "solver", "sensitivity", "budget", "seed", "score")}
    said = {name: value for name, value in given.items() if value is not None}
    switches = {name: getattr(options, name) for name in ("engine", "add_bias", "workers", "checkpoint", "resume")}
    (data,) = as_images([options.data], options.resize, options.mean, options.std, options.layout)
    asked = Asked(data, allocation=options.allocation, **said, **switches)
    if plan is None:
        zeros = _of_the_rule(zeros, asked)
    return Request(zeros, asked, options)


def _of_the_rule(zeros: SparsityOptions, asked: Asked) -> SparsityOptions:
    """With what a rule has in the place of words that samples decide."""
    leveled = asked.allocation in (None, SENSITIVITY)
    score, allocation = None if asked.score in SCORES else zeros.score, "uniform" if leveled else zeros.allocation
    return replace(zeros, score=score, allocation=allocation)


def _demand_samples(options: CalibrationOptions) -> None:
    """Without samples nothing that needs them is accepted."""
    known = options_of(CalibrationOptions)
    own = [name for name in known if name not in (*SHARED, "data")]
    flag = next((known[name].flags[-1] for name in own if getattr(options, name) not in NEUTRAL), "")
    if options.score in SCORES:
        flag = f"--score {options.score}"
    if options.allocation == SENSITIVITY:
        flag = f"--allocation {options.allocation}"
    if flag:
        what = "is for a folder of images" if flag[2:] in IMAGES else "needs samples"
        raise OptionError(f"{flag} {what}: pass --data, or leave it out")


# -- what is found


def leveled(model: Model, made: Plan, request: Request) -> tuple[Plan, list[str]]:
    """The plan with the levels that samples say, and remarks: what `plan` writes down."""
    with _calibration(model, made, request) as (calibration, asked):
        plan = calibration.planned(calibration.leveled(asked))
        curved = by_curves(made, asked)
        found = _recorded(plan, made, calibration, asked, calibration.sensitivity.engine if curved else "")
        return found, _remarks(calibration, curved)


def pruned(model: Model, made: Plan, request: Request) -> tuple[Calibrated, list[str]]:
    """The plan with masks, new numbers, and remarks."""
    with _calibration(model, made, request) as (calibration, asked):
        found = calibration.swept(calibration.leveled(asked))
        plan = _recorded(found.plan, made, calibration, asked, calibration.sensitivity.engine)
        details = {**plan.calibration, "ridge": RIDGE, "layers": len(calibration.found.layers)}
        notes = [*_remarks(calibration), *found.notes]
        return replace(found, plan=plan, details={"calibration": details}), notes


def masked(found: Calibrated) -> Plan:
    """The plan for masks in the graph: the numbers stay as they are, and the rows say so."""
    rows = [
        replace(row, reason=_of_mask(found.swept[row.name])) if row.name in found.swept else row
        for row in found.plan.rows
    ]
    return replace(found.plan, rows=tuple(rows))


def _of_mask(swept: Swept) -> str:
    return f"masked, not refitted: error {swept.unfitted:.2%} of its outputs"


@contextmanager
def _calibration(model: Model, made: Plan, request: Request) -> Iterator[tuple[Calibration, Asked]]:
    asked = request.asked
    assert asked is not None
    axes = sample_axes(model, request.options.batch_axis, request.options.state)
    with calibrating(model, made, asked, axes) as calibration:
        yield calibration, asked


def _recorded(plan: Plan, made: Plan, calibration: Calibration, asked: Asked, engine: str) -> Plan:
    """The plan with what decided it: what it was not asked for is left out."""
    curved = by_curves(made, asked)
    leveled = made.rule.pattern is not None and made.rule.pattern.takes_sparsity
    allocation = SENSITIVITY if curved else made.rule.allocation.name if leveled else ""
    known = made.calibration if asked.allocation == GIVEN else {"allocation": allocation}
    facts = {
        "score": asked.score,
        "solver": asked.solver,
        "allocation": known.get("allocation", ""),
        "sensitivity": asked.sensitivity,
        "engine": engine,
        "budget": asked.budget if curved else known.get("budget", ""),
        "samples": calibration.samples.count,
        "seed": asked.seed,
    }
    rule = replace(plan.rule, allocation=Sensitivity() if curved else plan.rule.allocation, by=asked.score)
    return replace(plan, rule=rule, calibration={name: value for name, value in facts.items() if value != ""})


def _remarks(calibration: Calibration, looked: bool = True) -> list[str]:
    """What is said of the samples."""
    count = calibration.samples.count
    few = [f"{count} samples are few: some hundred are better"] if looked and count < FEW else []
    return [*calibration.samples.notes, *few]


__all__ = ["Request", "leveled", "masked", "pruned", "requested"]
