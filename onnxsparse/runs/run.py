"""The loop: a chain of segments, each with a fixed graph, and whatever the modifiers do at every step.

1. A run is where it is by its step, its attempt, the engine's arrays and the states of its modifiers. All of that is in
   a checkpoint, and nothing else decides what comes next.
2. Between two segments the graph is made anew; what both know by the same tag is carried over, moments included.
3. What comes out is the best state seen on the probe, or the dense model's weights under the masks of a one-shot
   pruning where no training helped.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onnxsparse import checkpoints
from onnxsparse.engines.engine import Batch, DivergedError, Engine, Pace
from onnxsparse.engines.spec import Spec
from onnxsparse.errors import OptionError
from onnxsparse.modifiers.keep_best import SMALLER, KeepBestPart
from onnxsparse.modifiers.modifier import Modifier, Part
from onnxsparse.modifiers.pruning import PruningPart
from onnxsparse.modifiers.training import Training
from onnxsparse.passes.plan import PlanRow
from onnxsparse.report.history import History, Moment
from onnxsparse.runs.feeding import Feeding
from onnxsparse.scores import Score
from onnxsparse.sparsers.renewal import Choice, renew, write
from onnxsparse.values import Array

MakeEngine = Callable[[Spec], Engine]
Watcher = Callable[[dict[str, Any]], None]
SAVES, SECONDS = 20, 60.0
ROWS = 100


@dataclass(frozen=True, eq=False)
class Job:
    """What a run is given: nothing of it changes."""

    modifiers: Sequence[Modifier]
    spec: Spec
    make_engine: MakeEngine
    feeding: Feeding
    planned: Mapping[str, PlanRow]
    score: Score
    start: Callable[[str], Array]
    """The dense numbers of a stored tensor, by tag."""
    pruned_share: float
    digest: str = ""
    folder: str | None = None
    resume: bool = False
    watch: Watcher | None = None
    measure: Callable[[Engine], dict[str, float]] | None = None
    measure_dense: Callable[[Engine], dict[str, float]] | None = None


@dataclass
class Outcome:
    """What a run came to: the numbers of every stored tensor that trained, by tag."""

    arrays: dict[str, Array]
    masked: list[str]
    history: History
    loss_untrained: float
    loss: float
    helped: bool
    attempts: int
    notes: list[str] = field(default_factory=list)
    unreached: dict[str, str] = field(default_factory=dict)
    dense: dict[str, float] = field(default_factory=dict)
    untrained: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    steps: int = 0


class Run:
    """One training. The modifiers' parts see this object."""

    engine: Engine

    def __init__(self, job: Job) -> None:
        self.job, self.planned, self.score, self.pruned_share = job, job.planned, job.score, job.pruned_share
        self.training = next(one for one in job.modifiers if isinstance(one, Training))
        self.seed = self.training.seed
        self.per_epoch = job.feeding.per_epoch or self._demand_steps()
        self.total = self.training.total(self.per_epoch)
        self.step, self.attempt, self.pace = 0, 0, Pace(0.0)
        self.history, self.notes = History(), list(job.feeding.notes)
        self.learned: dict[str, Array] = {}
        self._spec: Spec | None = None
        self._best: dict[str, Array] = {}
        self._untrained: tuple[float, dict[str, float]] | None = None
        self._sum, self._since, self._began, self._seconds = 0.0, 0, time.monotonic(), time.monotonic()
        self._batch: Batch | None = None
        self._probed: float | None = None
        self.parts: list[Part] = [modifier.start(self) for modifier in job.modifiers]

    def _demand_steps(self) -> int:
        if self.training.steps is None:
            raise OptionError(
                "nobody knows how long an epoch of a function's data is: pass --steps or --steps-per-epoch"
            )
        return self.training.steps

    # -- what the parts ask for

    @property
    def caution(self) -> float:
        """What the rate is multiplied with: less after every attempt that did harm."""
        return float(SMALLER**-self.attempt)

    @property
    def final_from(self) -> int:
        """The step from which the masks are the final ones."""
        return max((part.final_from for part in self.parts if isinstance(part, PruningPart)), default=0)

    def probe_loss(self) -> float:
        losses = [self.engine.evaluate(batch)[0] for batch in self.job.feeding.probe()]
        loss = float(np.mean(losses))
        return loss if math.isfinite(loss) else math.inf

    def note_probe(self, loss: float) -> None:
        self._probed = loss

    def remember(self) -> None:
        """The state as it is now is the best so far."""
        self._best = {tag: self._baked(tag).copy() for tag in self._stored()}

    def dense_gradients(self, tags: Sequence[str]) -> dict[str, Array]:
        """The gradient at every place of these weights, masked ones too, on the batch of this step."""
        engine, masks = self.engine, {tag: self.engine.frozen[f"{tag}/mask"] for tag in tags}
        kept = {tag: mask.copy() for tag, mask in masks.items()}
        for tag, mask in masks.items():
            write(engine.weights[tag], mask, mask.reshape(-1) != 0)
            mask[...] = 1
        engine.discard_gradients()
        assert self._batch is not None
        engine.step(self._batch)
        gains = {tag: np.abs(engine.gradients()[tag]) for tag in tags}
        for tag, mask in masks.items():
            mask[...] = kept[tag]
        return gains

    def untrained_loss(self) -> float:
        """The probe's loss of the dense weights under one-shot masks. The engine's state is gone afterwards."""
        if self._untrained is None:
            self._to_one_shot()
            metrics = self.job.measure(self.engine) if self.job.measure else {}
            self._untrained = self.probe_loss(), metrics
        return self._untrained[0]

    # -- the loop

    def go(self) -> Outcome:
        self._begin()
        while True:
            try:
                while self.step < self.total:
                    self._one_step()
            except DivergedError as error:
                self.notes.append(f"attempt {self.attempt + 1} stopped at step {self.step}: {error}")
            if not self._again():
                break
        return self._outcome()

    def _begin(self) -> None:
        found = self._found()
        if found is None:
            self._enter(0)
            self._reset()
        else:
            self._restore(found)
        self.notes += [note for note in self.engine.notes if note not in self.notes]
        if self.job.feeding.count and self.total * self.training.batch > 1.5 * self.job.feeding.count:
            self.engine.ask_ahead(self.job.feeding.count, self.job.feeding.everything())
        self._began = time.monotonic()

    def _one_step(self) -> None:
        step = self.step
        self._enter(step)
        for part in self.parts:
            part.before_step(step)
        self._batch = self.job.feeding.batch(step)
        loss = self.engine.step(self._batch)
        if not math.isfinite(loss):
            raise DivergedError("the loss is no number any more")
        for part in self.parts:
            part.before_update(step)
        self.engine.update(self.pace)
        for part in self.parts:
            part.after_update(step)
        self._count(step, loss)
        self.step = step + 1
        if self.job.folder is not None and self._is_time_to_save():
            self.save()

    def _enter(self, step: int) -> None:
        """Have the engine of the segment that a step belongs to."""
        spec = self._spec_at(step)
        if spec == self._spec:
            return
        first = self._spec is None
        state = None if first else self._leave()
        self.engine = self.job.make_engine(spec)
        self._spec = spec
        if state is not None:
            self.engine.restore(*state)
            for part in self.parts:
                part.change(step)

    def _leave(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """What the next segment takes over of this one; what was learned is settled."""
        self.learned = {}
        arrays, facts = self.engine.state()
        kept = {key: array.copy() for key, array in arrays.items()}
        for part in self.parts:
            if isinstance(part, PruningPart):
                for tag in [tag for tag in self.planned if tag in self.engine.weights]:
                    self.learned[tag], kept[f"weight/{tag}"] = part.learned(tag)
        del self.engine
        return kept, facts

    def _spec_at(self, step: int) -> Spec:
        starts = sorted({0, *(at for part in self.parts for at in part.boundaries())})
        begin = starts[bisect_right(starts, step) - 1]
        spec = self.job.spec
        for part in self.parts:
            spec = part.shape(spec, begin)
        return spec

    # -- the states it goes through

    def _reset(self) -> None:
        """The dense model, with open masks and nothing remembered."""
        for tag in self._stored():
            self.engine.weights[tag][...] = self.job.start(tag)
            self.engine.clear_moments(tag)
        for key, array in self.engine.frozen.items():
            if key.endswith("/mask"):
                array[...] = 1
        self.engine.discard_gradients()
        self.step, self._sum, self._since = 0, 0.0, 0

    def _to_one_shot(self) -> None:
        self._enter(self.total - 1)
        self._reset()
        for tag, row in self._live():
            weight, mask = self.engine.weights[tag], self.engine.frozen[f"{tag}/mask"]
            if row.keep is not None:
                write(weight, mask, row.keep.reshape(-1))
            else:
                assert row.pattern is not None
                score = self.score.bind(row.name)
                renew(weight, mask, Choice(row.pattern, score, row.drop, row.use.matrix, row.use.restore))

    def _again(self) -> bool:
        """Begin once more, more carefully, where training did harm."""
        keepers = [part for part in self.parts if isinstance(part, KeepBestPart)]
        if not any(part.again() for part in keepers):
            return False
        self.attempt += 1
        self._best, self.step = {}, 0
        self.history.until(-1)
        self.parts = [modifier.start(self) for modifier in self.job.modifiers]
        self._spec_changes_to(self._spec_at(0))
        self._reset()
        self.notes.append(f"training did not help at that rate: begun again with a {SMALLER:g}rd of it")
        return True

    def _spec_changes_to(self, spec: Spec) -> None:
        if spec != self._spec:
            del self.engine
            self.engine, self._spec = self.job.make_engine(spec), spec

    def _stored(self) -> list[str]:
        """Tags of stored tensors, without what sparsers train beside them."""
        return [key for key in self.engine.weights if "/" not in key]

    def _live(self) -> list[tuple[str, PlanRow]]:
        return [(tag, row) for tag, row in self.planned.items() if tag in self.engine.weights]

    def _baked(self, tag: str) -> Array:
        weight, mask = self.engine.weights[tag], self.engine.frozen.get(f"{tag}/mask")
        return weight if mask is None else np.asarray(np.where(mask != 0, weight, np.float32(0)))

    def _outcome(self) -> Outcome:
        loss_untrained = self.untrained_loss()
        untrained_metrics = self._untrained[1] if self._untrained else {}
        keeper = next((part for part in self.parts if isinstance(part, KeepBestPart)), None)
        helped = keeper is None or keeper.helped
        if not self._best:
            helped = False
        if helped:
            for tag, array in self._best.items():
                self.engine.weights[tag][...] = array
            for tag, _ in self._live():
                mask = self.engine.frozen[f"{tag}/mask"]
                mask[...] = self._kept_places(tag)
        else:
            self._to_one_shot()
            self.notes.append("no training helped on the samples held out; the weights are those of a one-shot pruning")
        return Outcome(
            {tag: self._baked(tag).copy() for tag in self._stored()},
            [tag for tag, _ in self._live()],
            self.history,
            loss_untrained,
            keeper.best if keeper and helped else loss_untrained,
            helped,
            self.attempt + 1,
            self.notes,
            dict(self.engine.unreached),
            dense=self.job.measure_dense(self.engine) if self.job.measure_dense else {},
            untrained=untrained_metrics,
            metrics=self.job.measure(self.engine) if self.job.measure else {},
            steps=self.total,
        )

    def _kept_places(self, tag: str) -> Array:
        """The final mask of the best state: all that is not +0.0 there (what is pruned is exactly that)."""
        return np.asarray(self._best[tag] != 0)

    # -- what it tells, and what it saves

    def _count(self, step: int, loss: float) -> None:
        self._sum, self._since = self._sum + loss, self._since + 1
        every = max(1, self.total // ROWS)
        if (step + 1) % every and step + 1 != self.total and self._probed is None:
            return
        row = Moment(
            epoch=round((step + 1) / self.per_epoch, 4),
            step=step + 1,
            loss=self._sum / self._since,
            sparsity=self._sparsity(),
            rate=self.pace.rate,
            samples_per_second=self._speed(),
            probe=self._probed,
            metrics=self._measured(step + 1),
        )
        self.history.add(row)
        self._sum, self._since, self._probed = 0.0, 0, None
        if self.job.watch is not None:
            self.job.watch({"of": self.total, "attempt": self.attempt + 1, **vars(row)})

    def _measured(self, done: int) -> dict[str, float]:
        """Metrics after every whole epoch but the last, which is measured with the result."""
        if self.job.measure is None or done % self.per_epoch or done == self.total:
            return {}
        return self.job.measure(self.engine)

    def _speed(self) -> float:
        now = time.monotonic()
        seconds, self._seconds = max(now - self._seconds, 1e-9), now
        return round(self._since * self.training.batch / seconds, 1)

    def _sparsity(self) -> float:
        masks = [self.engine.frozen[f"{tag}/mask"] for tag, _ in self._live() if f"{tag}/mask" in self.engine.frozen]
        size = sum(mask.size for mask in masks)
        return round(1 - sum(int(np.count_nonzero(mask)) for mask in masks) / size, 6) if size else 0.0

    def _is_time_to_save(self) -> bool:
        due = self.step % max(1, self.total // SAVES) == 0 or self.step == self.total
        if due or time.monotonic() - self._began > SECONDS:
            self._began = time.monotonic()
            return True
        return False

    def save(self) -> None:
        """Write a checkpoint of everything the next step depends on."""
        assert self.job.folder is not None
        arrays, facts = self.engine.state()
        arrays.update({f"best/{tag}": array for tag, array in self._best.items()})
        saved = {
            "job": self.job.digest,
            "data": self.job.feeding.fingerprint,
            "step": self.step,
            "attempt": self.attempt,
            "engine": facts,
            "parts": [part.state() for part in self.parts],
            "history": self.history.to_facts(),
            "notes": self.notes,
            "sum": [self._sum, self._since],
        }
        checkpoints.save(self.job.folder, self.attempt * (self.total + 1) + self.step, arrays, saved)
        checkpoints.clean(self.job.folder)

    def _found(self) -> checkpoints.Checkpoint | None:
        folder = self.job.folder
        if folder is None:
            return None
        found = checkpoints.newest(folder, self.notes)
        if found is None:
            if self.job.resume:
                self.notes.append(f"{folder} holds no checkpoint; the run begins at its start")
            return None
        if not self.job.resume:
            raise OptionError(f"{folder} holds checkpoints of a run; pass --resume to go on with it, or another folder")
        if found.facts["job"] != self.job.digest:
            raise OptionError(
                f"{folder} holds checkpoints of another run (another model, plan, recipe or version); "
                "pass the same options, or another folder"
            )
        if found.facts["data"] != self.job.feeding.fingerprint:
            self.notes.append("the data is not what it was when the run began: the result will not be the same")
        return found

    def _restore(self, found: checkpoints.Checkpoint) -> None:
        facts = found.facts
        self.step, self.attempt = int(facts["step"]), int(facts["attempt"])
        self._enter(max(0, self.step - 1))
        self.engine.restore(found.arrays, facts["engine"])
        prefix = "best/"
        self._best = {key[len(prefix) :]: found.arrays[key] for key in found.arrays if key.startswith(prefix)}
        for part, state in zip(self.parts, facts["parts"]):
            part.restore(state)
        self.history = History.from_facts(facts["history"])
        self.notes += [note for note in facts["notes"] if note not in self.notes]
        self._sum, self._since = float(facts["sum"][0]), int(facts["sum"][1])
        self.notes.append(f"resumed at step {self.step} of {self.total}")
