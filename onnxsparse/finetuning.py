"""`finetune`: from a model, a recipe and data to a trained sparse model, by way of a run on an engine."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from onnxsparse.api import Result, called
from onnxsparse.checkpoints import MARK, claim
from onnxsparse.data.imported import names_function
from onnxsparse.engines.rooms import claimed, temporary
from onnxsparse.errors import LeftOutError, OptionError
from onnxsparse.graph.model import Source
from onnxsparse.modifiers.pruning import Pruning
from onnxsparse.modifiers.scheduled import Scheduled
from onnxsparse.modifiers.training import OWN
from onnxsparse.options import Axes, Masks, Names, Path
from onnxsparse.passes.request import demand_whole, path_of
from onnxsparse.passes.taken import taken
from onnxsparse.recipes import Recipe
from onnxsparse.recipes.flags import asked_of, recipe_of, takes_frame
from onnxsparse.report.history import History
from onnxsparse.report.rows import Report, Totals
from onnxsparse.runs.beside import is_own
from onnxsparse.runs.choosing import Means, met
from onnxsparse.runs.job import Outcome
from onnxsparse.runs.run import Run
from onnxsparse.tuning import Tuning


def finetune(
    source: Source,
    *,
    data: Any,
    output: Path | None = None,
    recipe: Recipe | Path | None = None,
    engine: str = "auto",
    plan: Path | None = None,
    masks: Masks | None = None,
    labels: str | None = None,
    eval_data: Any = None,
    metrics: Sequence[str | Callable[..., Any]] = (),
    batch_axis: Axes = None,
    state: Axes = None,
    pattern: str | None = None,
    target: str | None = None,
    sparsity: float | str | None = None,
    allocation: str | None = None,
    score: str | None = None,
    include: Names = (),
    exclude: Names = (),
    allow: Names = (),
    level: float | str | None = None,
    schedule: str | None = None,
    start_sparsity: float | None = None,
    prune_begin: float | None = None,
    prune_end: float | None = None,
    updates: int | None = None,
    regrow: str | None = None,
    sparser: str | None = None,
    loss: str | None = None,
    hardness: float | None = None,
    temperature: float | None = None,
    distillation: str | None = None,
    loss_output: str | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    steps_per_epoch: int | None = None,
    batch_size: int | None = None,
    accumulate: int | None = None,
    precision: str | None = None,
    device: str | None = None,
    optimizer: str | Callable[[Any], Any] | None = None,
    lr: float | None = None,
    lr_schedule: str | None = None,
    lr_scheduler: Callable[[Any], Any] | None = None,
    warm_up: float | None = None,
    weight_decay: float | None = None,
    clip: float | None = None,
    train_bn: bool | None = None,
    seed: int | None = None,
    dims: Mapping[str, int] | None = None,
    checks: int | None = None,
    retries: int | None = None,
    checkpoint: Path | None = None,
    resume: bool = False,
    check: bool = False,
    strict: bool = False,
    overwrite: bool = False,
    watch: Callable[[dict[str, Any]], None] | None = None,
) -> Result:
    """Make a model sparse and train what is left on data, with or without labels.

    The options make a recipe together, or one is given.
    """
    given = asked_of(locals())
    source = taken(source)
    loaded = _loaded(recipe)
    made = recipe_of({**given, **_own(optimizer, lr_scheduler, loaded)}, loaded)
    if resume and checkpoint is None:
        raise OptionError("resume goes on with a run in a folder; pass its checkpoint folder too")
    processes, device = met(engine, device)
    if not processes.first:
        output = checkpoint = watch = None
    if _calls(data) or _calls(eval_data) or any(map(_calls, metrics)):
        source, output, checkpoint = _standing(source), _standing(output), _standing(checkpoint)
        data, eval_data = (one if _calls(one) else _standing(one) for one in (data, eval_data))
    means = Means(engine, device, optimizer if callable(optimizer) else None, lr_scheduler, processes)
    may_replace = overwrite or (resume and is_own(output, source, checkpoint))
    tuning = Tuning(source, made, plan, masks, output, may_replace, means, dims, batch_axis=batch_axis, state=state)
    tuning.keep_apart({"data": data, "eval-data": eval_data, "plan": plan, "masks": masks, "recipe": recipe})
    tuning.open(data, labels, eval_data, metrics)
    demand_whole(tuning.plan, strict, some=tuning.by_epochs is None)
    with ExitStack() as stack:
        folder = None if checkpoint is None else path_of(checkpoint, "checkpoint")
        room = folder or stack.enter_context(temporary())
        if folder is not None:
            claim(folder)
            stack.enter_context(claimed(folder, MARK))
        outcome = Run(tuning.job(room, folder, resume, check, watch)).go() if tuning.has_work else _unchanged()
    if strict and outcome.attempts and not outcome.helped:
        raise LeftOutError("--strict: no training was better than pruning alone; nothing was written")
    result = tuning.deliver(outcome, folder)
    processes.meet()
    return result


def _calls(value: Any) -> bool:
    """Whether it is a function of the user's, or names one: that may change the current folder."""
    named = isinstance(value, str) and names_function(value) and not os.path.exists(value)
    return named or (callable(value) and not isinstance(value, Mapping)) or hasattr(value, "__next__")


def _standing(value: Any) -> Any:
    """A path that means the same wherever the current folder is."""
    return (
        os.path.abspath(value) if isinstance(value, (str, os.PathLike)) and os.fspath(value) not in ("", "-") else value
    )


def _unchanged() -> Outcome:
    """Nothing was pruned, so there is nothing to make up for."""
    notes = ["nothing was trained: there is nothing to prune"]
    return Outcome({}, [], History(), math.nan, math.nan, False, 0, notes)


def _own(optimizer: Any, lr_scheduler: Any, recipe: Recipe | None) -> dict[str, str | None]:
    """What a recipe says of functions of the user's."""
    word = OWN if recipe is None or takes_frame(recipe) else None
    named = {"optimizer": word} if callable(optimizer) else {}
    return {**named, **({"lr_schedule": word} if lr_scheduler is not None else {})}


def _loaded(recipe: Recipe | Path | None) -> Recipe | None:
    return recipe if recipe is None or isinstance(recipe, Recipe) else Recipe.load(path_of(recipe, "recipe"))


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
) -> Report:
    """Make the training graph of a recipe, prove every gradient, and say what was found; `ok` is that none is wrong."""
    source = taken(source)
    if plan is None and masks is None:
        recipe = _with_some_zeros(recipe)
    tuning = Tuning(source, recipe, plan, masks, None, False, batch_axis=batch_axis, state=state)
    tuning.open(data, labels, None, ())
    with temporary() as room:
        sparsers = dict.fromkeys(tuning.planned, recipe.only(Pruning).sparser)
        made = tuning.engines.built(tuning.first_spec().with_sparsers(sparsers), room, check=True)
    if made["classes"]:
        tuning.demand_classes(made["classes"])
    return _checked(called(source), made, {tag: one.name for tag, one in tuning.tags.items()})


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


__all__ = ["check_graph", "finetune"]
