"""The loop: a chain of segments, each with a fixed graph, and whatever the modifiers do at every step.

1. A run is where it is by its step, its attempt, the engine's arrays and the states of its modifiers. All of that is in
   a checkpoint, and nothing else decides what comes next.
2. Between two segments the graph is made anew; what both know by the same tag is carried over, moments included.
3. What comes out is the best state seen on the probe, or the dense model's weights under the masks of a one-shot
   pruning where no training helped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onnxsparse.checkpoints import Checkpoint
from onnxsparse.engines.engine import Batch, DivergedError, Engine, Pace
from onnxsparse.epochs.running import RunHost
from onnxsparse.errors import ModelError, OnnxSparseError, OptionError
from onnxsparse.math.values import Array
from onnxsparse.modifiers.keep_best import PART, SMALLER, KeepBestPart
from onnxsparse.modifiers.modifier import Part
from onnxsparse.modifiers.training import SHORTEST, Training
from onnxsparse.runs import weights
from onnxsparse.runs.account import Account
from onnxsparse.runs.alike import demand_alike_step
from onnxsparse.runs.job import Job, Outcome, Watcher
from onnxsparse.runs.saves import Saves
from onnxsparse.runs.segments import Segments
from onnxsparse.runs.stopping import Stopping

BEST = "best/"
HARMED = (
    "training did not help: its last weights, which are delivered, do no better on the samples held out than pruning"
)


class Run:
    """One training. The modifiers' parts see this object."""

    def __init__(self, job: Job) -> None:
        self.job, self.planned, self.score, self.pruned_share = job, job.planned, job.score, job.pruned_share
        self.training = next(one for one in job.modifiers if isinstance(one, Training))
        self.seed = self.training.seed
        known = job.feeding.per_epoch
        self.total = self.training.total(known) if known else self._steps_of_a_function()
        self.per_epoch = known or self.total
        self.step, self.attempt, self.pace = 0, 0, Pace(0.0)
        self.notes: list[str] = []
        self._account = Account(self.total, self.per_epoch, job.feeding.size, job.watch)
        self._saves = Saves(job, self.total)
        self._stopping = Stopping(job.folder is not None and job.processes.count == 1)
        self._segments = Segments(job, self.total, self.note)
        self._best: dict[str, Array] = {}
        self._untrained: tuple[float, dict[str, float]] | None = None
        self._batch: Batch | None = None
        self._compared = job.processes.count == 1
        self._meet()

    def _steps_of_a_function(self) -> int:
        """Nobody knows how long an epoch of a function's data is: the whole run counts as one."""
        if self.training.epochs is not None:
            raise OptionError(
                "nobody knows how long an epoch of a function's data is: pass --steps-per-epoch too, or --steps instead"
            )
        return self.training.steps or SHORTEST

    def _meet(self) -> None:
        """New parts, which know nothing yet."""
        self.host = RunHost(self, self.job.params)
        self.parts: list[Part] = [modifier.start(self) for modifier in self.job.modifiers]
        self._segments.meet(self.parts)

    # -- what the parts ask for

    @property
    def engine(self) -> Engine:
        """The engine of this segment: not to be kept, for the next one has its own."""
        return self._segments.engine

    @property
    def caution(self) -> float:
        """What the rate is multiplied with: less after every attempt that did harm."""
        return float(SMALLER**-self.attempt)

    @property
    def final_from(self) -> int:
        """The step from which the masks are the final ones."""
        return max((part.final_from for part in self.parts), default=0)

    def probe_loss(self) -> float:
        self.engine.agree()
        losses = [self.engine.evaluate(batch)[0] for batch in self.job.feeding.probe()]
        loss = self.job.processes.mean(float(np.mean(losses)))
        return loss if math.isfinite(loss) else math.inf

    def note_probe(self, loss: float) -> None:
        self._account.probed = loss

    def note(self, note: str) -> None:
        """Say something in the report, once."""
        if note not in self.notes:
            self.notes.append(note)

    def tell(self) -> None:
        """A row of the history after this step."""
        self._account.ask()

    def remember(self) -> None:
        """The state as it is now is the best so far."""
        for tag in weights.stored(self.engine):
            self._best[tag] = weights.baked(self.engine, tag, self._best.get(tag))

    def dense_gradients(self, tags: Sequence[str]) -> Mapping[str, Array]:
        """The gradient at every place of these weights, masked ones too, on the batch of this step.

        They are the engine's own, among those since the last update: whoever asked for them discards them.
        """
        assert self._batch is not None
        return weights.dense_gradients(self.engine, tags, self._batch)

    def untrained_loss(self) -> float:
        """The probe's loss of the dense weights under one-shot masks. The engine's state is gone afterwards."""
        if self._untrained is None:
            self._to_one_shot()
            metrics = self.job.measure(self.engine) if self.job.measure else {}
            self._untrained = self.probe_loss(), metrics
        return self._untrained[0]

    # -- the loop

    def go(self) -> Outcome:
        found = self._saves.find(self.notes)
        self._segments.jump(0 if found is None else max(0, int(found.facts["step"]) - 1))
        if found is None:
            self._to_dense()
            weights.demand_numbers(self.engine, self.job.feeding.probe())
        else:
            self.restore(found)
        self._account.start_clock()
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # a run that diverges is noticed and said
            self._attempt()
            while self._again():
                self._attempt()
            return self._outcome()

    def _attempt(self) -> None:
        try:
            while self.step < self.total:
                with self._stopping.until_saved():
                    while self.step < self.total and not self._one_step():
                        pass
            for part in sorted(self.parts, key=lambda part: isinstance(part, KeepBestPart)):  # it looks at the result
                part.finish()
        except DivergedError as error:
            self.note(f"attempt {self.attempt + 1} stopped at step {self.step}: {error}")

    def _one_step(self) -> bool:
        """Whether a signal waits, and the state is saved."""
        step = self.step
        self._segments.enter(step)
        self._batch = self.job.feeding.batch(step)
        if not self._compared:
            demand_alike_step(self.job.processes, self.engine, self._batch)
            self._compared = True
        for part in self.parts:
            part.before_step(step)
        self.pace = self.host.paced(self.pace)
        self.engine.agree()
        loss = self._learn(step)
        for part in self.parts:
            part.after_update(step)
        self.step = step + 1
        self._tell(loss)
        asked = self._stopping.asked  # looked at once: for one that comes now there is another step
        if self._saves.is_due(self.step) or asked:
            self._saves.write(self.attempt, self.step, *self.state())
        return asked

    def _learn(self, step: int) -> float:
        """The loss of a step, by which the weights moved. What is left out counts nowhere: the step is repeated."""
        assert self._batch is not None
        while True:
            loss = self.engine.step(self._batch)
            if not math.isfinite(loss):
                raise _no_number(step)
            for part in self.parts:
                part.before_update(step)
            if self.engine.update(self.pace):
                return loss

    def _tell(self, loss: float) -> None:
        """Metrics are taken after every whole epoch but the last, which is measured with the result."""
        self._account.count(loss)
        measured = self.job.measure is not None and self.job.each_epoch and self._account.ends_epoch(self.step)
        if measured or self._account.is_due(self.step):
            metrics = self.job.measure(self.engine) if self.job.measure and measured else {}
            sparsity = weights.sparsity(self.engine, self.planned)
            self._account.add(self.step, self.attempt, self.pace.rate, sparsity, metrics)

    # -- the states it goes through

    def _to_dense(self) -> None:
        weights.make_dense(self.engine, self._segments.spec, self.job.start)

    def _to_one_shot(self) -> None:
        self._segments.jump(self.total - 1)
        self._to_dense()
        weights.prune_at_once(self.engine, self.planned, self.score)

    def _again(self) -> bool:
        """Begin once more, more carefully, where training did harm."""
        if self._keeper is None or not self._keeper.again():
            return False
        self.attempt, self.step, self._best = self.attempt + 1, 0, {}
        self._meet()
        self._segments.forget()  # a new engine: nobody knows what one remembers that diverged
        self._segments.jump(0)
        self._to_dense()
        self._account.begin_again()
        self.note(f"training did not help at that rate: begun again with {PART} of it")
        return True

    @property
    def _keeper(self) -> KeepBestPart | None:
        return next((part for part in self.parts if isinstance(part, KeepBestPart)), None)

    # -- the end

    def _outcome(self) -> Outcome:
        keeper, done = self._keeper, self.step == self.total
        if keeper is None and done:
            self.remember()
        untrained = self.untrained_loss()
        trained = bool(self._best) and (keeper is None or keeper.helped)
        if trained:
            weights.show(self.engine, self._best, self.planned)
        else:
            self._to_one_shot()
            self.note("no training helped on the samples held out; the weights are those of a one-shot pruning")
        if not math.isfinite(untrained):
            self.note("right after pruning, what the model gives for the samples held out is no finite number")
        loss = untrained if not trained else self.probe_loss() if keeper is None else keeper.best
        if trained and not loss < untrained:
            self.note(HARMED)
        return Outcome(
            self._best if trained else {tag: weights.baked(self.engine, tag) for tag in weights.stored(self.engine)},
            [tag for tag, _ in weights.live(self.engine, self.planned)],
            self._account.history,
            untrained,
            loss,
            trained and loss < untrained,
            self.attempt + 1,
            list(dict.fromkeys([*self.job.feeding.notes, *self.notes])),
            dict(self.engine.unreached),
            unit=self.engine.unit,
            dense=self.job.measure_dense(self.engine) if self.job.measure_dense else {},
            untrained=self._untrained[1] if self._untrained else {},
            metrics=self.job.measure(self.engine) if self.job.measure else {},
            steps=self.step,
            trained=trained,
        )

    # -- what a checkpoint holds

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Everything that the next step depends on: arrays, which are live, and facts for JSON."""
        arrays, facts = self.engine.state()
        arrays.update({BEST + tag: array for tag, array in self._best.items()})
        saved = {
            "engine": facts,
            "parts": [part.state() for part in self.parts],
            "host": self.host.state(),
            "account": self._account.state(),
            "notes": self.notes,
        }
        return arrays, saved

    def restore(self, found: Checkpoint) -> None:
        """Go on from a checkpoint; the engine is that of the last step before it."""
        facts = found.facts
        self.step, self.attempt = int(facts["step"]), int(facts["attempt"])
        self.engine.restore(found.arrays, facts["engine"])
        self._best = {key[len(BEST) :]: found.arrays[key] for key in found.arrays if key.startswith(BEST)}
        for part, state in zip(self.parts, facts["parts"]):
            part.restore(state)
        self.host.restore(facts["host"])
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


__all__ = ["Job", "Outcome", "Run", "Watcher"]
