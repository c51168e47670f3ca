"""An ONNX model trained step by step: by a user's own loop, which calls `step(batch)`, or by a run of ours.

1. In a user's loop the engine is made with the first batch of a step, by which it knows the labels and the size of a
   batch. Until then, and while the training graph changes, the numbers are kept here. What is evaluated before has an
   engine for itself. A run of ours hands its trainee over instead (`attach`).
2. Later batches may have any size: loss, gradient and outputs are those of their samples (see `fixed_batch`).
3. What is seen of weights and masks are live arrays. The model is opened once; a result is made of it by edits that are
   undone again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import ModelProto

from onnxsparse import rates, sparsers
from onnxsparse.data import LABELS
from onnxsparse.engines.engine import Batch, Engine, Pace, Spec
from onnxsparse.errors import OptionError, brief, nearest
from onnxsparse.files import write_text
from onnxsparse.graph.model import Model, Source
from onnxsparse.graph.weights import convolution_of
from onnxsparse.math.values import Array
from onnxsparse.passes.delivery import Check, Delivered, deliver
from onnxsparse.patterns import Pattern
from onnxsparse.patterns import parse as parse_pattern
from onnxsparse.planning import macs
from onnxsparse.planning.layers import counts, layers_of
from onnxsparse.planning.model_inputs import fields_of
from onnxsparse.planning.names import named
from onnxsparse.planning.plan import Plan, PlanRow, does_not_fit, eligible
from onnxsparse.planning.rule import Rule
from onnxsparse.planning.trainable import send_back, trainables
from onnxsparse.rates import factor_at
from onnxsparse.recipes.modifiers.training import BUILT_IN, DISTILLATIONS, TASKS, Objective, Training
from onnxsparse.sparsers.mask_updates import hide, write
from onnxsparse.train.engine_choice import ENGINES, Engines, Means
from onnxsparse.train.fixed_batch import Portion, batch_of, front, portions_of, samples_in
from onnxsparse.train.fixed_batch import evaluate as evaluated
from onnxsparse.train.fixed_batch import step as take_step
from onnxsparse.train.layers import Measured, Network, Promise, Site, dropped
from onnxsparse.train.objective import goal_of
from onnxsparse.train.onnx_trainee import OnnxTrainee

MASK, SAMPLES, KEPT = "mask", "samples", "kept"
LOSSES = (*TASKS, *DISTILLATIONS)
SHORT = {"ce": "cross-entropy", "xent": "cross-entropy", "nll": "cross-entropy", "l2": "mse", "mae": "l1"}
EVALUATED = 32
"""The samples at most of a graph for what is evaluated before the first step."""
FILLED = (
    "a batch that is no multiple of the first one is filled up with its own samples, which count twice: with train_bn "
    "the statistics are those of whole batches; drop the last one of an epoch, or train by engine='torch'"
)
PRUNED = ("stem", "small", "depthwise")
"""Words that hold no weight back here: every convolution and matrix is a layer."""


@dataclass(frozen=True)
class LoopOptions:
    """What is minimised, by which optimizer, in which engine.

    Without a `loss` it is cross-entropy where a batch has whole numbers as labels, mse where it has others, and
    distillation from the dense model without labels. Beside labels nothing is distilled, unless `hardness` says so.
    """

    loss: str | None = None
    hardness: float | None = None
    temperature: float = 2.0
    output: str = ""
    optimizer: str = "relative"
    lr: float | None = None
    weight_decay: float = 0.0
    clip: float = 0.0
    lr_schedule: str = "constant"
    warm_up: float = 0.0
    train_bn: bool = False
    engine: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise OptionError(f"engine is one of {', '.join(ENGINES)}, not {self.engine!r:.40}")
        word = "distill" if self.loss is None else str(self.loss).partition(":")[0]
        if word not in LOSSES:
            meant = SHORT.get(word.lower())
            known = f" (known: {', '.join(LOSSES)})"
            hint = f" (did you mean {meant}?)" if meant else nearest(word.lower(), LOSSES)
            raise OptionError(f"loss does not know {brief(self.loss)}{hint or known}")
        if self.optimizer == BUILT_IN:
            raise OptionError(f"{BUILT_IN} is the optimizer of whole runs; take another one, such as adamw")
        rates.parse(self.lr_schedule)
        _ = self.training
        Objective(loss=self.loss or "distill", hardness=self.hardness if word in TASKS else None)

    @property
    def training(self) -> Training:
        """The same as the frame of a run, but for how long it is."""
        return Training(
            optimizer=self.optimizer,
            rate=self.lr,
            weight_decay=self.weight_decay,
            clip=self.clip,
            warm_up=self.warm_up,
            seed=self.seed,
        )

    def objective(self, labels: Any) -> Objective:
        """What is minimised, where that depends on the labels of the first batch."""
        loss = self.loss
        if loss is None:
            loss = "distill" if labels is None else "mse" if labels.dtype.kind == "f" else "cross-entropy"
        task = loss.partition(":")[0] in TASKS
        if task and labels is None:
            raise OptionError(f"loss {loss} needs labels: step(batch) takes (inputs, labels), or a mapping with labels")
        hardness = (0.0 if self.hardness is None else self.hardness) if task else None
        return Objective(loss=loss, hardness=hardness, temperature=self.temperature, output=self.output)


class SteppedModel(Network):
    """An ONNX model, opened to be trained."""

    def __init__(self, model: Model, options: LoopOptions, source: Source | None = None) -> None:
        self.model, self.options = model, options
        self.source: Source = source or model.path or model.proto
        self.plan = eligible(model, Rule.make("unstructured", allow=PRUNED))
        self.params = trainables(model, self.plan, options.train_bn)
        by_tensor = {one.tensor: tag for tag, one in self.params.items()}
        rows = [row for row in self.plan.planned if counts(row.weight) and row.weight.tensor in by_tensor]
        self._rows = {by_tensor[row.weight.tensor]: row for row in rows}
        self.sites = [site_of(tag, row) for tag, row in self._rows.items()]
        self._weights = {tag: np.array(one.numbers(), np.float32, order="C") for tag, one in self.params.items()}
        self._frozen: dict[str, Array] = {}
        self._used: dict[str, str] = {}
        self._trainee: OnnxTrainee | None = None
        self._memory: tuple[dict[str, Array], dict[str, Any]] = {}, {}
        self._samples: dict[str, Array] = {}  # the first batch: every graph of this network is made with it
        self._before_steps = False  # whether those were only evaluated
        self._engines: Engines | None = None
        self.promise = Promise()
        self.notes: list[str] = []
        self.steps, self.begun, self.length, self.per_epoch = 0, 0, 0, 0
        self.scheduled: Any = None
        self._watcher: Callable[[], bool] | None = None
        self.pruned = 0.0
        self.kept: dict[str, Array] = {}
        self._anchors: dict[str, Array] = {}
        self._strength = np.float32(0)

    @classmethod
    def of(cls, source: Source, options: LoopOptions) -> SteppedModel:
        return cls(Model.open(source), options, source)

    # -- training

    def step(self, batch: Any) -> float:
        """One step of the optimizer: the loss of a batch, by which the weights moved."""
        if self._before_steps:
            self.detach()
            self._samples, self._before_steps = {}, False
        arrays = batch_of(batch, fields_of(self.model), self._samples)
        trainee = self._started(arrays)
        portions = self._portions(arrays, training=True)
        trainee.settings = self.pace
        trainee.settle()
        while True:
            loss = take_step(trainee.engine, portions) if portions else trainee.step(Batch(arrays))
            self.add_pull(trainee.engine)
            if trainee.update():
                break
        self.steps += 1
        if self._watcher is not None and self._watcher():
            self._watcher = None
        return loss

    def evaluate(self, batch: Any) -> tuple[float, dict[str, Array]]:
        """The loss of a batch, and the model's float outputs by name; nothing moves."""
        arrays = batch_of(batch, fields_of(self.model), self._samples)
        self._before_steps = self._before_steps or not self._samples
        engine = self._started(front(arrays, EVALUATED) if self._before_steps else arrays).engine
        portions = self._portions(arrays)
        return evaluated(engine, portions, self._fixed) if portions else engine.evaluate(Batch(arrays))

    def watch(self, stepped: Callable[[], bool]) -> None:
        self._watcher = stepped

    def begin_with(self, batch: Any) -> None:
        """Make graphs with a batch as if it were the first: the scale of a distillation loss depends on that."""
        arrays = batch_of(batch, fields_of(self.model))
        self._samples = {name: np.array(array) for name, array in arrays.items()}

    def _portions(self, arrays: Mapping[str, Array], training: bool = False) -> list[Portion]:
        """How a batch of another size than the graph's is taken; nothing where it is taken as it is."""
        size = self._fixed
        if not size or samples_in(arrays) == size:
            return []
        if training and self.options.train_bn:
            if samples_in(arrays) % size and FILLED not in self.notes:
                self.notes.append(FILLED)
            return []
        objective = self.options.objective(arrays.get(LABELS))
        return portions_of(arrays, size, objective.task == "cross-entropy" and objective.share == 0)

    @property
    def _fixed(self) -> int:
        return 0 if self._engines is None else self._engines.fixed

    @property
    def pace(self) -> Pace:
        """The rate of this step: of a scheduler of torch, or the options' own over the stage it is in."""
        options = self.options
        # Thresholds decay as in a loop of torch, where they are parameters like any other: that is what raises them.
        decays = {key: options.weight_decay for key in self._live_weights if "/" in key}
        if self.scheduled is not None:
            rate = float(self.scheduled.optimizer.param_groups[0]["lr"])
            return Pace(rate, options.weight_decay, options.clip, decays=decays)
        rate, length = options.training.base_rate(self.pruned), max(self.length, 1)
        done = min(max(self.steps - self.begun, 0), length)
        schedule = rates.parse(options.lr_schedule)
        rate *= factor_at(schedule, done, length, self.per_epoch or length, options.warm_up)
        return Pace(rate, options.weight_decay, options.clip, decays=decays)

    def restart(self, length: int) -> None:
        """The rate's schedule begins again, over so many steps."""
        self.begun, self.length = self.steps, length

    # -- its engine

    def make(self, spec: Spec) -> Engine:
        """The engine of a training graph; all are made with the samples of the first batch."""
        engine_of = "" if self._engines is None else self._engines.chosen
        options = self.options  # an optimizer may have been handed over since the last one was made
        means = Means(engine_of or options.engine)
        self._engines = Engines(self.model, self.params, options.training, means, lambda: self._samples)
        engine = self._engines.make(spec)
        told = self._engines.notes if self._engines.chosen == "torch" else ()
        self.notes += [note for note in (*told, *engine.notes) if note not in self.notes]
        return engine

    def spec(self) -> Spec:
        """The training graph as it is wanted now."""
        labels = self._samples.get(LABELS)
        trained = {tag: one.name for tag, one in self.params.items()}
        goal = goal_of(self.options.objective(labels), labels)
        return Spec(max(samples_in(self._samples), 1), trained, dict(self._used), goal, self.options.train_bn)

    def _started(self, arrays: Mapping[str, Array]) -> OnnxTrainee:
        """The trainee; in a user's loop its engine is made when the first batch is there."""
        if self._trainee is None:
            before = self._samples
            self._samples = before or {name: np.array(array) for name, array in arrays.items()}
            trainee = OnnxTrainee(self.make, (), self.per_epoch or 1, 0)
            try:
                trainee.build(self.spec())
            except BaseException:
                self._samples = before  # a batch that no engine takes is not the first
                raise
            self.attach(trainee)
            moments, facts = self._memory
            if facts:
                trainee.engine.restore(moments, facts)
        assert self._trainee is not None
        return self._trainee

    def attach(self, trainee: OnnxTrainee) -> None:
        """Put the numbers that are kept here into a trainee's engine, whose arrays are the live ones from now on."""
        if self._trainee is trainee:
            return
        self._trainee = trainee
        for kept, live in ((self._weights, trainee.weights), (self._frozen, trainee.frozen)):
            for key, array in kept.items():
                if key in live:
                    live[key][...] = array

    def detach(self) -> None:
        """Copy everything out of the engine, and be without one."""
        if self._trainee is None:
            return
        arrays, facts = self._trainee.engine.state()
        kept = {key: np.array(array) for key, array in arrays.items()}
        self._weights.update({key[len("weight/") :]: a for key, a in kept.items() if key.startswith("weight/")})
        self._frozen.update({key[len("frozen/") :]: a for key, a in kept.items() if key.startswith("frozen/")})
        self._memory = {k: a for k, a in kept.items() if k.partition("/")[0] not in ("weight", "frozen")}, facts
        self._trainee = None

    # -- what a checkpoint holds

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Everything that the next step depends on: arrays, which may be live, and facts for JSON."""
        arrays, facts = self._memory if self._trainee is None else self._trainee.engine.state()
        kept = {f"weight/{key}": one for key, one in self._weights.items()}
        kept.update({f"frozen/{key}": one for key, one in self._frozen.items()})
        samples = {} if self._before_steps else self._samples
        kept.update({f"{SAMPLES}/{name}": one for name, one in samples.items()})
        kept.update({f"{KEPT}/{name}": one for name, one in self.kept.items()})
        return {**kept, **arrays}, {"engine": facts, **self.facts()}

    def facts(self) -> dict[str, Any]:
        """What of it the engine does not know, for JSON."""
        return {"used": dict(self._used), "steps": self.steps, "begun": self.begun, "length": self.length}

    def restore(self, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        """Go on from a state, with an engine that is made anew."""
        self._trainee, self._samples, self._before_steps, self.kept = None, {}, False, {}
        self.use(facts["used"])
        memory: dict[str, Array] = {}
        for key, array in arrays.items():
            kind, _, name = key.partition("/")
            kept = {"weight": self._weights, "frozen": self._frozen}.get(kind)
            if kind in (SAMPLES, KEPT):
                (self._samples if kind == SAMPLES else self.kept)[name] = np.array(array)
            elif kept is None:
                memory[key] = np.array(array)
            elif name in kept:
                kept[name] = np.array(array)
        self._memory = memory, dict(facts["engine"])
        self.steps, self.begun, self.length = (int(facts[name]) for name in ("steps", "begun", "length"))

    def arrays_beside(self) -> dict[str, Array]:
        """The arrays of the state that the engine does not have: among them numbers that no gradient comes to."""
        own = {} if self._trainee is None else self._trainee.engine.state()[0]
        return {name: array for name, array in self.state()[0].items() if name not in own}

    def answering(self) -> Engine:
        """What metrics are measured of; `begin_with` came before."""
        return self._started(self._samples).engine

    @property
    def trains(self) -> list[str]:
        """The names of the stored tensors that train."""
        return [one.name for one in self.params.values()]

    def load(self, numbers: Mapping[str, Array]) -> list[str]:
        """Take over numbers by the names of stored tensors; returns the names of those that stayed as they were."""
        left = []
        for tag, one in self.params.items():
            given = numbers.get(one.name)
            if given is None or given.shape != one.tensor.shape:
                left.append(one.name)
            else:
                self._weights[tag] = np.array(given, np.float32, order="C")
        return left

    # -- layers

    @property
    def _live_weights(self) -> Mapping[str, Array]:
        return self._weights if self._trainee is None else self._trainee.weights

    @property
    def _live_frozen(self) -> Mapping[str, Array]:
        return self._frozen if self._trainee is None else self._trainee.frozen

    @property
    def used(self) -> Mapping[str, str]:
        return self._used

    def weight(self, key: str) -> Array:
        live = self._live_weights
        return live[key] if key in live else self._weights[key]  # what no gradient comes to stays as it is kept

    def put(self, key: str, numbers: Array) -> None:
        self.weight(key)[...] = numbers

    def trained(self, key: str) -> dict[str, Array]:
        return _around(self._live_weights, key)

    def frozen(self, key: str) -> dict[str, Array]:
        return _around(self._live_frozen, key)

    def sent(self, key: str, arrays: Mapping[str, Array]) -> None:
        for live in (self._live_weights, self._live_frozen):
            for role, array in arrays.items():
                if f"{key}/{role}" in live:
                    live[f"{key}/{role}"][...] = array

    def use(self, texts: Mapping[str, str]) -> None:
        self.detach()
        self._used = dict(texts)
        own = set(self.params)
        self._weights = {key: array for key, array in self._weights.items() if key in own}
        self._frozen = {}
        for key, text in texts.items():
            sparser, weight = sparsers.parse(text), self._weights[key]
            trained = sparser.trained(weight)
            fed = sparser.feed(weight, trained, np.ones(weight.shape, np.float32), sparsers.Moment(key))
            self._weights.update({f"{key}/{role}": np.array(array) for role, array in trained.items()})
            self._frozen.update({f"{key}/{role}": np.array(array) for role, array in fed.items()})

    def set_masks(self, masks: Mapping[str, Array]) -> None:
        for key, keep in masks.items():
            weight, mask = self.weight(key), self._mask(key)
            hide(weight, mask)
            write(weight, mask, np.ascontiguousarray(keep).reshape(-1))
            if self._trainee is not None:
                self._trainee.clear_moments(key, ~keep)

    def masks(self) -> dict[str, Array]:
        return {site.key: self._mask(site.key) != 0 for site in self.sites if self._used.get(site.key) == MASK}

    def anchor(self, anchors: Mapping[str, Array], strength: float) -> None:
        self._anchors, self._strength = dict(anchors), np.float32(strength)

    def pull(self) -> float:
        squares = sum(float(np.sum(np.square(away, dtype=np.float64))) for _, away in self._away())
        return float(self._strength) / 2 * squares

    def add_pull(self, engine: Engine) -> None:
        """The gradient of that term, beside that of the loss."""
        if self._anchors:
            engine.add_gradients({key: self._strength * away for key, away in self._away()})

    def _away(self) -> Iterator[tuple[str, Array]]:
        """How far each anchored layer is from its anchor."""
        return ((key, self.weight(key) - anchor) for key, anchor in self._anchors.items())

    def _mask(self, key: str) -> Array:
        live = self._live_frozen
        return live[f"{key}/{MASK}"] if f"{key}/{MASK}" in live else self._frozen[f"{key}/{MASK}"]

    def measure(self, shape: Sequence[int] | None, real: Any = None) -> dict[str, Measured]:
        """What the file fixes holds; a shape says the sizes that it leaves open."""
        model, weights = self.model, [row.weight for row in self._rows.values()]
        before = dict(model.sizes)
        model.sizes.clear()
        for field, sizes in zip(fields_of(model), _shapes_of(shape, real, [one.name for one in fields_of(model)])):
            dims = field.shape or ()
            open_axes = [axis for axis, size in enumerate(dims) if size is None and axis < len(sizes)]
            model.sizes.update({f"{field.name}.{axis}": int(sizes[axis]) for axis in open_axes})
        layers = layers_of(model, weights)
        found, _ = macs.of_weights(model, weights)
        model.sizes.clear()
        model.sizes.update(before)
        rows = self._rows.items()
        return {tag: Measured(layers[r.weight].size, found.get(r.weight, 0)) for tag, r in rows}

    # -- results

    def arrays(self) -> dict[str, Array]:
        """The numbers of every stored tensor that trained, by tag, as they would be stored."""
        sites = {site.key for site in self.sites}
        return {tag: self.effective(tag) if tag in sites else self.weight(tag) for tag in self.params}

    def names(self) -> dict[str, str]:
        return {tag: row.name for tag, row in self._rows.items()}

    def with_live_weights(self) -> Model:
        """The model with the numbers as they are in training, those under masks included."""
        with self.model.restored():
            send_back({tag: self.weight(tag) for tag in self.params}, self.params)
            return Model.open(self.model.copy_proto())

    def finish(self) -> ModelProto:
        made = self._delivered(None).proto
        assert made is not None
        return made

    def export(self, path: str, check: Check | None = None) -> str:
        """Write the model, with zeros in its weights and the record of what was promised."""
        self._delivered(path, check)
        return path

    def _delivered(self, path: str | None, check: Check | None = None) -> Delivered:
        arrays, tags = self.arrays(), {name: tag for tag, name in self.names().items()}
        rows = tuple(self._promised(row, tags.get(row.name), arrays) for row in self.plan.rows)
        plan = Plan(rows, Rule.make(target=self.promise.target, sparsity=self.promise.level))
        with self.model.restored():
            return deliver(self.model, plan, arrays, self.params, path, name="(in memory)", check=check)

    def _promised(self, row: PlanRow, tag: str | None, arrays: Mapping[str, Array]) -> PlanRow:
        """A row of the plan with what the zeros of its weight are; of a weight that is no layer it has no word."""
        text = self.promise.patterns.get(tag or "", "")
        if tag is None or not text:
            reason = self.promise.dense.get(tag or "", "")
            known = "" if row.words else row.reason
            return replace(
                row, pattern=None, drop=0, reason=reason or known or "left dense", advice="", words=(),
                chosen=bool(reason),
            )  # fmt: skip
        pattern = parse_pattern(text)
        return replace(row, pattern=pattern, drop=dropped(pattern, row.use.matrix(arrays[tag].reshape(-1) == 0)))

    def save(self, path: str, facts: Mapping[str, Any], suffix: str = "") -> str:
        self.export(f"{path}.onnx")
        write_text(f"{path}.json", json.dumps(facts, indent=2) + "\n", True)
        return f"{path}.onnx"


def _around(live: Mapping[str, Array], key: str) -> dict[str, Array]:
    return {one.partition("/")[2]: array for one, array in live.items() if one.startswith(f"{key}/")}


# -- its layers


def site_of(tag: str, row: PlanRow) -> Site:
    """A weight as a layer; it answers to the names of its tensor and of its nodes."""
    weight, use = row.weight, row.use
    stem = row.name[: -len(".weight")] if row.name.endswith(".weight") else row.name
    names, answers = tuple(dict.fromkeys((stem, row.name, *weight.layers))), named(weight)

    def refuses(pattern: Pattern) -> str:
        reason = does_not_fit(weight, pattern)
        return reason.text if reason else ""

    scopes = [use.op, *(part for name in (*weight.layers, *answers.layers, stem) for part in _scopes(name))]
    return Site(
        tag, stem, names, use.op, weight.shape, use.shape4, use.matrix, use.restore, convolution_of(use), refuses,
        tuple(dict.fromkeys(scopes)), answers,
    )  # fmt: skip


def _scopes(name: str) -> list[str]:
    """All that a name begins with, part by part: /head/fc/Gemm is inside of /head/fc and /head."""
    ends = [at for at, letter in enumerate(name) if letter in "./" and at]
    return [name, *(name[:at] for at in ends), *(name[1:at] for at in ends if name[0] == "/")]


def _shapes_of(shape: Any, real: Any, names: Sequence[str]) -> list[Sequence[int]]:
    """The shape of every input, as far as it is given."""
    if isinstance(real, Mapping):
        return [np.shape(real[name]) if name in real else () for name in names]
    if real is not None:
        each = real if isinstance(real, (list, tuple)) else [real]
        return [np.shape(one) for one in each]
    if isinstance(shape, Mapping):
        return [shape.get(name, ()) for name in names]
    if shape is not None and not all(isinstance(size, int) and size > 0 for size in shape):
        raise OptionError(f"default_input_shape is a list of sizes such as [1, 3, 224, 224], not {shape!r:.60}")
    return [] if shape is None else [tuple(shape)]
