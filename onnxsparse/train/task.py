"""The training task: model, recipe, plan, data and engine options, read once and checked before anything is made.

`ask` opens the model, plans its zeros and opens the data; every refusal that needs no engine is there. The `Task` that
it makes never changes: the loop, the choice of an engine, the evaluation and the delivery all read it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from onnx import ModelProto

from onnxsparse.acts.act import TimedAct
from onnxsparse.acts.params import Param
from onnxsparse.data import Data, Samples, check_labels, open_data
from onnxsparse.engines.engine import Batch, Engine, LossSpec, Spec
from onnxsparse.engines.processes import Processes
from onnxsparse.errors import MissingExtraError, ModelError, OptionError
from onnxsparse.graph.biases_and_scales import statistics
from onnxsparse.graph.edit import copied
from onnxsparse.graph.model import Model, Source
from onnxsparse.math.values import Array
from onnxsparse.options import Axes, Masks, Names, Path, SparsityOptions
from onnxsparse.passes.delivery import called
from onnxsparse.passes.quantization.float_graph import float_graph
from onnxsparse.passes.quantization.placement import quantization_of
from onnxsparse.passes.quantization.quantizing import TARGETS, demand_possible
from onnxsparse.planning.graph_layers import missed
from onnxsparse.planning.macs import set_sizes
from onnxsparse.planning.model_inputs import SAMPLES_FIRST, SampleAxes, fields_of, sample_axes
from onnxsparse.planning.plan import Plan, PlanRow
from onnxsparse.planning.quantization import Quantization, Scheme
from onnxsparse.planning.recorded import readable
from onnxsparse.planning.request import demand_whole, planned
from onnxsparse.planning.stored_params import StoredParam
from onnxsparse.planning.trainable import trainables
from onnxsparse.recipes import Recipe
from onnxsparse.recipes.flags import RATES
from onnxsparse.recipes.modifiers.constant import ConstantPruningModifier
from onnxsparse.recipes.modifiers.modifier import NEVER, Modifier, Scheduled
from onnxsparse.recipes.modifiers.pruning import CALIBRATED, Pruning
from onnxsparse.recipes.modifiers.quantization import QuantizeAct, Quantizing, TrainQuantized
from onnxsparse.recipes.modifiers.training import BUILT_IN, OWN, Objective, Training
from onnxsparse.recipes.plan_by_epochs import ByEpochs, by_epochs, passed_over, sparse_but_free
from onnxsparse.scores import Score
from onnxsparse.train.batches import Feeding
from onnxsparse.train.cut import Part, part_of, said_of_cuts
from onnxsparse.train.engine_choice import ALONE, Engines, Means
from onnxsparse.train.measure import Glance, Measure
from onnxsparse.train.objective import axes_of, declared_classes, demand_floats, demand_output, goal_of
from onnxsparse.train.sequences import FEWEST, Plain, Sequences, demand_steps, first_steps, sequences_of
from onnxsparse.train.side_files import NOWHERE, Destination

SAMPLES = 64
"""The samples at least that a training graph is made and proven with."""
CALIBRATION = 256
"""The samples at least that give the first ranges of what is rounded."""


@dataclass(frozen=True, eq=False)
class Task:
    """What is asked of a training; nothing of it changes."""

    model: Model
    recipe: Recipe
    plan: Plan
    tags: Mapping[str, StoredParam]
    """Every stored tensor that trains, by tag; of copies that are one the one."""
    data: Data
    feeding: Feeding
    goal: LossSpec
    measure: Measure | None = None
    name: str = ""
    """What reports call the model."""
    means: Means = ALONE
    axes: SampleAxes = SAMPLES_FIRST
    carried: tuple[Sequences, Plain] | None = None
    """The states of sequences, where the samples are such."""
    by_epochs: ByEpochs | None = None
    """What modifiers that act by epochs mean in this model, where the recipe has some."""
    part: Part | None = None
    """What of the model trains, where it is cut before its end, or where copies are one; the plan and what is
    delivered are of the whole."""
    copies: Mapping[str, StoredParam] = field(default_factory=dict)
    """What trains as another tensor does, by tag."""
    levels: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """How many units of each planned weight go at each level, by tag."""
    calibrates: bool = False
    """Whether every level starts from a calibration of the level before."""
    quantization: Quantization | None = None
    """What is rounded in the training, from some step on; the model is the float graph that it was decided for."""
    start: Mapping[str, Array] | None = None
    """The numbers that training begins with, by tag, where a calibration made some: the dense model stays the
    teacher, and every planned row has its mask."""
    notes: tuple[str, ...] = ()
    digest: str = ""
    """What has to be the same for a run to be resumed: see `digest_of`."""

    @property
    def modifiers(self) -> Sequence[Modifier]:
        """Those that act in the run: through levels, the levels prune."""
        return [one for one in self.recipe.modifiers if not (self.levels and isinstance(one, Pruning))]

    @property
    def training(self) -> Training:
        return self.recipe.only(Training)

    @property
    def objective(self) -> Objective:
        return self.recipe.only(Objective)

    @property
    def processes(self) -> Processes:
        return self.means.processes

    @property
    def learned_scales(self) -> bool:
        """Whether what it is rounded by trains along."""
        return any(one.learn_scales for one in self.recipe.modifiers if isinstance(one, TrainQuantized))

    def calibration(self) -> Iterator[dict[str, Array]]:
        """Some samples in batches, for the first ranges of what is rounded."""
        size, shared = self.training.batch, self.feeding.shared
        some = self.feeding.first(max(CALIBRATION, size))
        for start in range(0, max(CALIBRATION, size), size):
            rows = slice(start, start + size)
            yield {name: array if name in shared else array[rows] for name, array in some.items()}

    @property
    def params(self) -> Sequence[Param]:
        """What the names of a recipe mean, for modifiers that act by epochs."""
        return self.by_epochs.params if self.by_epochs is not None else ()

    @property
    def acts(self) -> Sequence[TimedAct]:
        """The acts of those modifiers, in their order: the plan has bound them."""
        return self.by_epochs.acts if self.by_epochs is not None else ()

    @property
    def has_work(self) -> bool:
        """Whether anything is to be pruned or rounded; modifiers that act by epochs say that themselves."""
        return bool(self.plan.planned) or self.by_epochs is not None or self.quantization is not None

    @cached_property
    def planned(self) -> dict[str, PlanRow]:
        """The planned weights that train, by tag."""
        by_tensor = {one.tensor: tag for tag, one in self.tags.items()}
        rows = self.plan.planned
        return {by_tensor[row.weight.tensor]: row for row in rows if row.weight.tensor in by_tensor}

    @property
    def score(self) -> Score:
        return self.plan.rule.score

    @cached_property
    def pruned_share(self) -> float:
        """The share of all elements of planned weights that go, of those that are not gone already."""
        return 0.0 if self.plan.holds else pruned_share(self.planned)

    @cached_property
    def spec(self) -> Spec:
        """The training graph without the sparsers that the pruning adds."""
        training = self.training
        trained, masked = {tag: one.name for tag, one in self.tags.items()}, dict.fromkeys(self.planned, "mask")
        decay = training.weight_decay if training.optimizer == BUILT_IN else None
        batch = training.batch // self.processes.count
        return Spec(batch, trained, masked, self.goal, training.train_bn, decay, self.axes.turned)

    def numbers(self, tag: str) -> Array:
        """The dense numbers of a stored tensor."""
        return self.tags[tag].numbers()

    def first_numbers(self, tag: str) -> Array:
        """The numbers of a stored tensor that training begins with."""
        found = None if self.start is None else self.start.get(tag)
        return self.numbers(tag) if found is None else found

    @property
    def starts_near(self) -> bool:
        """Whether the start is near the goal: labels teach what neither it nor the dense model knows."""
        return self.start is not None and not self.objective.task

    @property
    def trained(self) -> Model:
        """What the engines see of the model."""
        return self.model if self.part is None else self.part.model

    @property
    def reachable(self) -> list[PlanRow]:
        """The planned weights that are in it."""
        if self.part is None:
            return self.plan.planned
        return [row for row in self.plan.planned if row.weight.tag in self.part.held]

    @property
    def every(self) -> Mapping[str, StoredParam]:
        """All that trains, with the copies."""
        return {**self.tags, **self.copies}

    def with_copies(self, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        """Trained numbers by tag, with those of the copies."""
        return arrays if self.part is None else self.part.spread(arrays)

    def engines(self, working_dir: str, check: bool = False) -> Engines:
        """What makes the engines of this task, with their graphs in a folder."""
        return Engines(
            self.trained, self.tags if self.part is None else self.part.tags, self.training, self.means, self._samples,
            working_dir=working_dir, check=check, axes=self.axes, carried=self.carried,
        )  # fmt: skip

    def _samples(self) -> dict[str, Array]:
        """What a training graph is made and proven with: as many samples as the file declares, or a batch has."""
        others = {tensor.name for tensor in self.trained.proto.graph.initializer} | self.feeding.shared
        inputs = [value for value in self.trained.proto.graph.input if value.name not in others]
        shapes = [(value.type.tensor_type.shape.dim, self.axes.inputs.get(value.name, 0)) for value in inputs]
        declared = max((dims[axis].dim_value for dims, axis in shapes if dims), default=0)
        count = max(SAMPLES, self.training.batch, declared)
        if self.carried is None:
            return self.feeding.first(count)
        sequences, plain = self.carried
        return first_steps(sequences, self.feeding.first(FEWEST), count, plain)


def ask(
    source: Source,
    recipe: Recipe,
    data: Any,
    *,
    labels: str | None = None,
    eval_data: Any = None,
    metrics: Sequence[Any] = (),
    plan: Path | None = None,
    masks: Masks | None = None,
    means: Means = ALONE,
    dims: Mapping[str, int] | None = None,
    batch_axis: Axes = None,
    state: Axes = None,
    until: Names | None = None,
    strict: bool = False,
    destination: Destination = NOWHERE,
) -> Task:
    """Open the model and the data, plan the zeros, and refuse what cannot be."""
    training, objective = recipe.only(Training), recipe.only(Objective)
    until = until or None
    means.demand_sense(training)
    model = Model.open(source)
    if destination.target is not None:
        model.demand_room(destination.target)
    destination.demand_free(model)
    model, quantization, rounding = quantized(model, recipe)
    set_sizes(model, dims)
    axes = sample_axes(model, batch_axis, state)
    recipe, unasked = holding_zeros(model, recipe)
    by_epochs = zeros_by_epochs(model, recipe, plan, masks)
    if quantization is not None:
        learned = any(one.learn_scales for one in recipe.modifiers if isinstance(one, TrainQuantized))
        quantization = _of_what_stays(quantization, model, by_epochs.acts if by_epochs is not None else (), learned)
    made, said = _zeros(model, recipe, plan, masks) if by_epochs is None else (by_epochs.plan, [])
    tags = trainables(model, made, training.train_bn)
    if until is None:
        demand_floats(model)
    fields, sequences = fields_of(model, axes), sequences_of(model, axes)
    labelled, numbers = bool(objective.task), objective.task != "cross-entropy" if objective.task else None
    found = open_data(data, fields, labels, labelled, numbers if labelled or labels is not None else False)
    part = _part(model, tags, until, found, made, quantization is not None or bool(axes.states))
    every, seen = tags, model if part is None else part.model
    tags = every if part is None else {tag: one for tag, one in every.items() if tag in part.tags}
    axes = axes if part is None else sample_axes(seen, batch_axis, None)
    demand_floats(seen)
    demand_output(seen, objective.output)
    goal = goal_of(objective, found)
    if sequences is not None:
        goal = replace(goal, label_shape=goal.label_shape[1:])  # the loss is of single steps
    _demand_samples(found, seen, goal, sequences)
    feeding = _feeding(found, training, means.processes)
    held_out = None if eval_data is None else open_data(eval_data, fields, labels, labelled, numbers)
    if held_out is not None:
        if isinstance(held_out, Samples):
            held_out.look_through(math.inf)  # all of it is measured at the end, when the work is done
        held_out.complete = found.complete
        _demand_samples(held_out, seen, goal, sequences)
    measure = _measure(held_out, metrics, feeding, training.batch, axes_of(seen, axes), objective.task, sequences)
    demand_whole(made, strict, some=by_epochs is None and not made.holds)
    said += [*unasked, *_passed_over(recipe, by_epochs), *_let_go(model, made)]
    said += said_of_cuts(model, every, until, part)
    notes = [*recipe.notes, *rounding, *said, *objective.idle, *_idle(model, training), *idle_labels(recipe, found)]
    carried = None if sequences is None else (sequences, Plain(model, axes))
    if carried is not None and quantization is not None:
        raise OptionError("a model that hands states on from step to step is not quantized in training")
    task = Task(
        model, recipe, made, tags, found, feeding, goal, measure, called(source), means, axes, carried, by_epochs,
        quantization=quantization, part=part,
        copies={one.tag: every[one.tag] for one in (part.ties if part is not None else ())}, notes=tuple(notes),
    )  # fmt: skip
    if means.processes.count > 1:
        demand_alike_call(means.processes, model.sha256(), recipe.to_yaml(), task.planned, feeding.count)
    return replace(task, digest=digest_of(task))


def _part(
    model: Model, tags: Mapping[str, StoredParam], until: Names | None, data: Data, made: Plan, more: bool
) -> Part | None:
    """What of the model trains, where that is not all of it; `more` is whether it is rounded, or hands states on."""
    if until is None and not made.rule.ties:
        return None
    if more:
        raise OptionError(
            "--until and --tie-equal are neither for a run that quantizes, which can follow in a second one, nor for "
            "sequences with states; leave --quantize or --state out"
        )
    return part_of(model, tags, until, data, made)


def _of_what_stays(quantization: Quantization, model: Model, acts: Sequence[TimedAct], learned: bool) -> Quantization:
    """What is rounded, without the nodes of layers that the result has not."""
    changing = [act for act in acts if type(act).changed_graph is not TimedAct.changed_graph]
    skipping = [act for act in changing if act.layers()]
    for act in changing:
        if learned:
            raise OptionError(f"{act.where}: --learn-scales trains a scale for each channel; leave one of the two out")
        if act.layers() and act.span.end != NEVER:
            raise OptionError(
                f"{act.where}: in a run that quantizes, too, layers are skipped for good, or the two are run one after "
                "the other: leave end_epoch out"
            )
        if skipping and act not in skipping:
            raise OptionError(
                f"{act.where}: not together with skipped layers and with quantization; quantize in a second run"
            )
    if not skipping:
        return quantization
    copy = copied(model.proto)
    for act in skipping:
        act.changed_graph(copy)
    left = {(node.op_type, node.output[0]) for node in copy.graph.node}
    gone = [node.output[0] for node in model.proto.graph.node if (node.op_type, node.output[0]) not in left]
    found = quantization.without(gone)
    return replace(found, left={name: why for name, why in found.left.items() if name not in gone})


def metric_list(metrics: Any) -> Sequence[Any]:
    """A single metric may stand for a list of one."""
    return [metrics] if isinstance(metrics, str) or callable(metrics) else list(metrics or ())


def digest_of(task: Task) -> str:
    """Of all that makes a run another one: the graph, the file, the recipe, the plan, and the states of sequences."""
    planned_rows = task.planned.items()
    rows = "\n".join(f"{tag} {row.pattern.text if row.pattern else ''} {row.drop}" for tag, row in planned_rows)
    states = [f"{name} {output}" for name, output in task.axes.states.items()]
    rounded = [] if task.quantization is None else [task.quantization.to_json()]
    if task.part is not None:
        states += [f"until {name}" for name in (task.part.points.heads if task.part.points is not None else ())]
        states += [f"tied {copy.name}" for copy in task.part.ties]
    return task.spec.digest(task.model.sha256(), task.recipe.to_yaml(), rows, *states, *rounded)


# -- What is rounded, where the recipe asks for it: decided once, for the float graph in the form that is quantized.


def quantized(model: Model, recipe: Recipe) -> tuple[Model, Quantization | None, list[str]]:
    """The float graph and what is rounded in it; the model as it is where nothing is."""
    asked = [one for one in recipe.modifiers if isinstance(one, (TrainQuantized, Quantizing))]
    if not asked:
        return model, None, []
    if len(asked) > 1:
        raise OptionError(f"the recipe quantizes {len(asked)} times; a model is quantized once")
    (one,) = asked
    if recipe.only(Training).optimizer in (BUILT_IN, OWN) and isinstance(one, TrainQuantized) and one.learn_scales:
        raise OptionError(
            f"--learn-scales gives scales rates of their own, which neither {BUILT_IN} nor one of yours takes: "
            "take another one, such as adamw"
        )
    scheme = QuantizeAct(one).scheme if isinstance(one, Quantizing) else _scheme(model, recipe.only(Pruning))
    if importlib.util.find_spec("onnxruntime") is None:
        raise MissingExtraError("the ranges of values are taken in onnxruntime: pip install 'onnxsparse[runtime]'")
    demand_possible(model)
    proto, notes = float_graph(model)
    if isinstance(one, Quantizing):
        notes += _missed(one, scheme, model.proto, proto)
    quantization = quantization_of(proto, scheme)
    if not quantization.weights:
        why = next(iter(quantization.left.values()), "no Conv, Gemm or MatMul has a constant weight")
        raise ModelError(f"nothing of the model can be quantized: {why}")
    return Model.over(proto), quantization, notes


def _scheme(model: Model, pruning: Pruning) -> Scheme:
    """What the device takes: the one that is asked for, or that a sparse file was made for."""
    known = readable(model) if pruning.pattern is None else None
    target = pruning.target or (known.target if known is not None else "")
    return TARGETS.get(target.partition(":")[0], TARGETS[""])


def _missed(modifier: Quantizing, scheme: Scheme, *graphs: ModelProto) -> list[str]:
    """What a modifier names and the model has not."""
    try:
        return [f"{modifier.called}: {said}" for said in missed(scheme, *graphs)]
    except OptionError as error:
        raise OptionError(f"{modifier.called}: {error}") from None


def _let_go(model: Model, made: Plan) -> list[str]:
    """Zeros that the file records, and a recipe neither makes nor holds: they move as everything does."""
    known, dense = readable(model), {row.name: row for row in made.rows if not (row.pattern or row.weight.refusal)}
    lost = {name: text for name, (text, _) in known.pruned.items() if name in dense} if known is not None else {}
    if not lost or made.holds:
        return []
    name, pattern = next(iter(lost.items()))
    count = f"{len(lost)} weights" if len(lost) > 1 else "1 weight"
    recorded = f"the file records them ('{name}': {pattern})"
    words = {word for one in lost for word in dense[one].words}
    flag = f"; without one, --allow {','.join(sorted(words))} prunes them, too"
    way_out = "!ConstantPruningModifier {params: __ALL_PRUNABLE__} in a recipe does"
    way_out += flag if all(dense[one].words for one in lost) else ""
    return [f"the zeros of {count} are lost: {recorded}, and nothing in the run holds them; {way_out}"]


def _idle(model: Model, training: Training) -> list[str]:
    if not training.train_bn or statistics(model):
        return []
    return ["--train-bn changes nothing: no BatchNormalization of the model has statistics of its own"]


def _zeros(model: Model, recipe: Recipe, plan: Path | None, masks: Masks | None) -> tuple[Plan, list[str]]:
    asked = sparsity_options(recipe.only(Pruning), plan, masks, recipe.only(Training))
    rounds = any(isinstance(one, TrainQuantized) for one in recipe.modifiers)
    return planned(model, plan, masks, asked, hold=rounds)


def _demand_samples(data: Data, model: Model, goal: LossSpec, sequences: Sequences | None) -> None:
    """Samples have steps where they are sequences, and every label is one of the classes that the model declares."""
    if sequences is not None:
        demand_steps(sequences, data)
    if goal.task == "cross-entropy":
        check_labels(data, declared_classes(model, goal))


def _measure(
    held_out: Data | None,
    metrics: Sequence[Any],
    feeding: Feeding,
    batch: int,
    axes: Mapping[str, int],
    task: str,
    sequences: Sequences | None,
) -> Measure:
    """What is measured on data of its own, if there is some, or else on the samples held out."""
    flat = None if sequences is None else sequences.flat
    if held_out is not None:
        return Measure(held_out, metrics, batch, axes, task, flat)
    if metrics:
        raise OptionError("--metric measures on --eval-data; pass that too")
    return Glance(feeding.held_out(), batch, axes, task, flat)


def _feeding(data: Data, training: Training, together: Processes) -> Feeding:
    if training.batch % together.count:
        raise OptionError(
            f"--batch-size {training.batch} cannot be shared by {together.count} processes; make it a multiple"
        )
    size = training.batch * training.accumulate
    return Feeding(data, size, training.seed, training.steps_per_epoch, together.rank, together.count)


# -- The zeros that a run is to make: what its recipe asks a plan for, and how many they are.


def holding_zeros(model: Model, recipe: Recipe) -> tuple[Recipe, list[str]]:
    """A recipe by epochs that neither prunes nor holds anything does not cost a sparse model its zeros."""
    timed = [one for one in recipe.modifiers if isinstance(one, Scheduled)]
    names = sparse_but_free(model, by_epochs(model, timed)) if timed else []
    if not names:
        return recipe, []
    said = f"no modifier of the recipe prunes or holds anything: the zeros of {len(names)} weights are held"
    return recipe.holding((ConstantPruningModifier(params=tuple(names)), *recipe.modifiers)), [said]


def zeros_by_epochs(model: Model, recipe: Recipe, plan: Path | None, masks: Masks | None) -> ByEpochs | None:
    """What modifiers that act by epochs mean in a model, where the recipe has some."""
    timed = [one for one in recipe.modifiers if isinstance(one, Scheduled)]
    if not timed:
        return None
    for name, value in (("--plan", plan), ("--masks", masks)):
        if value is not None:
            raise OptionError(f"the recipe says what is pruned; leave {name} out")
    return by_epochs(model, timed)


def _passed_over(recipe: Recipe, found: ByEpochs | None) -> list[str]:
    """Renamed weights that the patterns of a recipe do not mean, as `recipe check --model` says it."""
    timed = [one for one in recipe.modifiers if isinstance(one, Scheduled)]
    said = "" if found is None else passed_over(found.params, zip(timed, found.acts))
    return [said] if said else []


def sparsity_options(pruning: Pruning, plan: Path | None, masks: Masks | None, training: Training) -> SparsityOptions:
    """What the pruning asks for. The allocation is Erdős–Rényi where there is a choice and nobody made one."""
    allocation = None if pruning.init == CALIBRATED and pruning.allocation == "sensitivity" else pruning.allocation
    free = plan is None and masks is None and pruning.pattern is not None
    if allocation is None and free and str(pruning.pattern).partition(":")[0] in ("unstructured", "block"):
        allocation = "erk"
    seed = training.seed if pruning.score == "random" else None
    return SparsityOptions(
        pruning.pattern, pruning.target, pruning.sparsity, allocation, pruning.score,
        pruning.include, pruning.exclude, pruning.allow, tie_equal=pruning.tie_equal or None, seed=seed,
    )  # fmt: skip


def pruned_share(planned_rows: Mapping[str, PlanRow]) -> float:
    """The share of all planned elements that go."""
    size = sum(row.weight.tensor.size for row in planned_rows.values())
    gone = sum(_gone(row) for row in planned_rows.values())
    return gone / size if size else 0.0


def _gone(row: PlanRow) -> float:
    if row.keep is not None:
        return float(row.keep.size - np.count_nonzero(row.keep))
    assert row.pattern is not None
    return float(row.pattern.dropped(row.use.shape4, row.drop))


# -- What several processes that train together must have been given alike; without it they wait for each other for
# ever.
#
# 1. Before the run: the model, the recipe, what is planned, and how many samples there are.
# 2. Before its first step: the optimizer, and the shapes and types of the first batch.


def demand_alike_call(
    processes: Processes, model: str, recipe: str, planned: Mapping[str, PlanRow], count: int | None
) -> None:
    """Raise where the processes begin with different things; `model` is its digest."""
    samples = "any number" if count is None else str(count)
    facts = {"model": model, "recipe": recipe, "plan": _rows(planned), "number of samples": samples}
    processes.demand_alike(facts)


def demand_alike_step(processes: Processes, engine: Engine, batch: Batch) -> None:
    """Raise where their first steps would be of different kinds."""
    _, remembered = engine.state()
    optimizer = json.dumps([remembered.get("kind"), remembered.get("groups")], default=str)
    form = sorted((name, array.dtype.str, list(array.shape)) for name, array in batch.arrays.items())
    processes.demand_alike({"optimizer": optimizer, "shapes and types of the first batch": json.dumps(form)})


def _rows(planned: Mapping[str, PlanRow]) -> str:
    lines = []
    for tag, row in planned.items():
        keep = "" if row.keep is None else hashlib.sha256(np.packbits(row.keep != 0).tobytes()).hexdigest()
        lines.append(f"{tag} {row.pattern.text if row.pattern else ''} {row.drop} {keep}")
    return "\n".join(lines)


# -- What a recipe leaves open of its run, in a sentence: who trained, in which batches, how long; and what was idle.


ENGINES = {"ort": "onnxruntime-training", "torch": "torch"}


def training_text(training: Training, steps: int, per_epoch: int, engine: str) -> str:
    """The frame of a run as it was; `per_epoch` is 0 where nobody knows the steps of an epoch."""
    optimizer = "an optimizer of yours" if training.optimizer == OWN else training.optimizer
    several = f", {training.accumulate} for each update" if training.accumulate > 1 else ""
    epochs = f"{steps / per_epoch:.4g} epochs ({steps} steps)" if per_epoch else f"{steps} steps"
    where = ENGINES.get(engine, engine)
    return f"trained for {epochs} by {optimizer}, in batches of {training.batch}{several}, in {where}"


def idle_labels(recipe: Recipe, data: Data) -> list[str]:
    """Rates of a recipe are for a loss of labels, and without one the dense model teaches alone."""
    rated = any(isinstance(one, RATES) for one in recipe.modifiers)
    if not rated or recipe.only(Objective).task or not data.has_labels:
        return []
    loss = "mse" if isinstance(data, Samples) and data.numbers else "cross-entropy"
    return [f"the labels of the data are not used, the dense model teaches alone: --loss {loss} learns from them"]
