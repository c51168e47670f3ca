"""`finetune`: a recipe and data make a model sparse, and training makes up for what it lost; checked and delivered.

1. `ask` refuses what cannot be (see `task`); the engine is made when the loop begins.
2. The loop runs in a folder of the user's, from whose checkpoints it can be resumed, or in a temporary one.
3. What comes out is delivered with the zeros of the plan, with a recipe of all that was decided and with the history.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

from onnx import ModelProto

from onnxsparse.acts.act import TimedAct
from onnxsparse.checkpoints import MARK, claim, note_delivery
from onnxsparse.data.images import as_images
from onnxsparse.data.user_functions import names_function
from onnxsparse.engines.engine import NO_GRADIENT
from onnxsparse.engines.working_dirs import claimed, temporary
from onnxsparse.errors import LeftOutError, OptionError
from onnxsparse.graph.model import Source
from onnxsparse.options import Axes, Masks, Path
from onnxsparse.passes.delivery import Delivered, called, deliver, target_of, untrained
from onnxsparse.passes.sources import taken
from onnxsparse.planning.plan import Plan, PlanRow
from onnxsparse.planning.request import path_of
from onnxsparse.planning.rows import in_training
from onnxsparse.recipes import Recipe
from onnxsparse.recipes.modifiers.modifier import Scheduled
from onnxsparse.recipes.modifiers.pruning import CALIBRATED, Pruning
from onnxsparse.recipes.modifiers.training import OWN, Training
from onnxsparse.report.history import History
from onnxsparse.report.rows import Report, Totals
from onnxsparse.train.cut import BEHIND
from onnxsparse.train.engine_choice import Engines, Means, met
from onnxsparse.train.evaluation import OF_PART, OF_WHOLE, WHOLE, Evaluation, whole_distances
from onnxsparse.train.loop import Run
from onnxsparse.train.outcome import Outcome, Watcher
from onnxsparse.train.side_files import Destination, beside, is_own
from onnxsparse.train.start import started
from onnxsparse.train.task import Task, ask, metric_list, training_text

TORCH_TRAINS = "`--engine torch` trains the weights of which this engine has no gradient"


def finetuned(
    source: Source,
    recipe: Recipe,
    *,
    data: Any,
    output: Path | None = None,
    engine: str = "auto",
    device: str | None = None,
    optimizer: Callable[[Any], Any] | None = None,
    lr_scheduler: Callable[[Any], Any] | None = None,
    eval_data: Any = None,
    resize: Any = None,
    mean: Any = None,
    std: Any = None,
    layout: str | None = None,
    metrics: Sequence[str | Callable[..., Any]] = (),
    checkpoint: Path | None = None,
    resume: bool = False,
    check: bool = False,
    strict: bool = False,
    overwrite: bool = False,
    watch: Watcher | None = None,
    apart: Mapping[str, Any] | None = None,
    **asked: Any,
) -> Delivered:
    """Train by a whole recipe. `asked` goes to `ask`; `apart` are more paths that the result must not replace."""
    source, metrics = taken(source), metric_list(metrics)
    if resume and checkpoint is None:
        raise OptionError("--resume goes on with a run in a folder; pass --checkpoint DIR too")
    processes, device = met(engine, device)
    if not processes.first:  # the first one alone writes and speaks
        output = checkpoint = watch = None
    if _calls(data) or _calls(eval_data) or any(map(_calls, metrics)):
        source, output, checkpoint = _absolute(source), _absolute(output), _absolute(checkpoint)
        data, eval_data = (one if _calls(one) else _absolute(one) for one in (data, eval_data))
    means = Means(engine, device, optimizer, lr_scheduler, processes)
    samples, held_out = as_images([data, eval_data], resize, mean, std, layout)
    may_replace = overwrite or (resume and is_own(output, source, checkpoint))
    paths = {"data": data, "eval-data": eval_data, **{name: asked.get(name) for name in ("plan", "masks")}}
    destination = Destination(target_of(output, source, may_replace), may_replace, {**paths, **(apart or {})})
    task = ask(
        source, recipe, samples, eval_data=held_out, metrics=metrics, means=means, strict=strict,
        destination=destination, **asked,
    )  # fmt: skip
    with ExitStack() as stack:
        folder = None if checkpoint is None else path_of(checkpoint, "checkpoint")
        working_dir = folder or stack.enter_context(temporary())
        if folder is not None:
            claim(folder)
            stack.enter_context(claimed(folder, MARK))
        task = started(task, folder, resume)
        engines, evaluation = task.engines(working_dir, check), Evaluation(task)
        outcome = Run(task, engines, evaluation, folder, resume, watch).go() if task.has_work else _unchanged()
    if strict and outcome.attempts and not outcome.helped:
        raise LeftOutError("--strict: no training was better than pruning alone; nothing was written")
    delivered = _deliver(task, outcome, engines, evaluation, destination, folder)
    processes.meet()
    return delivered


def _calls(value: Any) -> bool:
    """Whether it is a function of the user's, or names one: that may change the current folder."""
    named = isinstance(value, str) and names_function(value) and not os.path.exists(value)
    return named or (callable(value) and not isinstance(value, Mapping)) or hasattr(value, "__next__")


def _absolute(value: Any) -> Any:
    """A path that means the same wherever the current folder is."""
    named = isinstance(value, (str, os.PathLike)) and os.fspath(value) not in ("", "-")
    return os.path.abspath(value) if named else value


def _unchanged() -> Outcome:
    """Nothing was pruned, so there is nothing to make up for."""
    notes = ["nothing was trained: there is nothing to prune"]
    return Outcome({}, [], History(), math.nan, math.nan, False, 0, notes)


# -- the result


def _deliver(
    task: Task,
    outcome: Outcome,
    engines: Engines,
    evaluation: Evaluation,
    destination: Destination,
    folder: str | None,
) -> Delivered:
    """The trained numbers in the file that they came from, with the recipe and the history beside it."""
    arrays = task.with_copies({**(task.start or {}), **outcome.arrays})
    rest = untrained(task.plan, arrays, task.every)
    plan = task.plan if task.by_epochs is None else task.by_epochs.done(outcome.arrays)
    notes, distances = _notes(task, outcome, engines, evaluation, rest), dict[str, float]()
    if task.part is not None and task.part.points is not None and outcome.attempts and task.processes.first:
        distances, why = whole_distances(task, arrays)
        notes += [why] if why else []
    made = with_defaults(task.recipe, plan, task.feeding.per_epoch or 0, task.pruned_share, task.starts_near)
    details = {
        "engine": engines.chosen if outcome.attempts else "none",
        "batch_axes": dict(task.axes.inputs),
        "states": dict(task.axes.states),
        "recipe": made.to_yaml(),
        "steps": outcome.steps,
        "attempts": outcome.attempts,
        "helped": outcome.helped,
        "trained": outcome.trained,
        "loss_without_training": outcome.loss_untrained,
        "loss": outcome.loss,
        "loss_unit": outcome.unit + (OF_PART if evaluation.of and outcome.unit else ""),
        "measured_on": evaluation.on if outcome.attempts else "",
        "metrics_dense": outcome.dense,
        "metrics_without_training": outcome.untrained,
        "metrics": outcome.metrics,
    }
    if task.part is not None and task.part.points is not None:
        details["until"] = list(task.part.points.heads)
        details["distance_of_file"] = distances
    target = destination.target
    texts = (made.to_yaml(), outcome.history.to_json(), outcome.history.to_csv())
    return deliver(
        task.model, plan, arrays, task.every, target, destination.overwrite,
        name=task.name,
        notes=notes,
        details=details,
        beside={} if target is None else dict(zip(beside(target), texts)),
        note=None if folder is None else partial(note_delivery, folder),
        check=None if outcome.integers is None else outcome.integers.check,
        change=_change(task, outcome),
    )  # fmt: skip


def _change(task: Task, outcome: Outcome) -> Callable[[ModelProto], Sequence[str]] | None:
    """What is done to the graph beside the numbers in it, where anything is; it returns what has to be said of it."""
    acts = [act for act in task.acts if type(act).changed_graph is not TimedAct.changed_graph]
    if outcome.integers is None and not acts:
        return None

    def change(proto: ModelProto) -> Sequence[str]:
        said = [note for act in acts for note in act.changed_graph(proto)]
        if outcome.integers is not None:
            outcome.integers.write(proto)
        return said

    return change


def _notes(
    task: Task, outcome: Outcome, engines: Engines, evaluation: Evaluation, rest: Sequence[PlanRow]
) -> list[str]:
    notes = [*task.notes, *evaluation.notes, *in_training(task.model), *engines.notes, *outcome.notes]
    if task.by_epochs is not None:
        notes.append(training_text(task.training, outcome.steps, task.feeding.per_epoch or 0, engines.chosen))
    if outcome.integers is not None:
        notes += outcome.integers.notes
    elif task.quantization is not None and outcome.attempts:
        notes.append("the result is float: the run ended before anything was rounded")
    if outcome.helped:
        probes = [row.probe for row in outcome.history.rows if row.probe is not None]
        notes.append(still_falling(probes, outcome.loss_untrained))
    tags = {row.name: tag for tag, row in task.planned.items()}
    idle = [task.planned[tag] for tag in outcome.unreached if tag in task.planned]
    for name, row in {row.name: row for row in [*rest, *idle]}.items():
        behind = BEHIND if task.part is not None and row.weight.tag not in task.part.held else ""
        why = outcome.unreached.get(tags.get(name, "")) or behind or f"it is stored as {row.weight.tensor.kind}"
        notes.append(f"'{name}' was pruned, but not trained: {why}")
    stopped = any(outcome.unreached.get(tag, "").startswith(NO_GRADIENT) for tag in task.planned)
    if stopped and engines.chosen == "ort" and _torch_may_take(task):
        notes.append(TORCH_TRAINS)
    if evaluation.of == OF_WHOLE:
        notes.append(WHOLE)
    return list(filter(None, dict.fromkeys(notes)))


def _torch_may_take(task: Task) -> bool:
    from onnxsparse.engines.torch.supported_operators import (
        may_take,  # a run in onnxruntime-training has no need of it before
    )

    return may_take(task.trained.proto)


# -- the check of a training graph


def check_graph(
    source: Source,
    *,
    data: Any,
    recipe: Recipe,
    plan: Path | None = None,
    masks: Masks | None = None,
    labels: str | None = None,
    batch_axis: Axes = None,
    state: Axes = None,
    until: str | Sequence[str] | None = None,
) -> Report:
    """Make the training graph of a recipe, prove every gradient, and say what was found; `ok` is that none is wrong."""
    if plan is None and masks is None:
        recipe = _with_some_zeros(recipe)
    source = taken(source)
    task = ask(
        source, recipe, data, plan=plan, masks=masks, labels=labels, batch_axis=batch_axis, state=state, until=until
    )
    with temporary() as working_dir:
        sparsers = dict.fromkeys(task.planned, recipe.only(Pruning).sparser)
        _, made = task.engines(working_dir, check=True).built(task.spec.with_sparsers(sparsers))
    if made["classes"]:
        Evaluation(task).demand_classes(made["classes"])
    return _checked(called(source), made, {tag: one.name for tag, one in task.tags.items()})


def _with_some_zeros(recipe: Recipe) -> Recipe:
    """What is to be checked are gradients: which zeros there are does not matter, only that there are masks."""
    pruning = recipe.only(Pruning)
    timed = any(isinstance(one, Scheduled) for one in recipe.modifiers)
    if timed or pruning.pattern is not None or pruning.target is not None:
        return recipe
    some = replace(pruning, pattern="unstructured", sparsity=pruning.sparsity or 0.5)
    return Recipe(tuple(some if isinstance(one, Pruning) else one for one in recipe.modifiers))


def _checked(model: str, made: Mapping[str, Any], names: Mapping[str, str]) -> Report:
    """What is known of a training graph, as a report."""
    proof = made["proof"]

    def named(tags: Sequence[str]) -> list[str]:
        return [names.get(tag, tag) for tag in tags]

    details: dict[str, object] = {
        "batch": made["batch"],
        "checked": proof["checked"],
        "loss_at_rest": proof["at_rest"],
        "unreached": {names.get(tag, tag): reason for tag, reason in made["unreached"].items()},
        "silent": named(proof["silent"]),
        "wrong": named(proof["wrong"]),
    }
    ok = not proof["wrong"]
    return Report("check", model, "the training graph", (), Totals(), ok, "", tuple(made["notes"]), details=details)


# -- Whether a run ended too early: the loss on the samples held out was still falling clearly.


FEWEST = 6
"""Looks at the samples held out that say anything of where the loss goes."""
CLEARLY, MATTERS = 0.93, 0.02
"""What the last third of the looks is at most of the third before; and what is left of the loss without training."""


def still_falling(probes: Sequence[float], untrained: float) -> str:
    """A note with what to do, or nothing. `probes` were taken at even distances, under the final masks."""
    third = len(probes) // 3
    if len(probes) < FEWEST or probes[-1] < MATTERS * untrained:
        return ""
    before, last = median(probes[-2 * third : -third]), median(probes[-third:])
    if not 0 < last <= CLEARLY * before or probes[-1] > last:
        return ""
    return (
        f"the loss on the samples held out was still falling when the run ended, by {100 * (1 - last / before):.0f} % "
        "in its last third: more --epochs (or --steps) may help"
    )


# -- The recipe that a run went by, with every default that was decided on the way filled in.


def with_defaults(recipe: Recipe, plan: Plan, per_epoch: int, pruned_share: float, near: bool = False) -> Recipe:
    """What a recipe came to with a plan; `per_epoch` is the steps of an epoch, or 0 where nobody knows them."""
    known = {
        Training: _training_with_defaults(recipe.only(Training), per_epoch, pruned_share, near),
        Pruning: _pruning_with_defaults(recipe.only(Pruning), plan),
    }
    return Recipe(tuple(known.get(type(one), one) for one in recipe.modifiers))


def _training_with_defaults(training: Training, per_epoch: int, pruned_share: float, near: bool) -> Training:
    if training.steps is None and training.epochs is None:
        training = replace(training, steps=training.total(per_epoch))
    rate = training.base_rate(pruned_share, near)
    warm_up = training.warm_up_at(training.total(per_epoch))
    return replace(training, rate=None if training.optimizer == OWN else rate, warm_up=warm_up)


def _pruning_with_defaults(pruning: Pruning, plan: Plan) -> Pruning:
    rule = plan.rule
    if plan.holds or rule.pattern is None or not rule.pattern.takes_sparsity:
        return pruning
    if pruning.init == CALIBRATED:  # neither a score nor a schedule has a say in its masks
        return replace(pruning, allocation=rule.allocation.text)
    fixed = any(row.keep is not None for row in plan.planned)
    schedule = pruning.schedule or ("one-shot" if fixed else "cubic")
    return replace(pruning, allocation=rule.allocation.text, score=rule.score.text, schedule=schedule)
