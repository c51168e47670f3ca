"""One call of `finetune`: a model with its plan, data and means becomes a run, and what that comes to a result."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from onnxsparse.api import Result
from onnxsparse.checkpoints import note_delivery
from onnxsparse.data import LABELS, Samples, Stream, check_block, check_labels, open_data
from onnxsparse.engines.engine import NO_GRADIENT, Answering, Engine
from onnxsparse.engines.spec import Spec
from onnxsparse.errors import MissingExtraError, ModelError, OptionError, OutputError
from onnxsparse.graph.model import Model, Source
from onnxsparse.graph.output import check_target
from onnxsparse.graph.vectors import statistics
from onnxsparse.modifiers.objective import Objective
from onnxsparse.modifiers.pruning import Pruning
from onnxsparse.modifiers.training import BUILT_IN, Training
from onnxsparse.options import Axes, Masks, Path
from onnxsparse.passes.delivery import called, deliver, target_of
from onnxsparse.passes.describe import in_training
from onnxsparse.passes.fields import fields_of
from onnxsparse.passes.plan import PlanRow
from onnxsparse.passes.request import planned
from onnxsparse.passes.sample_axes import SampleAxes, sample_axes
from onnxsparse.passes.sides import set_sizes
from onnxsparse.passes.trainable import trainables
from onnxsparse.recipes import Recipe
from onnxsparse.runs.alike import demand_alike_call
from onnxsparse.runs.beside import beside, demand_apart
from onnxsparse.runs.carrying import FEWEST, Plain, demand_steps, first_steps, sequences_of
from onnxsparse.runs.classes import axes_of, classes_seen, declared_classes
from onnxsparse.runs.decided import decided
from onnxsparse.runs.falling import still_falling
from onnxsparse.runs.feeding import Feeding
from onnxsparse.runs.frame import framed, idle_labels
from onnxsparse.runs.goal import demand_floats, demand_keys, demand_output, goal_of
from onnxsparse.runs.job import Job, Outcome, Watcher
from onnxsparse.runs.measuring import Flat, Glance, Measure
from onnxsparse.runs.whole import Whole
from onnxsparse.runs.zeros import asked_zeros, pruned_share, zeros_by_epochs
from onnxsparse.train.engine_choice import ALONE, Engines, Means

SAMPLES = 64
NOT_RUN = (MissingExtraError, ModelError, ValueError)
"""What is raised where a whole file cannot be run; the last where it is too large to be one message."""
WHOLE = (
    "only a part of the network is in the graph that trains: the losses are of that part, the other figures of the "
    "whole file"
)
OF_PART, OF_WHOLE = ", of the part that trains", ", of the whole file"
PART_ONLY = "the metrics are of the part that trains, not of the delivered file, which `compare` measures"
TORCH_TRAINS = "`--engine torch` trains the weights of which this engine has no gradient"


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
        batch_axis: Axes = None,
        state: Axes = None,
    ) -> None:
        means.demand_sense(recipe.only(Training))
        self.target = target_of(output, source, overwrite)
        self.overwrite, self.recipe, self.source = overwrite, recipe, source
        self.means, self.processes = means, means.processes
        self.model = Model.open(source)
        if self.target is not None:
            self.model.demand_room(self.target)
        set_sizes(self.model, sizes)
        self.axes = sample_axes(self.model, batch_axis, state)
        self.training, self.objective = recipe.only(Training), recipe.only(Objective)
        self.by_epochs = zeros_by_epochs(self.model, recipe, plan, masks)
        if self.by_epochs is not None:
            self.plan, self.notes = self.by_epochs.plan, list(recipe.notes)
        else:
            asked = asked_zeros(recipe.only(Pruning), plan, masks, self.training)
            self.plan, notes = planned(self.model, plan, masks, asked)
            self.notes = [*recipe.notes, *notes]
        self.notes = [*self.notes, *self.objective.idle]
        demand_floats(self.model)
        demand_output(self.model, self.objective.output)
        demand_keys(self.model, recipe.modifiers, self.objective.output)
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
        fields, task = fields_of(self.model, self.axes), self.objective.task
        numbers = task != "cross-entropy" if task else None if labels is not None else False
        self.data = open_data(data, fields, labels, bool(task), numbers)
        self.sequences = sequences_of(self.model, self.axes)
        self.goal = goal_of(self.objective, self.data)
        if self.sequences is not None:
            demand_steps(self.sequences, self.data)
            self.goal = replace(self.goal, label_shape=self.goal.label_shape[1:])
        self.notes = [*self.notes, *idle_labels(self.recipe, self.data)]
        if task == "cross-entropy":
            check_labels(self.data, declared_classes(self.model, self.goal))
        training, together = self.training, self.processes
        if training.batch % together.count:
            raise OptionError(
                f"--batch-size {training.batch} cannot be shared by {together.count} processes; make it a multiple"
            )
        size, per_epoch = training.batch * training.accumulate, training.steps_per_epoch
        self.feeding = Feeding(self.data, size, training.seed, per_epoch, together.rank, together.count)
        if together.count > 1:
            recipe, planned = self.recipe.to_yaml(), self.planned
            demand_alike_call(together, self.model.sha256(), recipe, planned, self.feeding.count)
        self.plain = Plain(self.model, self.axes) if self.sequences is not None else None
        self.measure = self._measure(eval_data, labels, metrics)
        self._classes = 0
        self._whole: Whole | None = Whole(self.model, self.tags, self.plan, self.axes, set(self.measure.data.shared))
        self._partial = ""

    def _measure(self, data: Any, labels: str | None, metrics: Sequence[Any]) -> Measure:
        """What is measured on data of its own, if there is some, or else on the samples held out."""
        task = self.objective.task
        if data is None:
            if metrics:
                raise OptionError("--metric measures on --eval-data; pass that too")
            return Glance(
                self.feeding.held_out(), self.training.batch, axes_of(self.model, self.axes), task, self._flat
            )
        numbers = task != "cross-entropy" if task else None
        found = open_data(data, fields_of(self.model, self.axes), labels, bool(task), numbers)
        if not isinstance(found, Stream):
            found.look_through(math.inf)  # all of it is measured at the end, when the work is done
        if task == "cross-entropy":
            check_labels(found, declared_classes(self.model, self.goal))
        if self.sequences is not None:
            demand_steps(self.sequences, found)
        return Measure(found, metrics, self.training.batch, axes_of(self.model, self.axes), task, self._flat)

    @property
    def _flat(self) -> Flat | None:
        """Of sequences a row for each step; None where samples are no sequences."""
        return None if self.sequences is None else self.sequences.flat

    # -- the job

    def first_spec(self) -> Spec:
        """The graph without sparsers, which the pruning's part adds."""
        trained = {tag: one.name for tag, one in self.tags.items()}
        training, masked = self.training, dict.fromkeys(self.planned, "mask")
        decay = training.weight_decay if training.optimizer == BUILT_IN else None
        batch = training.batch // self.processes.count
        return Spec(batch, trained, masked, self.goal, training.train_bn, decay, self.axes.turned)

    def make_engines(self, room: str, check: bool) -> Engines:
        carried = (self.sequences, self.plain) if self.sequences is not None and self.plain is not None else None
        self.engines = Engines(
            self.model, self.tags, self.training, self.means, self._samples,
            room=room, check=check, axes=self.axes, carried=carried,
        )  # fmt: skip
        return self.engines

    def _samples(self) -> Mapping[str, Any]:
        """What a training graph is made and proven with."""
        count = max(SAMPLES, self.training.batch, declared_batch(self.model, self.axes, self.feeding.shared))
        if self.sequences is None or self.plain is None:
            return self.feeding.first(count)
        return first_steps(self.sequences, self.feeding.first(FEWEST), count, self.plain)

    def job(self, room: str, folder: str | None, resume: bool, check: bool, watch: Watcher | None) -> Job:
        engines = self.make_engines(room, check)
        return Job(
            self.recipe.modifiers,
            self.first_spec(),
            lambda spec: self._begun(engines.make(spec)),
            self.feeding,
            self.planned,
            self.plan.rule.score,
            lambda tag: self.tags[tag].numbers(),
            pruned_share(self.planned),
            self.digest(),
            folder=folder,
            resume=resume,
            watch=watch,
            measure=self._by_first(lambda engine: self._figures(engine, self.measure)),
            measure_dense=self._by_first(lambda engine: self._figures(engine, self.measure.dense)),
            each_epoch=self.measure.each_epoch,
            processes=self.processes,
            params=self.by_epochs.params if self.by_epochs is not None else (),
            acts=self.by_epochs.acts if self.by_epochs is not None else (),
        )

    def _by_first(self, measure: Callable[[Engine], dict[str, float]]) -> Callable[[Engine], dict[str, float]]:
        """Of several processes the first one measures."""
        return lambda engine: dict(self.processes.told(lambda: measure(engine)))

    def digest(self) -> str:
        rows = "\n".join(
            f"{tag} {row.pattern.text if row.pattern else ''} {row.drop}" for tag, row in self.planned.items()
        )
        states = [f"{name} {output}" for name, output in self.axes.states.items()]
        return self.first_spec().digest(self.model.sha256(), self.recipe.to_yaml(), rows, *states)

    def _begun(self, engine: Engine) -> Engine:
        if self.objective.task == "cross-entropy" and not self._classes:
            self.demand_classes(self._classes_seen(engine))
        try:
            self.measure.begin(self.seen(engine))
        except NOT_RUN as error:
            if not self._partial or self._whole is None:
                raise
            self._whole, self._partial = None, OF_PART
            self.notes.append(f"{PART_ONLY}: {error}")
            self.measure.begin(engine)
        return engine

    def _figures(self, engine: Engine, measure: Callable[[Answering], dict[str, float]]) -> dict[str, float]:
        """What is measured; nothing where that is the whole file and it fails now, for the training is done."""
        seen = self.seen(engine)
        if seen is engine:
            return measure(engine)
        try:
            return measure(seen)
        except ModelError as error:
            self.notes.append(f"not measured: the whole file could not be run to the end: {error}")
            return {}

    def seen(self, engine: Engine, rest: Sequence[PlanRow] | None = None) -> Answering:
        """What is measured: the engine, or the whole file where the engine's network is only a part of it.

        `rest` are the weights that are pruned there beside those of the engine: by default all that are planned.
        """
        known = {row for tag, row in self.planned.items() if tag in engine.weights}
        rest = [row for row in self.plan.planned if row not in known] if rest is None else rest
        if self._whole is None or not (engine.partial or rest):
            return engine
        self._partial = OF_WHOLE
        return self._whole.of(engine, rest)

    def _classes_seen(self, engine: Engine) -> int:
        batch = next(self.feeding.probe())
        arrays = batch.arrays if self.sequences is None else self.sequences.flat(batch.arrays)
        return classes_seen(engine.dense(batch), self.goal, arrays[LABELS])

    def demand_classes(self, classes: int) -> None:
        """Every label is one of the classes, also of what is measured on: engines read beyond their arrays."""
        self._classes = classes
        check_labels(self.data, classes)
        for place, batch in enumerate(self.feeding.probe() if isinstance(self.data, Stream) else ()):
            check_block(batch.arrays[LABELS], place * self.feeding.size, classes, self.data.called)
        if isinstance(self.measure.data, Samples):
            check_labels(self.measure.data, classes)

    # -- the result

    def deliver(self, outcome: Outcome, folder: str | None = None) -> Result:
        """Send what was trained back into the user's graph, and have it proven and written."""
        done = set(outcome.masked)
        rest = [row for tag, row in self.planned.items() if tag not in done]
        known = set(self.planned.values())
        rest += [row for row in self.plan.planned if row not in known]
        if self.by_epochs is not None:
            self.plan = self.by_epochs.done(outcome.arrays)
        made = decided(self.recipe, self.plan, self.feeding.per_epoch or 0, pruned_share(self.planned))
        axes = {"batch_axes": dict(self.axes.inputs), "states": dict(self.axes.states)}
        engine = self.engines.chosen if outcome.attempts else "none"
        of_part = OF_PART if self._partial == OF_PART else ""
        details = {"engine": engine, **axes, **_details(outcome, made, self.measure.on + of_part)}
        if self._partial and outcome.unit:
            details["loss_unit"] = outcome.unit + OF_PART
        texts = (made.to_yaml(), outcome.history.to_json(), outcome.history.to_csv())
        more = dict(zip(beside(self.target), texts)) if self.target is not None else {}
        note = None if folder is None else partial(note_delivery, folder)
        made_file = deliver(
            self.model, self.plan, outcome.arrays, self.tags, self.target, self.overwrite,
            name=called(self.source), notes=self._notes(outcome, rest), details=details, beside=more, note=note,
        )  # fmt: skip
        return Result(*made_file)

    def _notes(self, outcome: Outcome, rest: Sequence[PlanRow]) -> list[str]:
        notes = [*self.notes, *in_training(self.model), *self.engines.notes, *outcome.notes]
        probes = [row.probe for row in outcome.history.rows if row.probe is not None]
        if self.by_epochs is not None:
            per_epoch = self.feeding.per_epoch or 0
            notes.append(framed(self.training, outcome.steps, per_epoch, self.engines.chosen))
        notes += [still_falling(probes, outcome.loss_untrained)] if outcome.helped else []
        idle = [self.planned[tag] for tag in outcome.unreached if tag in self.planned]
        for row in dict.fromkeys([*rest, *idle]):
            notes.append(f"'{row.name}' was pruned, but not trained: {self._why(row, outcome)}")
        stopped = any(outcome.unreached.get(tag, "").startswith(NO_GRADIENT) for tag in self.planned)
        if stopped and self.engines.chosen == "ort":
            from onnxsparse.engines.torch.support import may_take  # only here: training in ort needs nothing of torch

            notes += [TORCH_TRAINS] if may_take(self.model.proto) else []
        if self._partial == OF_WHOLE:
            notes.append(WHOLE)
        return list(filter(None, dict.fromkeys(notes)))

    def _why(self, row: PlanRow, outcome: Outcome) -> str:
        tag = next((tag for tag, other in self.planned.items() if other is row), "")
        return outcome.unreached.get(tag) or f"it is stored as {row.weight.tensor.kind}"


def declared_batch(model: Model, axes: SampleAxes, shared: Collection[str]) -> int:
    """How many samples the file says that it takes; 0 where it leaves that open."""
    others = {tensor.name for tensor in model.proto.graph.initializer} | set(shared)
    inputs = [value for value in model.proto.graph.input if value.name not in others]
    shapes = [(value.type.tensor_type.shape.dim, axes.inputs.get(value.name, 0)) for value in inputs]
    return max((dims[axis].dim_value for dims, axis in shapes if dims), default=0)


def _details(outcome: Outcome, recipe: Recipe, measured_on: str) -> dict[str, object]:
    return {
        "recipe": recipe.to_yaml(),
        "steps": outcome.steps,
        "attempts": outcome.attempts,
        "helped": outcome.helped,
        "trained": outcome.trained,
        "loss_without_training": outcome.loss_untrained,
        "loss": outcome.loss,
        "loss_unit": outcome.unit,
        "measured_on": measured_on if outcome.attempts else "",
        "metrics_dense": outcome.dense,
        "metrics_without_training": outcome.untrained,
        "metrics": outcome.metrics,
    }
