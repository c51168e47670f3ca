"""Where a training starts: at calibrated numbers under masks that stand still, or plainly, at the dense numbers.

1. Calibration sees some of the samples to train on, none of those held out. The dense model stays the teacher.
2. What asks for masks that move, or that somebody else chose, starts plainly; so does what cannot be calibrated. A note
   says which.
3. The rule between the two: of the pruned models before any training, that one whose outputs for the samples held out
   lie nearer to the dense model's.
4. In a folder with checkpoints the start is kept like one, and a run that is resumed goes on from the same numbers.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from onnx import NodeProto

from onnxsparse import checkpoints, schedules
from onnxsparse.acts.act import MASK
from onnxsparse.acts.weights import choice
from onnxsparse.allocations.curves import Sensitivity
from onnxsparse.calibration.batch_norms import EPSILON
from onnxsparse.calibration.output_gradients import WITHOUT
from onnxsparse.engines.engine import Engine
from onnxsparse.errors import MissingExtraError, ModelError
from onnxsparse.graph.attributes import Attributes
from onnxsparse.graph.biases_and_scales import containers
from onnxsparse.graph.model import Model
from onnxsparse.losses import in_units, scale_along
from onnxsparse.math.values import Array
from onnxsparse.options import CalibrationOptions, SparsityOptions
from onnxsparse.passes.calibrate import Calibrated
from onnxsparse.passes.calibrated_pruning import GIVEN, Request, pruned
from onnxsparse.passes.calibration_asked import SENSITIVITY, Asked
from onnxsparse.passes.delivery import in_model
from onnxsparse.passes.prune import Prune
from onnxsparse.planning.model_inputs import fields_of
from onnxsparse.planning.plan import Plan, PlanRow
from onnxsparse.planning.stored_params import StoredParam, vector_param
from onnxsparse.planning.trainable import send_back
from onnxsparse.recipes.modifiers.pruning import PLAIN, Pruning
from onnxsparse.train.evaluation import File, float_now
from onnxsparse.train.task import Task
from onnxsparse.version import __version__

FOLDER, KEEP, NUMBERS = "start", "keep/", "numbers/"
SAMPLES = 1024
"""Of those to train on; `prune` looks at fewer, but to train takes far longer than to look at these."""
PLAINLY = "training starts from the dense numbers"
SHARED_OUT = ("unstructured", "block")
"""Patterns whose share sensitivity spreads over the weights where nobody says how."""


@dataclass(frozen=True, eq=False)
class Start:
    """What a calibration came to, or why there is none: the planned rows by name, and numbers by tag."""

    rows: Mapping[str, tuple[int, str]]
    """How many units of a weight go, and what its row says."""
    masks: Mapping[str, Array]
    numbers: Mapping[str, Array]
    notes: tuple[str, ...]
    calibration: Mapping[str, Any] = field(default_factory=dict)
    """What is recorded of it in the plan."""


def started(task: Task, folder: str | None = None, resume: bool = False) -> Task:
    """The task with the start that its recipe asks for."""
    pruning = task.recipe.only(Pruning)
    if pruning.init == PLAIN or task.by_epochs is not None or task.plan.holds or not task.plan.planned:
        return task
    why = against(task, pruning)
    if why:
        return plainly(task, f"{PLAINLY}: {why}")
    if folder is not None and not resume and checkpoints.newest(folder) is not None:
        return task  # which the run refuses
    arrays, facts = task.processes.handed(lambda: _told(_found(task, folder, resume) or _made(task, folder)))
    return with_start(task, _read(arrays, facts))


def against(task: Task, pruning: Pruning) -> str:
    """Why the masks of a run are not those of a calibration, in words; nothing where they may be."""
    moving = pruning.schedule is not None and schedules.parse(pruning.schedule).share(0.0) != 1.0
    said = {
        f"the masks move by --schedule {pruning.schedule}": moving,
        "the masks move from --prune-begin on": pruning.begin > 0,
        f"masks regrow by --regrow {pruning.regrow}": pruning.regrow != "none",
        f"--sparser {pruning.sparser} learns which places stay": pruning.sparser.partition(":")[0] != MASK,
        f"--score {pruning.score} chooses the masks": pruning.score is not None,
        "the masks are given": any(row.keep is not None for row in task.plan.planned),
        "only a part of the model trains, or copies train as one": task.part is not None,
        "samples are sequences with states": task.carried is not None,
    }
    return next((text for text, holds in said.items() if holds), "")


def plainly(task: Task, note: str) -> Task:
    """The task as it is without a calibration; the recipe that is written beside the result says so, too."""
    recipe = task.recipe.holding(
        replace(one, init=PLAIN) if isinstance(one, Pruning) else one for one in task.recipe.modifiers
    )
    return replace(task, recipe=recipe, notes=(*task.notes, note))


def with_start(task: Task, start: Start) -> Task:
    """The task with the rows and numbers of a start."""
    if not start.masks:
        return plainly(task, "; ".join(start.notes))
    rule = replace(task.plan.rule, by=str(start.calibration.get("score", "")))
    if start.calibration.get("allocation") == SENSITIVITY:
        rule = replace(rule, allocation=Sensitivity())
    rows = tuple(_with_mask(row, start) for row in task.plan.rows)
    plan = replace(task.plan, rows=rows, rule=rule, calibration=start.calibration)
    return replace(task, plan=plan, start=start.numbers, notes=(*task.notes, *start.notes))


def _with_mask(row: PlanRow, start: Start) -> PlanRow:
    if row.name not in start.masks:
        return row
    drop, reason = start.rows[row.name]
    return replace(row, drop=drop, reason=reason, keep=start.masks[row.name], cut=None)


# -- making it


def _made(task: Task, folder: str | None) -> Start:
    try:
        found = _calibrated(task)
    except (ModelError, MissingExtraError) as error:
        why = str(error).removesuffix(f"; {WITHOUT}")  # an option that training does not have
        made = Start({}, {}, {}, (f"{PLAINLY}: the model cannot be calibrated: {why}",))
    else:
        made = _judged(task, found)
    if folder is not None:
        arrays, facts = _told(made)
        checkpoints.save(os.path.join(folder, FOLDER), 0, arrays, {**facts, "job": _job(task)})
    return made


def _calibrated(task: Task, model: Model | None = None, plan: Plan | None = None) -> Calibrated:
    """Masks and numbers, of the dense model where there is no other; what calibration does not reach has the masks of
    its score."""
    pruning, rule = task.recipe.only(Pruning), task.plan.rule
    free = plan is None and rule.target is None and pruning.allocation in (None, SENSITIVITY)
    by_curves = free and rule.pattern is not None and rule.pattern.name in SHARED_OUT
    allocation = SENSITIVITY if by_curves else GIVEN
    asked = Asked(_samples(task), SAMPLES, task.training.seed, allocation, engine=task.means.engine)
    request = Request(SparsityOptions(), asked, CalibrationOptions(batch_axis=dict(task.axes.inputs) or None))
    outcome = pruned(model or task.model, plan or task.plan, request)
    found = outcome.calibrated
    assert found is not None  # it was swept
    rows = tuple(_settled(task, row) for row in found.plan.rows)
    return replace(found, plan=replace(found.plan, rows=rows), notes=tuple(outcome.notes))


def recalibrated(task: Task, engine: Engine, drops: Mapping[str, int]) -> Calibrated:
    """Masks and numbers for the network as an engine has it now, when so many units go, by tag."""
    model = Model.over(float_now(task, engine))
    model.sizes = task.model.sizes
    going = {row.name: drops[tag] for tag, row in task.planned.items()}
    rows = (replace(row, drop=going[row.name], cut=None) if row.name in going else row for row in task.plan.rows)
    found = _calibrated(task, model, in_model(model, replace(task.plan, rows=tuple(rows))))
    return replace(found, numbers=with_statistics(model, found.numbers, task.every))


def _settled(task: Task, row: PlanRow) -> PlanRow:
    """A row with its mask: where calibration chose none, the one of its score, at once."""
    if row.pattern is None or row.keep is not None:
        return row
    return replace(row, keep=choice(row, task.score, row.drop).keep(row.param.numbers()))


def _samples(task: Task) -> dict[str, Array]:
    """Samples to train on, laid out as the model declares them."""
    some, shared = task.feeding.first(SAMPLES), task.feeding.shared
    count = min(SAMPLES, task.feeding.trained or SAMPLES)
    axes = {field.name: (field.axis, len(field.shape or ())) for field in fields_of(task.model, task.axes)}
    rows = {name: array if name in shared else array[:count] for name, array in some.items() if name in axes}
    return {name: _as_declared(array, *axes[name]) for name, array in rows.items()}


def _as_declared(array: Array, axis: int, rank: int) -> Array:
    return np.moveaxis(array, 0, axis) if axis and array.ndim == rank else array


# -- judging it


def _judged(task: Task, found: Calibrated) -> Start:
    """The start, where the rule takes it."""
    masked = {row.name: row for row in found.plan.planned}
    numbers = with_statistics(task.model, found.numbers, task.every)
    refitted, plain = distance(task, found.plan, numbers), distance(task, task.plan, {})
    said = f"{refitted:.4g} from the dense model's on samples held out, plainly pruned {plain:.4g}"
    if refitted > plain:
        return Start({}, {}, {}, (f"{PLAINLY}: calibrated its outputs lie {said}",))
    rows = {name: (row.drop, row.reason) for name, row in masked.items()}
    masks = {name: np.asarray(row.keep).reshape(-1) != 0 for name, row in masked.items()}
    note = f"training starts from calibrated numbers, under their masks: the outputs lie {said}"
    return Start(rows, masks, numbers, (*found.notes, note), dict(found.plan.calibration))


def distance(task: Task, plan: Plan, numbers: Mapping[str, Array]) -> float:
    """How far the outputs for the samples held out lie from the dense model's, in the units of `distill`: the mean over
    the outputs; infinity where that is no number."""
    with task.model.restored():
        Prune(plan)(task.model)
        send_back(numbers, task.every)
        proto = task.model.copy_proto()
    files = File.of(task, task.model.copy_proto()), File.of(task, proto)
    batches = [[file(batch.arrays) for file in files] for batch in task.feeding.probe()]
    with np.errstate(over="ignore", invalid="ignore"):
        found = [_apart(batches, name) for name in batches[0][0] if _alike(batches, name)]
    mean = float(np.mean(found)) if found else 0.0
    return mean if np.isfinite(mean) else np.inf


def _alike(batches: Sequence[Sequence[Mapping[str, Array]]], name: str) -> bool:
    """Whether an output has its size in every batch, and in both models; and numbers in the dense one."""
    shapes = {one[name].shape if name in one else None for batch in batches for one in batch}
    return len(shapes) == 1 and None not in shapes and all(np.isfinite(batch[0][name]).all() for batch in batches)


def _apart(batches: Sequence[Sequence[Mapping[str, Array]]], name: str) -> float:
    dense, ours = (np.concatenate([np.atleast_1d(batch[at][name]) for batch in batches]) for at in (0, 1))
    return in_units(np.square(ours.astype(np.float64) - dense), scale_along(dense, dense.ndim))


# -- Statistics of BatchNormalization that calibration re-estimated, as the scale and bias of the node.
#
# Statistics stand still in a training, so a start would lose what calibration made of them. The same function with the
# stored mean and variance, where mean' and variance' are the re-estimated ones, is
#
#     scale' = scale * sqrt((variance + eps) / (variance' + eps))
#     bias'  = bias + scale * (mean - mean') / sqrt(variance' + eps)
#
# 1. Where the statistics train (`--train-bn`), they stay what calibration found.
# 2. Left as they are: nodes whose scale or bias does not train, or is read by another node, too.


def with_statistics(model: Model, numbers: Mapping[str, Array], trained: Mapping[str, StoredParam]) -> dict[str, Array]:
    """The numbers of what trains, by tag, with those of statistics moved into scales and biases."""
    homes = model.flow.stores.homes.items()
    stored = {tensor.name: vector_param(tensor, home.tag) for tensor, home in homes if not home.scope}
    found = {tag: array.astype(np.float32) for tag, array in numbers.items() if tag in trained}
    for node in _norms(model):
        params = [stored[name] for name in node.input[1:5] if name in stored]
        if len(params) == 4 and all(one.tag in trained for one in params[:2]):
            found.update(_moved(node, params, numbers, trained))
    return found


def statistics_moved(model: Model, numbers: Mapping[str, Array], trained: Mapping[str, StoredParam]) -> set[str]:
    """The tags of the statistics that `with_statistics` moves."""
    homes = {tensor.name: home.tag for tensor, home in model.flow.stores.homes.items() if not home.scope}
    found = set[str]()
    for node in _norms(model):
        tags = [homes[name] for name in node.input[1:5] if name in homes]
        if len(tags) == 4 and all(tag in trained for tag in tags[:2]):
            found.update(tag for tag in tags[2:] if tag in numbers and tag not in trained)
    return found


def _norms(model: Model) -> Iterator[NodeProto]:
    """Those whose scale and bias nothing else reads."""
    readers = Counter(name for container in containers(model) for node in container.node for name in node.input)
    for node in model.proto.graph.node:
        if node.op_type == "BatchNormalization" and all(readers[name] == 1 for name in node.input[1:3]):
            yield node


def _moved(
    node: NodeProto, params: list[StoredParam], numbers: Mapping[str, Array], trained: Mapping[str, StoredParam]
) -> dict[str, Array]:
    """The new scale and bias of one node, by tag; nothing where its statistics are as they were, or train."""
    if not any(one.tag in numbers and one.tag not in trained for one in params[2:]):
        return {}
    scale, bias, mean, variance = (np.asarray(numbers.get(one.tag, one.numbers()), np.float64) for one in params)
    old_mean, old_variance = (one.numbers().astype(np.float64) for one in params[2:])
    epsilon = Attributes(node, {}).number("epsilon", EPSILON)
    spread = np.sqrt(variance + epsilon)
    moved = scale * np.sqrt(old_variance + epsilon) / spread, bias + scale * (old_mean - mean) / spread
    return {one.tag: array.astype(np.float32) for one, array in zip(params, moved)}


# -- keeping it


def _job(task: Task) -> str:
    return hashlib.sha256(f"{__version__}\n{task.digest}".encode()).hexdigest()


def _found(task: Task, folder: str | None, resume: bool) -> Start | None:
    """The start that a run in this folder began with."""
    if folder is None or not resume:
        return None
    kept = checkpoints.newest(os.path.join(folder, FOLDER))
    return _read(kept.arrays, kept.facts) if kept is not None and kept.facts.get("job") == _job(task) else None


def _told(start: Start) -> tuple[dict[str, Array], dict[str, Any]]:
    """A start as arrays and facts for JSON."""
    masks = {KEEP + name: np.asarray(mask, np.uint8) for name, mask in start.masks.items()}
    rows = {name: list(row) for name, row in start.rows.items()}
    return {**masks, **dict(_under(NUMBERS, start.numbers))}, {
        "rows": rows,
        "notes": list(start.notes),
        "calibration": dict(start.calibration),
    }


def _under(prefix: str, arrays: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
    return ((prefix + name, array) for name, array in arrays.items())


def _read(arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> Start:
    masks = {key[len(KEEP) :]: arrays[key] != 0 for key in arrays if key.startswith(KEEP)}
    numbers = {key[len(NUMBERS) :]: arrays[key] for key in arrays if key.startswith(NUMBERS)}
    rows = {name: (int(drop), str(reason)) for name, (drop, reason) in facts["rows"].items()}
    return Start(rows, masks, numbers, tuple(facts["notes"]), facts["calibration"])


__all__ = ["Start", "against", "recalibrated", "started"]
