"""The training loop: a chain of segments, each with a fixed graph, and whatever the acts of modifiers do at every step.

1. A run is where it is by its step, its attempt, the trainee's arrays and the states of its acts. All of that is in a
   checkpoint, and nothing else decides what comes next.
2. Between two segments the trainee changes its graph; what both graphs know by the same tag is carried over.
3. What comes out is the best state seen on the probe, or what the run began with under the masks of a one-shot pruning
   where no training helped: the dense model's weights, or calibrated ones.
"""

from __future__ import annotations

import copy
import math
from bisect import bisect_right
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Protocol

import numpy as np

from onnxsparse.acts import weights
from onnxsparse.acts.act import Act, TimedAct
from onnxsparse.checkpoints import Checkpoint
from onnxsparse.engines.engine import Batch, DivergedError, Engine, Spec
from onnxsparse.errors import ModelError, OnnxSparseError, OptionError
from onnxsparse.math.values import Array
from onnxsparse.recipes.modifiers.modifier import Scheduled
from onnxsparse.recipes.modifiers.training import PART, SHORTEST, SMALLER, KeepBestAct
from onnxsparse.train.checkpointing import Saves, Stopping
from onnxsparse.train.evaluation import Evaluation, ranges_of
from onnxsparse.train.fake_quantization import FakeQuantization, Integers, tags_by_name
from onnxsparse.train.onnx_trainee import OnnxTrainee
from onnxsparse.train.outcome import Account, Outcome, Watcher
from onnxsparse.train.start import recalibrated
from onnxsparse.train.task import Task, demand_alike_step

__all__ = ["Outcome", "Run", "Watcher"]

BEST = "best/"
ASKED_AHEAD = 1.5
"""Passes through the data from which on the dense model is asked about all of it once."""
HARMED = (
    "training did not help: its last weights, which are delivered, do no better on the samples held out than pruning"
)


class MakesEngines(Protocol):
    """What makes the engine of a training graph."""

    def make(self, spec: Spec) -> Engine: ...


class Run:
    """One training: native acts see this object for what is the run's and not the trainee's."""

    def __init__(
        self,
        task: Task,
        engines: MakesEngines,
        evaluation: Evaluation | None = None,
        folder: str | None = None,
        resume: bool = False,
        watch: Watcher | None = None,
        every: int | None = None,
    ) -> None:
        self.task, self.planned, self.score, self.pruned_share = task, task.planned, task.score, task.pruned_share
        self.training, self.seed = task.training, task.training.seed
        self._engines, self._evaluation = engines, evaluation
        known = task.feeding.per_epoch
        self.total = self.training.total(known) if known else self._steps_of_a_function()
        self.per_epoch = known or self.total
        self.step, self.attempt, self.loss = 0, 0, math.nan
        self.notes: list[str] = []
        self._account = Account(self.total, self.per_epoch, task.feeding.size, watch)
        self._saves = Saves(task, self.total, folder, resume, every)
        self._stopping = Stopping(folder is not None and task.processes.count == 1)
        self._best: dict[str, Array] = {}
        self._untrained: tuple[float, dict[str, float]] | None = None
        self._compared = task.processes.count == 1
        timed = iter(task.acts)
        self.acts: list[Act] = [
            next(timed) if isinstance(one, Scheduled) else one.start(self) for one in task.modifiers
        ]
        self._unused = [act.state() for act in self.acts]
        self._begin_attempt()

    def _steps_of_a_function(self) -> int:
        """Nobody knows how long an epoch of a function's data is: the whole run counts as one."""
        if self.training.epochs is not None:
            raise OptionError(
                "nobody knows how long an epoch of a function's data is: pass --steps-per-epoch too, or --steps instead"
            )
        return self.training.steps or SHORTEST

    def _begin_attempt(self) -> None:
        """A new trainee, of which nobody knows anything yet; acts are as they were before their first step."""
        task, caution = self.task, float(SMALLER**-self.attempt)
        fake = None
        if task.quantization is not None:
            tags, learned = tags_by_name(task.model, task.tags), task.learned_scales
            fake = FakeQuantization(task.quantization, task.model.proto, tags, self._ranges_of, learned)
        if self._evaluation is not None:
            self._evaluation.fake = fake
        self.trainee = OnnxTrainee(
            self._engine_of, task.params, self.per_epoch, self.total, caution, self.note, self._account.ask, fake,
            None if task.feeding.count is None else self._batches_ahead,
        )  # fmt: skip
        for act, state in zip(self.acts, self._unused):
            if self.attempt:
                act.restore(copy.deepcopy(state), self.trainee)
            if isinstance(act, TimedAct):
                self.trainee.demand(act)
                self.trainee.admit(act)
                if act.warning:
                    self.note(f"{act.where}: {act.warning}")
        self._segments = Segments(task.spec, self.trainee, self.acts)

    def _ranges_of(self, engine: Engine, names: Sequence[str]) -> dict[str, tuple[float, float]]:
        skipped = {} if self.trainee.spec is None else self.trainee.spec.bypasses
        return ranges_of(self.task, engine, names, skipped)

    def _batches_ahead(self) -> Iterator[Batch]:
        """Those of this step and the steps that come."""
        return (self.task.feeding.batch(step) for step in count(self.step))

    def _engine_of(self, spec: Spec) -> Engine:
        engine, feeding = self._engines.make(spec), self.task.feeding
        if self._evaluation is not None:
            self._evaluation.begin(engine, spec)
        for note in engine.notes:
            self.note(note)
        if feeding.count and self.total * feeding.size > ASKED_AHEAD * feeding.count:
            engine.ask_ahead(feeding.count, feeding.everything())
        return engine

    # -- what acts ask for

    @property
    def engine(self) -> Engine:
        """The engine of this segment: not to be kept, for the next one has its own."""
        return self.trainee.engine

    @property
    def final_from(self) -> int:
        """The step from which the masks are the final ones."""
        return max((act.final_from(self.trainee) for act in self.acts), default=0)

    def probe_loss(self) -> float:
        self.trainee.rescale()
        self.engine.agree()
        losses = [self.engine.evaluate(batch)[0] for batch in self.task.feeding.probe()]
        loss = self.task.processes.mean(float(np.mean(losses)))
        return loss if math.isfinite(loss) else math.inf

    def recalibrated(self, drops: Mapping[str, int]) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
        """What is kept of each weight that trains, flat, and the new numbers, by tag, of the network as it is now."""
        found = recalibrated(self.task, self.engine, drops)
        keeps = {row.name: row.keep for row in found.plan.planned if row.keep is not None}
        masks = {tag: keeps[row.name] for tag, row in weights.live(self.engine, self.planned)}
        numbers = {tag: array.astype(np.float32) for tag, array in found.numbers.items() if tag in self.engine.weights}
        return masks, numbers

    def note_probe(self, loss: float) -> None:
        self._account.probed = loss

    def note(self, note: str) -> None:
        """Say something in the report, once."""
        if note not in self.notes:
            self.notes.append(note)

    def keep_as_best(self) -> None:
        """The state as it is now is the best so far."""
        self.trainee.rescale()
        self._best.update(self.trainee.scales())
        for tag in weights.stored(self.engine):
            self._best[tag] = weights.baked(self.engine, tag, self._best.get(tag))

    def untrained_loss(self) -> float:
        """The probe's loss of the first weights under one-shot masks. The engine's state is gone afterwards."""
        if self._untrained is None:
            self._to_one_shot()
            metrics = self._evaluation(self.engine) if self._evaluation else {}
            self._untrained = self.probe_loss(), metrics
        return self._untrained[0]

    # -- the loop

    def go(self) -> Outcome:
        """The whole run."""
        for _ in self.stages():
            pass
        return self.outcome()

    def stages(self) -> Generator[int, None, None]:
        """Train; wherever a stage of the run is trained, its number, before any checkpoint behind it.

        To be closed by whoever leaves it early: signals wait until a step is saved.
        """
        found = self._saves.find(self.notes)
        self._begin(found)
        if found is None:
            weights.demand_numbers(self.engine, self.task.feeding.probe())
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # a run that diverges is noticed and said
            yield from self._attempt()
            while self._again():
                yield from self._attempt()

    def train(self, found: Checkpoint | None) -> None:
        """All steps from a checkpoint on; whether training helped is for whoever asked to say."""
        self._begin(found)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for _ in self._steps():
                pass

    def _begin(self, found: Checkpoint | None) -> None:
        """Where a checkpoint is, or at the first numbers."""
        if found is not None and found.facts["attempt"]:
            self.attempt = int(found.facts["attempt"])
            self._begin_attempt()
        self._segments.jump(0 if found is None else max(0, int(found.facts["step"]) - 1))
        if found is None:
            self._to_start()
        else:
            self.restore(found)
        self._account.start_clock()

    def _attempt(self) -> Iterator[int]:
        try:
            yield from self._steps()
        except DivergedError as error:
            self.note(f"attempt {self.attempt + 1} stopped at step {self.step}: {error}")

    def _steps(self) -> Iterator[int]:
        while self.step < self.total:
            with self._stopping.until_saved():
                asked = False
                while self.step < self.total and not asked:
                    self._one_step()
                    yield from (stage for act in self.acts for stage in act.ended(self.step))
                    asked = self._count()
        self._segments.enter_last()
        for act in sorted(self.acts, key=lambda act: isinstance(act, KeepBestAct)):  # it looks at the result
            act.finish(self.trainee)
            if isinstance(act, TimedAct) and act.scales_and_biases():
                self.note(act.zeros(self.trainee))

    def _one_step(self) -> None:
        """The weights move by the loss of one step."""
        step, batch, trainee = self.step, self.task.feeding.batch(self.step), self.trainee
        self._segments.enter(step)
        trainee.meet(batch)
        if not self._compared:
            demand_alike_step(self.task.processes, self.engine, batch)
            self._compared = True
        for act in self.acts:
            act.before_step(trainee, step)
        trainee.settle()
        self.loss = self._learn(batch, step)
        for act in self.acts:
            act.after_step(trainee, step)

    def _count(self) -> bool:
        """Count a step that is done, and save the state where that is due: whether a signal waits for it."""
        self.step += 1
        self._tell(self.loss)
        asked = self._stopping.asked  # looked at once: for one that comes now there is another step
        if self._saves.is_due(self.step) or asked:
            self._saves.write(self.attempt, self.step, *self.state())
        return asked

    def _learn(self, batch: Batch, step: int) -> float:
        """The loss of a step, by which the weights moved. What is left out counts nowhere: the step is repeated."""
        while True:
            loss = self.trainee.step(batch)
            if not math.isfinite(loss):
                raise _no_number(step)
            if self.engine.overflowed:  # acts see a step once, with gradients that count
                self.trainee.update()
                continue
            for act in self.acts:
                act.before_update(self.trainee, step)
            for act in self.acts:
                act.before_move(self.trainee)
            moved = self.trainee.update()
            for act in reversed(self.acts):
                act.after_move(self.trainee)
            if moved:
                return loss

    def _tell(self, loss: float) -> None:
        """Metrics are taken after every whole epoch but the last, which is measured with the result."""
        self._account.count(loss)
        each = self._evaluation if self._evaluation is not None and self._evaluation.each_epoch else None
        measured = each is not None and self._account.ends_epoch(self.step)
        if measured or self._account.is_due(self.step):
            self.trainee.rescale()
            metrics = each(self.engine) if each is not None and measured else {}
            sparsity = weights.sparsity(self.engine, self.planned)
            self._account.add(self.step, self.attempt, self.trainee.settings.rate, sparsity, metrics)

    # -- the states it goes through

    def _to_start(self) -> None:
        assert self.trainee.spec is not None
        weights.make_dense(self.engine, self.trainee.spec, self.task.first_numbers)

    def _to_one_shot(self) -> None:
        self._segments.jump_to_last()
        self._to_start()
        weights.prune_at_once(self.engine, self.planned, self.score)
        with suppress(DivergedError):  # what gives no numbers has a loss that is none
            self.trainee.calibrate()

    def _again(self) -> bool:
        """Begin once more, more carefully, where training did harm."""
        if self._keeper is None or not self._keeper.again():
            return False
        self.attempt, self.step, self._best = self.attempt + 1, 0, {}
        self._begin_attempt()
        self._segments.jump(0)
        self._to_start()
        self._account.begin_again()
        self.note(f"training did not help at that rate: begun again with {PART} of it")
        return True

    @property
    def _one_shot(self) -> str:
        return "one-shot pruning" if self.task.start is None else "calibration"

    @property
    def _keeper(self) -> KeepBestAct | None:
        return next((act for act in self.acts if isinstance(act, KeepBestAct)), None)

    # -- the end

    def outcome(self) -> Outcome:
        """What the run came to; to be asked once, when all stages are over."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            return self._outcome()

    def _outcome(self) -> Outcome:
        keeper, done = self._keeper, self.step == self.total
        if keeper is None and done:
            self.keep_as_best()
        untrained = self.untrained_loss()
        trained = bool(self._best) and (keeper is None or keeper.helped)
        if trained:
            weights.show(self.engine, self._best, self.planned)
        else:
            self._to_one_shot()
            self.note(f"no training helped on the samples held out; the weights are those of a {self._one_shot}")
        if not math.isfinite(untrained):
            self.note("right after pruning, what the model gives for the samples held out is no finite number")
        loss = untrained if not trained else self.probe_loss() if keeper is None else keeper.best
        if trained and not loss < untrained:
            self.note(HARMED)
        best = self._best if trained else {tag: weights.baked(self.engine, tag) for tag in weights.stored(self.engine)}
        scales = self.trainee.scales()
        return Outcome(
            {tag: best[tag] for tag in weights.stored(self.engine)},
            [tag for tag, _ in weights.live(self.engine, self.planned)],
            self._account.history,
            untrained,
            loss,
            trained and loss < untrained,
            self.attempt + 1,
            list(dict.fromkeys([*self.task.feeding.notes, *self.notes])),
            dict(self.engine.unreached),
            unit=self.engine.unit,
            dense=self._evaluation.dense(self.engine) if self._evaluation else {},
            untrained=self._untrained[1] if self._untrained else {},
            metrics=self._evaluation(self.engine) if self._evaluation else {},
            steps=self.step,
            trained=trained,
            integers=Integers(self.trainee.fake, scales) if self.trainee.fake and scales else None,
        )

    # -- what a checkpoint holds

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Everything that the next step depends on: arrays, which are live, and facts for JSON."""
        arrays, facts = self.engine.state()
        arrays.update({BEST + tag: array for tag, array in self._best.items()})
        arrays.update(self.trainee.arrays())
        for act in self.acts:
            arrays.update(act.arrays())
        saved = {
            "engine": facts,
            "parts": [act.state() for act in self.acts],
            "host": self.trainee.state(),
            "account": self._account.state(),
            "notes": self.notes,
        }
        return arrays, saved

    def restore(self, found: Checkpoint) -> None:
        """Go on from a checkpoint; the engine is that of the last step before it."""
        facts = found.facts
        self.step = int(facts["step"])
        self.engine.restore(found.arrays, facts["engine"])
        self._best = {key[len(BEST) :]: found.arrays[key] for key in found.arrays if key.startswith(BEST)}
        for act, state in zip(self.acts, facts["parts"]):
            act.load(found.arrays)
            act.restore(state, self.trainee)
        self.trainee.load(found.arrays)
        self.trainee.restore(facts["host"])
        self._account.restore(facts["account"])
        for note in facts["notes"]:
            self.note(note)
        self.note(f"resumed at step {self.step} of {self.total}")


def _no_number(step: int) -> OnnxSparseError:
    """Before the first update no rate is to blame."""
    if step:
        return DivergedError("the loss is no number any more")
    return ModelError(
        "before any training the loss is no finite number: what is pruned at the start makes the model overflow; "
        "prune less or exclude weights, or look at the data"
    )


# -- The segments of an attempt: stretches of steps with one training graph each.
#
# 1. A segment begins where an act of the run says so; all acts together say what its graph is.
# 2. Where two segments have the same graph nothing happens. Otherwise the trainee changes its graph, and what both know
#    by the same tag is carried over, optimizer state included.


class Segments:
    """Where the segments of a run lie, and in which one its trainee is; `first` is the graph before any act."""

    def __init__(self, first: Spec, trainee: OnnxTrainee, acts: Sequence[Act]) -> None:
        self._first, self._trainee, self._acts = first, trainee, acts
        found = {at for act in acts for at in act.boundaries(trainee) if at < trainee.total}
        self._starts, self._began = sorted({0, *found}), 0

    def enter(self, step: int) -> None:
        """Go on in the segment of a step, with all that the one before it leaves to it."""
        begin = self._begin(step)
        if begin == self._began:
            return
        self._began, spec, trainee = begin, self._spec(begin), self._trainee
        if spec == trainee.spec:  # building a training graph takes seconds, in a process of its own
            return
        for act in self._acts:
            act.leave(trainee, step)
        trainee.rebuild(spec)
        for act in self._acts:
            act.enter(trainee, step)

    def jump(self, step: int) -> None:
        """Have the graph of a step's segment, in whatever state."""
        self._began = self._begin(step)
        spec = self._spec(self._began)
        if spec != self._trainee.spec:
            self._trainee.build(spec)

    def enter_last(self) -> None:
        """Go on in the graph that is delivered."""
        spec = self._last()
        if spec != self._trainee.spec:
            self._trainee.rebuild(spec)

    def jump_to_last(self) -> None:
        """Have the graph that is delivered, in whatever state."""
        spec = self._last()
        if spec != self._trainee.spec:
            self._trainee.build(spec)

    def _last(self) -> Spec:
        """The graph of the last segment, as it is delivered."""
        spec = self._spec(self._starts[-1])
        for act in self._acts:
            spec = act.delivered(spec)
        return spec

    def _begin(self, step: int) -> int:
        """The step at which the segment of a step begins."""
        return self._starts[bisect_right(self._starts, step) - 1]

    def _spec(self, begin: int) -> Spec:
        spec = self._first
        for act in self._acts:
            spec = act.shape(self._trainee, spec, begin)
        return spec
