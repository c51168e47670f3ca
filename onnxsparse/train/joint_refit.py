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
from onnxsparse.engines.working_dirs import temporary
from onnxsparse.errors import MissingExtraError, ModelError
from onnxsparse.graph.model import Model
from onnxsparse.math.values import Array
from onnxsparse.passes import calibration_asked
from onnxsparse.passes.calibrate import Calibrated
from onnxsparse.passes.calibration_asked import GRADIENTS, LEAST_SQUARES, Asked
from onnxsparse.planning.model_inputs import SampleAxes
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
"""Multiply-accumulates of the refitted layers, over all samples of all steps, that the default stays within: about half
a minute. Where that leaves fewer than `FEWEST` steps, none is made."""
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
    why = why or ("" if job is not None and job.moving else "what was refitted is not stored as floats")
    if job is None or why:
        return _noted(found, f"the layers were not refitted together: {why}")
    try:
        numbers, said = _tried(job, steps)
    except (ModelError, MissingExtraError, DivergedError) as error:
        return _noted(found, f"the layers were not refitted together: {error}")
    known = {**found.details, "joint": said}
    if not numbers:
        note = f"the layers were refitted together in {steps} steps, which did not help on samples held out: left out"
        return replace(_noted(found, note), details=known)
    note = (
        f"the layers were refitted together in {steps} steps: the outputs lie {said['after']:.3g} from the dense "
        f"model's on samples held out, {said['before']:.3g} before; {said['unit']}"
    )
    tags = {**found.tags, **{tag: job.tags[tag] for tag in numbers}}
    return replace(_noted(found, note), numbers=numbers, tags=tags, details=known)


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
    shapes = {name: {feed[name].shape[1:] for feed in samples.feeds} for name in samples.feeds[0]}
    unlike = next((name for name, found_shapes in shapes.items() if len(found_shapes) > 1), "")
    return f"samples of '{unlike}' have unlike sizes" if unlike else ""


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
    beside: set[str]
    """The tags of what else the sweep changed, which no engine has."""
    found: Calibrated
    samples: Samples

    @classmethod
    def of(cls, model: Model, found: Calibrated, samples: Samples, asked: Asked) -> _Job:
        tags = trainables(model, found.plan)
        by_tensor = {one.tensor: tag for tag, one in tags.items()}
        rows = {by_tensor[row.weight.tensor]: row for row in found.plan.planned if row.weight.tensor in by_tensor}
        first = with_statistics(model, found.numbers, tags)
        beside = {tag for tag in found.numbers if tag not in first} - statistics_moved(model, found.numbers, tags)
        return cls(model, asked, tags, rows, first, beside, found, samples)

    @cached_property
    def moving(self) -> frozenset[str]:
        """The tags of what moves."""
        swept = {tag for tag, row in self.rows.items() if row.name in self.found.swept}
        whole = len(swept) == len(self.found.swept) and not self.beside
        return frozenset(tag for tag in self.first if tag not in self.rows or tag in swept) if whole else frozenset()

    @property
    def spec(self) -> Spec:
        trained = {tag: self.tags[tag].name for tag in (*self.rows, *(self.moving - set(self.rows)))}
        return Spec(min(BATCH, self.samples.fitted), trained, dict.fromkeys(self.rows, "mask"), LossSpec())

    @cached_property
    def own(self) -> list[str]:
        """The inputs of which each sample has its own."""
        pairs = list(zip(self.samples.feeds, self.samples.sizes))
        return [
            name for name in self.samples.feeds[0]
            if all(feed[name].ndim and len(feed[name]) == size for feed, size in pairs)
        ]  # fmt: skip

    def gathered(self, held: bool) -> dict[str, Array]:
        """The samples that fit, or those held out, in one piece."""
        feeds = [feed for number, feed in enumerate(self.samples.feeds) if self.samples.is_held(number) == held]
        shared = {name: array for name, array in feeds[0].items() if name not in self.own}
        return {**shared, **{name: np.concatenate([feed[name] for feed in feeds]) for name in self.own}}

    def proving(self) -> dict[str, Array]:
        arrays = self.gathered(False)
        places = np.arange(MADE_WITH) % self.samples.fitted
        return {name: array[places] if name in self.own else array for name, array in arrays.items()}


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
        for _ in range(2):
            _walk(job, engine, steps, rate)
            after = _distance(job, engine)
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
        batch = mixed(arrays, job.own, count, job.spec.batch, job.asked.seed, step)
        if not math.isfinite(engine.step(Batch(batch))):
            raise DivergedError("the loss is no number any more")
        engine.update(Pace(rate * factor_at(schedule, step, steps, steps, max(10.0, 0.05 * steps)), held=held))
        progress.advance("refit all layers", step + 1, steps)


def _distance(job: _Job, engine: Engine) -> float:
    """The loss on the samples held out; infinity where it is no number."""
    loss = engine.evaluate(Batch(job.gathered(True)))[0]
    return loss if math.isfinite(loss) else math.inf


__all__ = ["refitted_together"]
