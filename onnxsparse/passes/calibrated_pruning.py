"""Calibrated pruning for commands: from options to a plan with masks and numbers from samples, and what is said of it.

1. With samples the default is the recipe: score `obs`, solver `least-squares`, allocation `sensitivity` for patterns
   that take a sparsity. Without samples an option that needs them is refused.
2. What decides a plan by samples is recorded in it, and a plan that was made so is taken with samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from onnxsparse.allocations.curves import Sensitivity
from onnxsparse.calibration.moments import Samples
from onnxsparse.calibration.sweep import Swept
from onnxsparse.data.images import as_images
from onnxsparse.errors import OptionError
from onnxsparse.graph.model import Model
from onnxsparse.options import CalibrationOptions, Masks, Path, SparsityOptions, options_of
from onnxsparse.passes.added_biases import said_of_biases, told_of_bias, with_biases
from onnxsparse.passes.calibrate import Calibrated, Calibration, calibrating
from onnxsparse.passes.calibration_asked import (
    SCORES,
    SENSITIVITY,
    Asked,
    by_curves,
    demand_runtime,
    samples_of,
)
from onnxsparse.passes.delivery import in_model
from onnxsparse.passes.loss_budget import Measuring, Wanted, measuring, remarks, told, within, written
from onnxsparse.passes.quantization.figures import MaxLoss
from onnxsparse.planning.model_inputs import SampleAxes, sample_axes
from onnxsparse.planning.plan import Plan
from onnxsparse.planning.rule import Rule

SHARED = ("seed", "score", "allocation")
"""Options that mean something without samples, too."""
RECORDED = ("score", "solver", "sensitivity", "samples", "seed")
"""What of a plan's calibration holds for whoever takes the plan."""
IMAGES, GIVEN = ("resize", "mean", "std", "layout"), "given"
NEUTRAL: tuple[Any, ...] = (None, False, "auto", (), [])
FEW = 64
"""Samples below which it is said that they are few."""


Together = Callable[[Model, Calibrated, Samples, Asked, SampleAxes], Calibrated]


@dataclass(frozen=True)
class Request:
    """What a command is asked for: which zeros, as a rule has them, and the calibration, where there are samples."""

    zeros: SparsityOptions
    asked: Asked | None = None
    options: CalibrationOptions = field(default_factory=CalibrationOptions)
    wanted: Wanted = field(default_factory=Wanted)
    together: Together | None = None
    """What refits all layers together, once each was by itself."""
    by_labels: bool = False
    """Whether figures are wanted as soon as the samples have labels."""

    @property
    def limit(self) -> MaxLoss | None:
        return self.wanted.limit

    def with_plan(self, made: Plan, file: Path | None) -> tuple[Plan, Request]:
        """A plan file says how it was calibrated, and its levels stay."""
        if file is None or self.asked is None:
            if made.calibration and self.asked is None:
                raise OptionError(f"{file} was made with samples (score {made.calibration.get('score')}): pass --data")
            return made, self
        if self.limit is not None:
            raise OptionError("--plan says how much goes, and --max-loss finds it; leave one of the two out")
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
    wanted = _wanted(options)
    given = {name: getattr(options, name) for name in ("samples", "solver", "sensitivity", "budget", "seed", "score")}
    said = {name: value for name, value in given.items() if value is not None}
    switches = {
        name: getattr(options, name)
        for name in ("engine", "add_bias", "joint_steps", "workers", "checkpoint", "resume")
    }
    images = options.resize, options.mean, options.std, options.layout
    data, eval_data = as_images([options.data, options.eval_data], *images)
    asked = Asked(data, allocation=options.allocation, **said, **switches)
    if plan is None:
        zeros = _of_the_rule(zeros if wanted.limit is None else _without_level(zeros), asked)
    return Request(zeros, asked, options, replace(wanted, eval_data=eval_data))


def _wanted(options: CalibrationOptions) -> Wanted:
    """What is measured, and what may be lost of it."""
    metrics = options.metrics
    chosen = [metrics] if isinstance(metrics, str) or callable(metrics) else list(metrics or ())
    limit = None if options.max_loss is None else MaxLoss.parse(options.max_loss)
    measured = limit is not None or options.eval_data is not None
    for flag, given in (("--metric", bool(chosen)), ("--labels", options.labels is not None)):
        if given and not measured:
            raise OptionError(f"{flag} is of what is measured: pass --eval-data, or --max-loss, too")
    return Wanted(options.eval_data, options.labels, chosen, limit)


def _without_level(zeros: SparsityOptions) -> SparsityOptions:
    """Zeros of which a measured loss says how many: any, unless a pattern is named; the rule begins at one half."""
    level = next((flag for flag, value in (("--sparsity", zeros.sparsity), ("--level", zeros.level)) if value), "")
    if level:
        raise OptionError(f"--max-loss finds how much goes, and {level} says it; leave one of the two out")
    pattern = zeros.pattern if zeros.pattern or zeros.target else "unstructured"
    known = Rule.of(replace(zeros, pattern=pattern, allocation=None, score=None)).pattern
    return replace(zeros, pattern=pattern, sparsity=0.5 if known is not None and known.takes_sparsity else None)


def _of_the_rule(zeros: SparsityOptions, asked: Asked) -> SparsityOptions:
    """With what a rule has in the place of words that samples decide."""
    leveled = asked.allocation in (None, SENSITIVITY)
    score, allocation = None if asked.score in SCORES else zeros.score, "uniform" if leveled else zeros.allocation
    return replace(zeros, score=score, allocation=allocation)


def demand_refit(command: str, add_bias: bool, joint_steps: int | None) -> None:
    """What is of a refit is of `prune` alone."""
    flag = "--add-bias" if add_bias else "--joint-steps" if joint_steps is not None else ""
    if flag:
        raise OptionError(f"{flag} is of refitted weights, and {command} refits none; leave it out")


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


@dataclass(frozen=True, eq=False)
class Outcome:
    """What samples make of a plan: masks and numbers where it was swept, and what a report says of it."""

    plan: Plan
    calibrated: Calibrated | None
    details: dict[str, Any]
    notes: list[str]


def leveled(model: Model, made: Plan, request: Request) -> Outcome:
    """The plan with the levels that samples say: what `plan` writes down."""
    if request.limit is not None:
        return pruned(model, made, request)
    with calibration_run(model, made, request) as run:
        plan = run.calibration.planned(run.calibration.leveled(run.asked))
        curved = by_curves(made, run.asked)
        found = _recorded(plan, made, run, run.calibration.sensitivity.engine if curved else "")
        return Outcome(found, None, {"calibration": dict(found.calibration)}, run.remarks(curved))


def pruned(model: Model, made: Plan, request: Request, refitted: bool = True) -> Outcome:
    """The plan with masks and new numbers; `refitted` says whether these are what is delivered, and measured."""
    if request.asked is None or not request.asked.add_bias:
        return _pruned(model, made, request, refitted)
    biased = with_biases(model, made)
    outcome = _pruned(biased.model, in_model(biased.model, made), request, refitted)
    assert outcome.calibrated is not None
    found = biased.of_file(outcome.calibrated)
    calibration = {**outcome.details["calibration"], "biases": [*map(told_of_bias, found.biases)]}
    details = {**outcome.details, "calibration": calibration}
    return Outcome(found.plan, found, details, [*outcome.notes, said_of_biases(found.biases)])


def _pruned(model: Model, made: Plan, request: Request, refitted: bool) -> Outcome:
    limit, metered = request.limit, None
    with calibration_run(model, made, request) as run:
        calibration, measured = run.calibration, run.measuring
        if limit is not None and measured is not None:
            write = partial(written, model, refitted=refitted)
            metered = within(limit, calibration, run.asked, measured.figures, write)
        found = metered.found if metered else calibration.swept(calibration.leveled(run.asked))
        if request.together is not None:
            moved = request.together(model, found, calibration.samples, run.asked, run.axes)
            if metered is not None and measured is not None and limit is not None:
                metered = metered.or_else(moved, measured.figures, limit, write)
                moved = metered.found
            found = moved
        plan = _recorded(found.plan, made, run, calibration.sensitivity.engine)
        details: dict[str, Any] = {
            **plan.calibration,
            "ridge": run.asked.ridge,
            "layers": len(calibration.found.layers),
            **found.details,
        }
        notes = [*run.remarks(), *found.notes]
        more: dict[str, Any] = {}
        if measured is not None:
            figures = metered.figures if metered else measured.figures(written(model, found, refitted))
            more, notes = told(measured, figures, limit, metered), [*notes, *remarks(measured, limit, metered)]
        return Outcome(plan, replace(found, plan=plan), {"calibration": details, **more}, notes)


def masked(found: Calibrated) -> Plan:
    """A plan for masks in the graph: the numbers stay as they are, and the rows say so."""
    rows = [
        replace(row, reason=_of_mask(found.swept[row.name])) if row.name in found.swept else row
        for row in found.plan.rows
    ]
    return replace(found.plan, rows=tuple(rows))


def _of_mask(swept: Swept) -> str:
    return f"masked, not refitted: error {swept.unfitted:.2%} of its outputs"


@dataclass(frozen=True, eq=False)
class Run:
    """A calibration, as it was asked for, and what measures it."""

    calibration: Calibration
    asked: Asked
    measuring: Measuring | None
    axes: SampleAxes

    def remarks(self, looked: bool = True) -> list[str]:
        """What is said of the samples; whether they are few where they were looked at."""
        count = self.calibration.samples.count
        few = [f"{count} samples are few: some hundred are better"] if looked and count < FEW else []
        return [*self.calibration.samples.notes, *few]


@contextmanager
def calibration_run(model: Model, made: Plan, request: Request) -> Iterator[Run]:
    asked, options = request.asked, request.options
    assert asked is not None
    demand_runtime()
    axes = sample_axes(model, options.batch_axis, options.state)
    own = options.eval_data is None and (request.limit is not None or request.by_labels)
    data, measured = samples_of(model, asked, axes, options.labels, whole=own), None  # what measures is drawn, too
    labeled = request.by_labels and (data.has_labels or bool(request.wanted.metrics))
    if request.limit is not None or request.wanted.eval_data is not None or labeled:
        measured = measuring(model, data, asked, request.wanted, axes)
        data = measured.seen
    with calibrating(model, made, replace(asked, data=data), axes) as calibration:
        yield Run(calibration, asked, measured, axes)


def _recorded(plan: Plan, made: Plan, run: Run, engine: str) -> Plan:
    """The plan with what decided it: what it was not asked for is left out."""
    asked, curved = run.asked, by_curves(made, run.asked)
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
        "samples": run.calibration.samples.count,
        "seed": asked.seed,
    }
    rule = replace(plan.rule, allocation=Sensitivity() if curved else plan.rule.allocation, by=asked.score)
    return replace(plan, rule=rule, calibration={name: value for name, value in facts.items() if value != ""})


__all__ = ["Outcome", "Request", "Run", "calibration_run", "demand_refit", "leveled", "masked", "pruned", "requested"]
