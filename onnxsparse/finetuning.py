"""`finetune`: from a model, a recipe and data to a trained sparse model, by way of a run on an engine."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto

from onnxsparse.api import Result, finish, target_of
from onnxsparse.checkpoints import MARK, claim, note_delivery, was_delivered
from onnxsparse.data import BOUNDLESS, LABELS, Data, Stream, check_block, check_labels, open_data
from onnxsparse.data.imported import names_function
from onnxsparse.engines.engine import Engine
from onnxsparse.engines.rooms import claimed, temporary
from onnxsparse.engines.spec import Objective as Goal
from onnxsparse.engines.spec import Spec
from onnxsparse.epochs.planning import ByEpochs, by_epochs
from onnxsparse.errors import LeftOutError, OptionError, OutputError, nearest
from onnxsparse.graph.class_axis import axis_in
from onnxsparse.graph.model import Model, Source
from onnxsparse.graph.output import check_target
from onnxsparse.graph.vectors import statistics
from onnxsparse.losses.cross_entropy import class_axes, class_axis
from onnxsparse.modifiers.objective import Objective
from onnxsparse.modifiers.pruning import Pruning
from onnxsparse.modifiers.scheduled import Scheduled
from onnxsparse.modifiers.training import BUILT_IN, OWN, Training
from onnxsparse.passes.describe import planned_report
from onnxsparse.passes.fields import fields_of
from onnxsparse.passes.plan import Plan, PlanRow
from onnxsparse.passes.prune import Prune
from onnxsparse.passes.record import record
from onnxsparse.passes.request import Masks, Names, Options, Path, demand_whole, listed, path_of, planned
from onnxsparse.passes.trainable import send_back, trainables
from onnxsparse.patterns.nm import NM
from onnxsparse.recipes import Recipe
from onnxsparse.recipes.flags import FLAGS, recipe_of, takes_frame
from onnxsparse.report.history import History
from onnxsparse.report.rows import Report, Totals
from onnxsparse.runs.choosing import ALONE, Engines, Means, met
from onnxsparse.runs.falling import still_falling
from onnxsparse.runs.feeding import Feeding
from onnxsparse.runs.measuring import Measure
from onnxsparse.runs.run import Job, Outcome, Run, Watcher

FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)


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
    pattern: str | None = None,
    target: str | None = None,
    sparsity: float | str | None = None,
    allocation: str | None = None,
    score: str | None = None,
    include: Names = (),
    exclude: Names = (),
    allow: Names = (),
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
    checks: int | None = None,
    retries: int | None = None,
    checkpoint: Path | None = None,
    resume: bool = False,
    check: bool = False,
    strict: bool = False,
    overwrite: bool = False,
    watch: Watcher | None = None,
) -> Result:
    """Make a model sparse and train what is left on data, with or without labels.

    The options say what `onnxsparse finetune --help` says of them; together they make a recipe, or one is given.
    In torch `optimizer` may be a function from parameters to an optimizer, `lr_scheduler` one from that to a scheduler.
    """
    given = {name: value for name, value in locals().items() if name in FLAGS}
    loaded = _loaded(recipe)
    made = recipe_of({**given, **_own(optimizer, lr_scheduler, loaded), **_listed(include, exclude, allow)}, loaded)
    if resume and checkpoint is None:
        raise OptionError("resume goes on with a run in a folder; pass its checkpoint folder too")
    processes, device = met(engine, device)
    if not processes.first:
        output = checkpoint = watch = None
    if _calls(data) or _calls(eval_data) or any(map(_calls, metrics)):
        source, output, checkpoint = _standing(source), _standing(output), _standing(checkpoint)
        data, eval_data = (one if _calls(one) else _standing(one) for one in (data, eval_data))
    means = Means(engine, device, optimizer if callable(optimizer) else None, lr_scheduler, processes)
    may_replace = overwrite or (resume and _is_own(output, source, checkpoint))
    tuning = Tuning(source, made, plan, masks, output, may_replace, means)
    tuning.keep_apart({"data": data, "eval-data": eval_data, "plan": plan, "masks": masks, "recipe": recipe})
    tuning.open(data, labels, eval_data, metrics)
    demand_whole(tuning.plan, strict)
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


def _listed(include: Names, exclude: Names, allow: Names) -> dict[str, list[str]]:
    """A single name may stand for a list of one."""
    names = {"include": include, "exclude": exclude, "allow": allow}
    return {name: list(listed(value)) for name, value in names.items()}


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
) -> Report:
    """Make the training graph of a recipe, prove every gradient, and say what was found; `ok` is that none is wrong."""
    if plan is None and masks is None:
        recipe = _with_some_zeros(recipe)
    tuning = Tuning(source, recipe, plan, masks, None, False)
    tuning.open(data, labels, None, ())
    with temporary() as room:
        sparsers = dict.fromkeys(tuning.planned, recipe.only(Pruning).sparser)
        made = tuning.engines.built(tuning.first_spec().with_sparsers(sparsers), room, check=True)
    if made["classes"]:
        tuning.demand_classes(made["classes"])
    return _checked(_called(source), made, {tag: one.name for tag, one in tuning.tags.items()})


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


class Tuning:
    """One call of `finetune`, step by step."""

    def __init__(
        self,
        source: Source,
        recipe: Recipe,
        plan: Path | None,
        masks: Masks | None,
        output: Path | None,
        overwrite: bool,
        means: Means = ALONE,
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        means.demand_sense(recipe.only(Training))
        self.target = target_of(output, source, overwrite)
        self.overwrite, self.recipe, self.source = overwrite, recipe, source
        self.means, self.processes = means, means.processes
        self.model = Model.open(source)
        self.model.sizes.update(sizes or {})
        self.training, self.objective = recipe.only(Training), recipe.only(Objective)
        self.by_epochs = _by_epochs(self.model, recipe, plan, masks)
        if self.by_epochs is not None:
            self.plan, self.notes = self.by_epochs.plan, list(recipe.notes)
        else:
            self.plan, notes = planned(
                self.model, plan, masks, _options(recipe.only(Pruning), plan, masks, self.training)
            )
            self.notes = [*recipe.notes, *notes]
        self.notes = [*self.notes, *self.objective.idle]
        _demand_output(self.model, self.objective.output)
        self.tags = trainables(self.model, self.plan, self.training.train_bn)
        by_tensor = {one.tensor: tag for tag, one in self.tags.items()}
        rows = {by_tensor.get(row.weight.tensor): row for row in self.plan.planned}
        self.planned = {tag: row for tag, row in rows.items() if tag is not None}
        if self.training.train_bn and not statistics(self.model):
            self.notes.append(
                "--train-bn changes nothing: no BatchNormalization of the model has statistics of its own"
            )

    def keep_apart(self, inputs: Mapping[str, Any]) -> None:
        """Say now what would be in the way of the result, and that it would replace what it is made from."""
        if self.target is None:
            return
        for path in (self.target, *beside(self.target)):
            check_target(path, self.overwrite)
        for name, value in inputs.items():
            demand_apart(self.target, name, value)
        if any(os.path.realpath(path) in map(os.path.realpath, self.model.inputs) for path in beside(self.target)):
            raise OutputError(f"a file beside {self.target} would replace one of the model; choose another name")

    @property
    def has_work(self) -> bool:
        """Whether anything is to be pruned; modifiers that act by epochs say that themselves."""
        return bool(self.plan.planned) or self.by_epochs is not None

    # -- data

    def open(self, data: Any, labels: str | None, eval_data: Any, metrics: Sequence[Any]) -> None:
        fields, task = fields_of(self.model), self.objective.task
        numbers = task != "cross-entropy" if task else None if labels is not None else False
        self.data = open_data(data, fields, labels, bool(task), numbers)
        self.goal = _goal(self.objective, self.data)
        if task == "cross-entropy":
            check_labels(self.data, _classes(self.model, self.goal))
        training, together = self.training, self.processes
        if training.batch % together.count:
            raise OptionError(
                f"--batch-size {training.batch} cannot be shared by {together.count} processes; make it a multiple"
            )
        size, per_epoch = training.batch * training.accumulate, training.steps_per_epoch
        self.feeding = Feeding(self.data, size, training.seed, per_epoch, together.rank, together.count)
        self.engines = Engines(self.model, self.tags, self.feeding, training, self.means)
        self.measure: Measure | None = None
        self._classes = 0
        if eval_data is not None:
            found = open_data(eval_data, fields, labels, bool(task), task != "cross-entropy" if task else None)
            if not isinstance(found, Stream):
                found.look_through(math.inf)  # all of it is measured at the end, when the work is done
            if task == "cross-entropy":
                check_labels(found, _classes(self.model, self.goal))
            self.measure = Measure(found, metrics, training.batch, _axes(self.model), task)
        elif metrics:
            raise OptionError("--metric measures on --eval-data; pass that too")

    # -- the job

    def first_spec(self) -> Spec:
        """The graph without sparsers, which the pruning's part adds."""
        trained = {tag: one.name for tag, one in self.tags.items()}
        training, masked = self.training, dict.fromkeys(self.planned, "mask")
        decay = training.weight_decay if training.optimizer == BUILT_IN else None
        batch = training.batch // self.processes.count
        return Spec(batch, trained, masked, self.goal, training.train_bn, decay)

    def job(self, room: str, folder: str | None, resume: bool, check: bool, watch: Watcher | None) -> Job:
        return Job(
            self.recipe.modifiers,
            self.first_spec(),
            lambda spec: self._begun(self.engines.make(spec, room, check)),
            self.feeding,
            self.planned,
            self.plan.rule.score,
            lambda tag: self.tags[tag].numbers(),
            pruned_share(self.planned),
            self.digest(),
            folder=folder,
            resume=resume,
            watch=watch,
            measure=self._by_first(self.measure) if self.measure else None,
            measure_dense=self._by_first(self.measure.dense) if self.measure else None,
            processes=self.processes,
            params=self.by_epochs.params if self.by_epochs is not None else (),
        )

    def _by_first(self, measure: Callable[[Engine], dict[str, float]]) -> Callable[[Engine], dict[str, float]]:
        """Of several processes the first one measures."""
        return lambda engine: dict(self.processes.told(lambda: measure(engine)))

    def digest(self) -> str:
        rows = "\n".join(
            f"{tag} {row.pattern.text if row.pattern else ''} {row.drop}" for tag, row in self.planned.items()
        )
        return self.first_spec().digest(self.model.sha256(), self.recipe.to_yaml(), rows)

    def _begun(self, engine: Engine) -> Engine:
        if self.objective.task == "cross-entropy" and not self._classes:
            self.demand_classes(self._classes_of(engine))
        if self.measure is not None:
            self.measure.begin(engine)
        return engine

    def _classes_of(self, engine: Engine) -> int:
        """How many classes the logits tell apart, as they come out."""
        batch = next(self.feeding.probe())
        outputs = engine.dense(batch)
        logits = outputs[self.goal.output] if self.goal.output else next(iter(outputs.values()))
        axis = class_axis((None, *logits.shape[1:]), (None, *batch.arrays[LABELS].shape[1:]))
        return BOUNDLESS if axis is None else int(logits.shape[axis])

    def demand_classes(self, classes: int) -> None:
        """Every label is one of the classes, also of what is measured on: engines read beyond their arrays."""
        self._classes = classes
        check_labels(self.data, classes)
        for place, batch in enumerate(self.feeding.probe() if isinstance(self.data, Stream) else ()):
            check_block(batch.arrays[LABELS], place * self.feeding.size, classes, self.data.called)
        if self.measure is not None:
            check_labels(self.measure.data, classes)

    # -- the result

    def deliver(self, outcome: Outcome, folder: str | None = None) -> Result:
        """Send what was trained back into the user's graph, and have it proven and written."""
        done = set(outcome.masked)
        rest = [row for tag, row in self.planned.items() if tag not in done]
        known = {id(row) for row in self.planned.values()}
        rest += [row for row in self.plan.planned if id(row) not in known]
        Prune(Plan(tuple(rest), self.plan.rule))()
        send_back(outcome.arrays, self.tags)
        if self.by_epochs is not None:
            self.plan = self.by_epochs.done(outcome.arrays, self.model)
        report = planned_report(
            "prune", _called(self.source), self.plan, self.model, self._notes(outcome, rest), self.target
        )
        decided = self._decided()
        details = {"engine": self.engines.chosen if outcome.attempts else "none", **_details(outcome, decided)}
        report = replace(report, command="finetune", details=details)
        record(self.model, self.plan)
        texts = (decided.to_yaml(), outcome.history.to_json(), outcome.history.to_csv())
        more = dict(zip(beside(self.target), texts)) if self.target is not None else {}
        note = None if folder is None else partial(note_delivery, folder)
        return finish(self.model, report, self.target, self.overwrite, self.plan, more, note)

    def _decided(self) -> Recipe:
        """The recipe with every default that was decided on the way filled in."""
        training, pruning = self.training, self.recipe.only(Pruning)
        per_epoch = self.feeding.per_epoch
        if training.steps is None and training.epochs is None:
            training = replace(training, steps=training.total(per_epoch or 0))
        rate = training.base_rate(pruned_share(self.planned))
        warm_up = training.warm_up_at(training.total(per_epoch or 0))
        training = replace(training, rate=None if training.optimizer == OWN else rate, warm_up=warm_up)
        rule = self.plan.rule
        if rule.pattern is not None and rule.pattern.takes_sparsity:
            fixed = any(row.keep is not None for row in self.plan.planned)
            schedule = pruning.schedule or ("one-shot" if fixed else "cubic")
            pruning = replace(pruning, allocation=rule.allocation.text, score=rule.score.text, schedule=schedule)
        known = {Training: training, Pruning: pruning}
        return Recipe(tuple(known.get(type(one), one) for one in self.recipe.modifiers))

    def _notes(self, outcome: Outcome, rest: Sequence[PlanRow]) -> list[str]:
        notes = [*self.notes, *self.engines.notes, *outcome.notes]
        probes = [row.probe for row in outcome.history.rows if row.probe is not None]
        notes += [still_falling(probes, outcome.loss_untrained)] if outcome.helped else []
        for row in rest:
            notes.append(f"'{row.name}' was pruned, but not trained: {self._why(row, outcome)}")
        return list(filter(None, dict.fromkeys(notes)))

    def _why(self, row: PlanRow, outcome: Outcome) -> str:
        tag = next((tag for tag, other in self.planned.items() if other is row), "")
        return outcome.unreached.get(tag) or f"it is stored as {row.weight.tensor.kind}"


def _by_epochs(model: Model, recipe: Recipe, plan: Path | None, masks: Masks | None) -> ByEpochs | None:
    """What modifiers that act by epochs mean in a model, where the recipe has some."""
    timed = [one for one in recipe.modifiers if isinstance(one, Scheduled)]
    if not timed:
        return None
    for name, value in (("--plan", plan), ("--masks", masks)):
        if value is not None:
            raise OptionError(f"the recipe says what is pruned; leave {name} out")
    return by_epochs(model, timed)


def _options(pruning: Pruning, plan: Path | None, masks: Masks | None, training: Training) -> Options:
    """What the pruning asks for. The allocation is Erdős–Rényi where there is a choice and nobody made one."""
    allocation = pruning.allocation
    free = plan is None and masks is None and pruning.pattern is not None
    if allocation is None and free and str(pruning.pattern).partition(":")[0] in ("unstructured", "block"):
        allocation = "erk"
    seed = training.seed if pruning.score == "random" else None
    return Options(
        pruning.pattern, pruning.target, pruning.sparsity, allocation, pruning.score,
        pruning.include, pruning.exclude, pruning.allow, seed,
    )  # fmt: skip


def pruned_share(planned_rows: Mapping[str, PlanRow]) -> float:
    """The share of all planned elements that go."""
    size = sum(row.weight.tensor.size for row in planned_rows.values())
    gone = sum(_gone(row) for row in planned_rows.values())
    return gone / size if size else 0.0


def _gone(row: PlanRow) -> float:
    if row.keep is not None:
        return float(row.keep.size - np.count_nonzero(row.keep))
    if isinstance(row.pattern, NM):
        return (row.weight.tensor.size - row.ragged) * (row.pattern.m - row.pattern.n) / row.pattern.m
    assert row.pattern is not None
    return float(row.drop * row.pattern.unit_size(row.use.shape4))


def _goal(objective: Objective, data: Data) -> Goal:
    shape: tuple[int, ...] = ()
    dtype = "int64" if objective.task == "cross-entropy" else "float32"
    if objective.task:
        some = data.take(np.zeros(1, np.int64)) if not isinstance(data, Stream) else data.batch(0, 1)
        shape = tuple(some["labels"].shape[1:])
    return Goal(
        objective.task,
        objective.output,
        shape,
        dtype,
        objective.kind_of_distillation,
        objective.share,
        objective.softness,
        objective.axis,
    )


def _axes(model: Model) -> dict[str, int]:
    """Along which axis the classes of an output lie, where the graph says it."""
    found = {value.name: axis_in(model.proto, value.name) for value in model.proto.graph.output}
    return {name: axis for name, axis in found.items() if axis is not None}


def _classes(model: Model, goal: Goal) -> int:
    """How many classes an output tells apart, where the model declares it; otherwise that is found out later."""
    for value in model.proto.graph.output:
        kind = value.type.tensor_type
        if value.name == goal.output or (not goal.output and kind.elem_type in FLOATS):
            sizes = [None, *(dim.dim_value or None for dim in kind.shape.dim[1:])]
            axes = class_axes(sizes, (None, *goal.label_shape))
            sure = len(axes) == 1 or None not in sizes[1:]
            return sizes[axes[0]] or BOUNDLESS if axes and sure else BOUNDLESS
    return BOUNDLESS


def beside(target: str) -> list[str]:
    """What is written beside a result: the recipe, and the history twice."""
    return [os.path.splitext(target)[0] + ending for ending in (".recipe.yaml", ".history.json", ".history.csv")]


def _is_own(output: Path | None, source: Source, checkpoint: Path | None) -> bool:
    """Whether what is in the way of a result was delivered by the run that goes on; the model itself never was."""
    if output is None or checkpoint is None:
        return False
    target = path_of(output, "output")
    if not isinstance(source, ModelProto) and os.path.realpath(target) == os.path.realpath(os.fspath(source)):
        return False
    return was_delivered(path_of(checkpoint, "checkpoint"), (target, *beside(target)))


def demand_apart(target: str, name: str, value: Any) -> None:
    """Neither a result nor what is written beside it is what an option names."""
    for path in (target, *beside(target)):
        if isinstance(value, (str, os.PathLike)) and _covers(os.fspath(value), path):
            raise OutputError(f"{path} would replace what --{name} names; choose another name for the result")


def _covers(given: str, path: str) -> bool:
    """Whether a path is the given file, or in the given folder."""
    ours, theirs = os.path.realpath(path), os.path.realpath(given)
    return ours == theirs or (os.path.isdir(theirs) and os.path.dirname(ours) == theirs and os.path.exists(ours))


def _demand_output(model: Model, wanted: str) -> None:
    names = [value.name for value in model.proto.graph.output]
    if wanted and wanted not in names:
        raise OptionError(f"the model has no output {wanted!r:.60}{nearest(wanted, names)}")


def _called(source: Source) -> str:
    return os.fspath(source) if isinstance(source, (str, os.PathLike)) else "(in memory)"


def _details(outcome: Outcome, recipe: Recipe) -> dict[str, object]:
    return {
        "recipe": recipe.to_yaml(),
        "steps": outcome.steps,
        "attempts": outcome.attempts,
        "helped": outcome.helped,
        "loss_without_training": outcome.loss_untrained,
        "loss": outcome.loss,
        "metrics_dense": outcome.dense,
        "metrics_without_training": outcome.untrained,
        "metrics": outcome.metrics,
    }


__all__ = ["check_graph", "finetune"]
