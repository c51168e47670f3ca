"""Joint refit: after each layer was refitted by itself, the kept weights of all of them move together.

1. The sweep fits each layer to a few hundred samples, and errors of layers add up. Here an engine takes gradients of
   the distance to the dense model's outputs, and what the sweep refitted moves on: kept weights and biases. Masks stay,
   and so does everything else.
2. Batches are samples mixed from those of the calibration (`calibration.mixing`), which the dense model answers, too:
   a few hundred alone would be learned by heart.
3. The samples that the sweep held out judge: where the outputs come no closer on them, it is tried once more at a
   smaller rate, and then everything stays as the sweep left it.
4. How many steps there are follows from what a sample costs, so that small networks are done in seconds and large ones
   are left alone; `--joint-steps` says another number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from onnxsparse import progress
from onnxsparse.acts import weights
from onnxsparse.calibration.mixing import mixed
from onnxsparse.calibration.moments import Samples
from onnxsparse.engines.engine import Batch, DivergedError, Engine, LossSpec, Pace, Spec
from onnxsparse.engines.ort.library import LOOK
from onnxsparse.engines.working_dirs import temporary
from onnxsparse.errors import MissingExtraError, ModelError, OptionError
from onnxsparse.graph.model import Model
from onnxsparse.math.values import Array
from onnxsparse.passes import calibration_asked
from onnxsparse.passes.calibrate import Calibrated, said_of
from onnxsparse.passes.calibration_asked import GRADIENTS, LEAST_SQUARES, Asked
from onnxsparse.planning.model_inputs import SampleAxes, fields_of
from onnxsparse.planning.plan import PlanRow
from onnxsparse.planning.stored_params import StoredParam
from onnxsparse.planning.trainable import trainables
from onnxsparse.rates import factor_at, parse
from onnxsparse.recipes.modifiers.training import Training
from onnxsparse.train.engine_choice import Engines, Means
from onnxsparse.train.start import statistics_moved, with_statistics
from onnxsparse.train.task import pruned_share

FEWEST, BATCH = 100, 32
WORK = 1.7e11
"""Multiply-accumulates of the refitted layers, over all samples of all steps, that the default stays within: some ten
seconds to a minute. Where that leaves fewer than `FEWEST` steps, none is made."""
SMALLER = 4
"""The rate of the second attempt is that of the first over so many."""
MADE_WITH = 64
"""Samples that a training graph is made and proven with."""


def refitted_together(model: Model, found: Calibrated, samples: Samples, asked: Asked, axes: SampleAxes) -> Calibrated:
    """What a calibration found, with its numbers moved together; or as it was, with the reason."""
    if asked.solver != LEAST_SQUARES or not found.swept:
        return found
    steps, large = _steps(found, samples, asked)
    if not steps:
        return _noted(found, large) if large else found
    why = _against(samples, axes)
    job = None if why else _Job.of(model, found, samples, asked)
    why = why or ("" if job is None else job.untrained)
    if job is None or why:
        return _noted(found, f"the layers were not refitted together: {why}")
    try:
        numbers, said = _tried(job, steps)
    except (ModelError, OptionError, MissingExtraError, DivergedError) as error:
        return _noted(found, f"the layers were not refitted together: {error}")
    known = {**found.details, "joint": said}
    if not numbers:
        return replace(_noted(found, _left_out(steps, said)), details=known)
    note = (
        f"the layers were refitted together in {steps} steps: the outputs lie {said['after']:.3g} from the dense "
        f"model's on samples held out, {said['before']:.3g} before; {said['unit']}"
    )
    tags = {**found.tags, **{tag: job.tags[tag] for tag in numbers}}
    plan = replace(found.plan, rows=tuple(_told(row, found) for row in found.plan.rows))
    return replace(_noted(found, note), plan=plan, numbers=numbers, tags=tags, details=known)


def _left_out(steps: int, said: Mapping[str, Any]) -> str:
    note = f"the layers were refitted together in {steps} steps, which did not help on samples held out"
    if "after" in said:
        note += f" ({said['after']:.3g} from the dense model's outputs, {said['before']:.3g} before)"
    return f"{note}: left out"


def _told(row: PlanRow, found: Calibrated) -> PlanRow:
    """A row that says so of what moved."""
    return replace(row, reason=said_of(found.swept[row.name], together=True)) if row.name in found.swept else row


def _noted(found: Calibrated, note: str) -> Calibrated:
    return replace(found, notes=(*found.notes, note))


def _steps(found: Calibrated, samples: Samples, asked: Asked) -> tuple[int, str]:
    """How many there are; and where none are because the model is large, what to say of it."""
    if asked.joint_steps is not None or asked.sensitivity != GRADIENTS:
        return asked.joint_steps or 0, ""
    layers = {one.layer: one for one in found.swept.values()}.values()
    each = sum(one.products for one in layers) / max(samples.fitted, 1)
    most = int(WORK / (BATCH * each)) if each else 0
    if each and most < FEWEST:
        size = f"{each / 1e6:,.0f} million multiply-accumulates a sample"
        return 0, f"the layers were not refitted together, because that takes long at {size}; --joint-steps asks for it"
    return min(calibration_asked.JOINT_STEPS, most), ""


def _against(samples: Samples, axes: SampleAxes) -> str:
    """Why samples cannot be mixed; nothing where they can."""
    if axes.states:
        return "samples are sequences with states"
    if axes.inputs:
        return f"the samples of '{next(iter(axes.inputs))}' are not along its first axis"
    if not samples.held:
        return "the samples are too few to hold some out"
    single = next((name for name, array in samples.feeds[0].items() if not (array.ndim or name in samples.shared)), "")
    if single:
        return f"the model takes one '{single}' at a time"
    varying = _varying(samples)
    if varying:
        return f"'{varying}' is not the same in all batches"
    shapes = {name: {feed[name].shape[1:] for feed in samples.feeds} for name in samples.feeds[0]}
    unlike = next((name for name, found_shapes in shapes.items() if len(found_shapes) > 1), "")
    return f"samples of '{unlike}' have unlike sizes" if unlike else ""


def _varying(samples: Samples) -> str:
    """An input that all samples of a batch share, and batches do not; nothing where there is none."""
    first = samples.feeds[0]
    for name in sorted(samples.shared & {*first}):
        others = (feed[name] for feed in samples.feeds[1:] if feed[name] is not first[name])
        if not all(np.array_equal(first[name], other) for other in others):
            return name
    return ""


@dataclass(frozen=True, eq=False)
class _Job:
    """What moves, from where, and on which samples."""

    model: Model
    asked: Asked
    tags: Mapping[str, StoredParam]
    rows: Mapping[str, PlanRow]
    """The planned weights that the graph masks, by tag; those that the sweep did not reach stay as they are."""
    first: Mapping[str, Array]
    """The numbers of the sweep, by tag."""
    beside: frozenset[str]
    """The tags of what else the sweep changed, which no engine has."""
    found: Calibrated
    samples: Samples

    @classmethod
    def of(cls, model: Model, found: Calibrated, samples: Samples, asked: Asked) -> _Job:
        tags = trainables(model, found.plan)
        by_tensor = {one.tensor: tag for tag, one in tags.items()}
        rows = {by_tensor[row.weight.tensor]: row for row in found.plan.planned if row.weight.tensor in by_tensor}
        first = with_statistics(model, found.numbers, tags)
        moved = statistics_moved(model, found.numbers, tags)
        beside = frozenset(tag for tag in found.numbers if tag not in first and tag not in moved and _new(found, tag))
        return cls(model, asked, tags, rows, first, beside, found, samples)

    @cached_property
    def moving(self) -> frozenset[str]:
        """The tags of what moves."""
        swept = {tag for tag, row in self.rows.items() if row.name in self.found.swept}
        return frozenset(tag for tag in self.first if tag not in self.rows or tag in swept)

    @property
    def untrained(self) -> str:
        """What the engine's network would not have of the pruned one, in words; nothing where that is all there."""
        rows = {row.name for row in self.rows.values()}
        weight = next((row.name for row in self.found.plan.planned if row.drop and row.name not in rows), "")
        if weight:
            return f"no engine trains the weight '{weight}', which is pruned, too"
        name = next((self.found.tags[tag].name for tag in sorted(self.beside)), "")
        if name:
            return f"the sweep changed '{name}', too, which no engine trains"
        return "" if self.moving else "nothing that was refitted trains"

    @property
    def spec(self) -> Spec:
        trained = {tag: self.tags[tag].name for tag in (*self.rows, *(self.moving - set(self.rows)))}
        return Spec(self.batch, trained, dict.fromkeys(self.rows, "mask"), LossSpec())

    @property
    def own(self) -> list[str]:
        """The inputs of which each sample has its own."""
        return [name for name, array in self.samples.feeds[0].items() if array.ndim and name not in self.samples.shared]

    @cached_property
    def unit(self) -> int:
        """How many samples the file takes at once; 1 where that is left open."""
        fields = [field for field in fields_of(self.model) if field.shape and field.name in self.own]
        return max((field.shape[0] or 1 for field in fields if field.shape), default=1)

    @property
    def batch(self) -> int:
        return -(-min(BATCH, self.samples.fitted) // self.unit) * self.unit

    def gathered(self, held: bool) -> dict[str, Array]:
        """The samples that fit, or those held out, in one piece."""
        feeds = [feed for number, feed in enumerate(self.samples.feeds) if self.samples.is_held(number) == held]
        shared = {name: array for name, array in feeds[0].items() if name not in self.own}
        return {**shared, **{name: np.concatenate([feed[name] for feed in feeds]) for name in self.own}}

    def proving(self) -> dict[str, Array]:
        """Samples to make the network with: more than any array that all of them share is long."""
        arrays = self.gathered(False)
        longest = max((len(array) for name, array in arrays.items() if array.ndim and name not in self.own), default=0)
        count = (max(MADE_WITH, longest) // self.unit + 1) * self.unit
        places = np.arange(count) % self.samples.fitted
        return {name: array[places] if name in self.own else array for name, array in arrays.items()}


def _new(found: Calibrated, tag: str) -> bool:
    """Whether the numbers of a tensor are other ones than the file has."""
    return not np.array_equal(np.asarray(found.numbers[tag]).reshape(-1), found.tags[tag].numbers().reshape(-1))


def _tried(job: _Job, steps: int) -> tuple[dict[str, Array], dict[str, Any]]:
    """The moved numbers, none where nothing helped; and how far the outputs are before and after."""
    training = Training(seed=job.asked.seed)
    with temporary() as folder:
        means = Means(job.asked.engine)
        engine = Engines(job.model, job.tags, training, means, job.proving, working_dir=folder).make(job.spec)
        if engine.partial:
            raise ModelError("gradients reach only a part of the model")
        _at_first(job, engine)
        before = _distance(job, engine)
        if not math.isfinite(before):
            raise ModelError("for samples held out it gives no finite number")
        rate = training.base_rate(pruned_share(job.rows), near=True)
        said = {"steps": steps, "before": before, "unit": engine.unit, "taken": False}
        for attempt in range(2):
            try:
                _walk(job, engine, steps, rate)
                after = _distance(job, engine)
            except DivergedError:
                if attempt:
                    raise
                after = math.inf
            if after < before:
                numbers = {tag: weights.baked(engine, tag) for tag in weights.stored(engine) if tag in job.moving}
                return numbers, {**said, "after": after, "rate": rate, "taken": True}
            rate /= SMALLER
            _at_first(job, engine)
        return {}, {**said, "after": after} if math.isfinite(after) else said


def _at_first(job: _Job, engine: Engine) -> None:
    """The numbers of the sweep under its masks; nothing is remembered."""
    weights.make_dense(engine, job.spec, lambda tag: job.first.get(tag, job.tags[tag].numbers()))
    weights.prune_at_once(engine, job.rows, job.found.plan.rule.score)
    engine.agree()


def _walk(job: _Job, engine: Engine, steps: int, rate: float) -> None:
    arrays, count, schedule = job.gathered(False), job.samples.fitted, parse("cosine")
    held = frozenset(tag for tag in engine.weights if tag not in job.moving)
    for step in range(steps):
        batch = mixed(arrays, job.own, count, job.batch, job.asked.seed, step)
        try:
            loss = engine.step(Batch(batch))
        except ModelError as error:
            raise ModelError(f"the model does not take samples that are mixed: {_bare(error)}") from error
        if not math.isfinite(loss):
            raise DivergedError("for samples that are mixed the loss is no finite number")
        engine.update(Pace(rate * factor_at(schedule, step, steps, steps, max(10.0, 0.05 * steps)), held=held))
        progress.advance("refit all layers", step + 1, steps)


def _bare(error: ModelError) -> str:
    """What an engine says of a batch, without its advice: nobody made these samples."""
    return str(error).removesuffix(LOOK).removesuffix("; look at the data")


def _distance(job: _Job, engine: Engine) -> float:
    """The loss on the samples held out; infinity where it is no number."""
    loss = engine.evaluate(Batch(job.gathered(True)))[0]
    return loss if math.isfinite(loss) else math.inf


__all__ = ["refitted_together"]
