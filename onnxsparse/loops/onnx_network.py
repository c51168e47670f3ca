"""An ONNX model in a user's own loop: `step(batch)` trains it in onnxruntime-training or in torch.

1. The engine is made with the first batch of a step, by which it knows the labels and the size of a batch. Until then,
   and while the graph changes, the numbers rest here. What is evaluated before has an engine for itself.
2. Later batches may have any size: loss, gradient and outputs are those of their samples (see `portions`).
3. What the loop sees are live arrays; the file is opened again for every export, and only numbers go into it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto

from onnxsparse import rates, sparsers
from onnxsparse.engines.engine import Batch, Engine, Pace
from onnxsparse.graph.model import Model, Source
from onnxsparse.loops.batches import batch_of
from onnxsparse.loops.making import LABELS, Making
from onnxsparse.loops.network import Measured, Network
from onnxsparse.loops.onnx_layers import shapes_of, site_of
from onnxsparse.loops.options import LoopOptions
from onnxsparse.loops.portions import Portion, front, portions_of, samples_in
from onnxsparse.loops.portions import evaluate as evaluated
from onnxsparse.loops.portions import step as take_step
from onnxsparse.loops.stored import Promise, delivered
from onnxsparse.math.values import Array
from onnxsparse.passes import macs
from onnxsparse.passes.fields import fields_of
from onnxsparse.passes.layers import counts, layers_of
from onnxsparse.passes.plan import make_plan
from onnxsparse.passes.rule import Rule
from onnxsparse.passes.trainable import send_back, trainables
from onnxsparse.rates import factor_at
from onnxsparse.sparsers.mask_updates import hide, write

MASK = "mask"
SAMPLES, KEPT = "samples", "kept"
EVALUATED = 32
"""The samples at most of a graph for what is evaluated before the first step."""
FILLED = (
    "a batch that is no multiple of the first one is filled up with its own samples, which count twice: with train_bn "
    "the statistics are those of whole batches; drop the last one of an epoch, or train by engine='torch'"
)
PRUNED = ("stem", "small", "depthwise")
"""Words that hold no weight back here: every convolution and matrix is a layer."""


class OnnxNetwork(Network):
    """An ONNX model, opened to be trained."""

    def __init__(self, source: Source, options: LoopOptions) -> None:
        self.source, self.options = source, options
        self._model = Model.open(source)
        plan = make_plan(self._model, Rule.make("unstructured", sparsity=0.0, allow=PRUNED))
        self._tags = trainables(self._model, plan, options.train_bn)
        by_tensor = {one.tensor: tag for tag, one in self._tags.items()}
        rows = [row for row in plan.planned if counts(row.weight) and row.weight.tensor in by_tensor]
        self._rows = {by_tensor[row.weight.tensor]: row for row in rows}
        self.sites = [site_of(tag, row) for tag, row in self._rows.items()]
        self._weights = {tag: np.array(one.numbers(), np.float32, order="C") for tag, one in self._tags.items()}
        self._frozen: dict[str, Array] = {}
        self._used: dict[str, str] = {}
        self._engine: Engine | None = None
        self._memory: tuple[dict[str, Array], dict[str, Any]] = {}, {}
        self._samples: dict[str, Array] = {}  # the first batch: every graph of this network is made with it
        self._before_steps = False  # whether those were only evaluated
        self._make = Making(self._model, self._tags)
        self.promise = Promise()
        self.notes: list[str] = []
        self.steps, self.begun, self.length, self.per_epoch = 0, 0, 0, 0
        self.scheduled: Any = None
        self._watcher: Callable[[], bool] | None = None
        self.pruned = 0.0
        self.kept: dict[str, Array] = {}
        self._anchors: dict[str, Array] = {}
        self._strength = np.float32(0)

    # -- training

    def step(self, batch: Any) -> float:
        """One step of the optimizer: the loss of a batch, by which the weights moved."""
        if self._before_steps:
            self._rest()
            self._samples, self._before_steps = {}, False
        arrays = batch_of(batch, fields_of(self._model), self._samples)
        engine = self._started(arrays)
        portions = self._portions(arrays, training=True)
        engine.agree()
        while True:
            loss = take_step(engine, portions) if portions else engine.step(Batch(arrays))
            if self._anchors:
                engine.add_gradients({key: self._strength * away for key, away in self._away()})
            if engine.update(self.pace):
                break
        self.steps += 1
        if self._watcher is not None and self._watcher():
            self._watcher = None
        return loss

    def evaluate(self, batch: Any) -> tuple[float, dict[str, Array]]:
        """The loss of a batch, and the model's float outputs by name; nothing moves."""
        arrays = batch_of(batch, fields_of(self._model), self._samples)
        self._before_steps = self._before_steps or not self._samples
        engine = self._started(front(arrays, EVALUATED) if self._before_steps else arrays)
        portions = self._portions(arrays)
        return evaluated(engine, portions, self._make.fixed) if portions else engine.evaluate(Batch(arrays))

    def watch(self, stepped: Callable[[], bool]) -> None:
        self._watcher = stepped

    def begin_with(self, batch: Any) -> None:
        """Have graphs made with a batch as if it were the first: what a loss is measured by depends on that."""
        arrays = batch_of(batch, fields_of(self._model))
        self._samples = {name: np.array(array) for name, array in arrays.items()}

    def _portions(self, arrays: Mapping[str, Array], training: bool = False) -> list[Portion]:
        """How a batch of another size than the graph's is taken; nothing where it is taken as it is."""
        size = self._make.fixed
        if not size or samples_in(arrays) == size:
            return []
        if training and self.options.train_bn:
            if samples_in(arrays) % size and FILLED not in self.notes:
                self.notes.append(FILLED)
            return []
        objective = self.options.objective(arrays.get(LABELS))
        return portions_of(arrays, size, objective.task == "cross-entropy" and objective.share == 0)

    @property
    def pace(self) -> Pace:
        """The rate of this step: of a scheduler of torch, or the options' own over the stage it is in."""
        options = self.options
        # Thresholds decay as in a loop of torch, where they are parameters like any other: that is what raises them.
        decays = {key: options.weight_decay for key in self._live_weights if "/" in key}
        if self.scheduled is not None:
            rate = float(self.scheduled.optimizer.param_groups[0]["lr"])
            return Pace(rate, options.weight_decay, options.clip, decays=decays)
        rate, length = options.rate(self.pruned), max(self.length, 1)
        done = min(max(self.steps - self.begun, 0), length)
        schedule = rates.parse(options.lr_schedule)
        rate *= factor_at(schedule, done, length, self.per_epoch or length, options.warm_up)
        return Pace(rate, options.weight_decay, options.clip, decays=decays)

    def restart(self, length: int) -> None:
        """The rate's schedule begins again, over so many steps."""
        self.begun, self.length = self.steps, length

    def _started(self, arrays: Mapping[str, Array]) -> Engine:
        if self._engine is None:
            samples = self._samples or {name: np.array(array) for name, array in arrays.items()}
            self._engine = self._make(self.options, self._used, samples)
            self._samples = samples  # a batch that no engine takes is not the first
            for kept, live in ((self._weights, self._engine.weights), (self._frozen, self._engine.frozen)):
                for key, array in kept.items():
                    if key in live:
                        live[key][...] = array
            moments, facts = self._memory
            if facts:
                self._engine.restore(moments, facts)
            self.notes += [note for note in (*self._make.notes, *self._engine.notes) if note not in self.notes]
        return self._engine

    def _rest(self) -> None:
        """Take everything out of the engine, and be without one."""
        if self._engine is None:
            return
        arrays, facts = self._engine.state()
        kept = {key: np.array(array) for key, array in arrays.items()}
        self._weights.update({key[len("weight/") :]: a for key, a in kept.items() if key.startswith("weight/")})
        self._frozen.update({key[len("frozen/") :]: a for key, a in kept.items() if key.startswith("frozen/")})
        self._memory = {k: a for k, a in kept.items() if k.partition("/")[0] not in ("weight", "frozen")}, facts
        self._engine = None

    # -- what a checkpoint holds

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Everything that the next step depends on: arrays, which may be live, and facts for JSON."""
        arrays, facts = self._memory if self._engine is None else self._engine.state()
        kept = {f"weight/{key}": one for key, one in self._weights.items()}
        kept.update({f"frozen/{key}": one for key, one in self._frozen.items()})
        samples = {} if self._before_steps else self._samples
        kept.update({f"{SAMPLES}/{name}": one for name, one in samples.items()})
        kept.update({f"{KEPT}/{name}": one for name, one in self.kept.items()})
        place = {"steps": self.steps, "begun": self.begun, "length": self.length}
        return {**kept, **arrays}, {"engine": facts, "used": dict(self._used), **place}

    def restore(self, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        """Go on from a state, with an engine that is made anew."""
        self._engine, self._samples, self._before_steps, self.kept = None, {}, False, {}
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

    @property
    def trains(self) -> list[str]:
        """The names of the stored tensors that train."""
        return [one.name for one in self._tags.values()]

    def load(self, numbers: Mapping[str, Array]) -> list[str]:
        """Take over numbers by the names of stored tensors; returns the names of those that stayed as they were."""
        left = []
        for tag, one in self._tags.items():
            given = numbers.get(one.name)
            if given is None or given.shape != one.tensor.shape:
                left.append(one.name)
            else:
                self._weights[tag] = np.array(given, np.float32, order="C")
        return left

    # -- layers

    @property
    def _live_weights(self) -> Mapping[str, Array]:
        return self._weights if self._engine is None else self._engine.weights

    @property
    def _live_frozen(self) -> Mapping[str, Array]:
        return self._frozen if self._engine is None else self._engine.frozen

    @property
    def used(self) -> Mapping[str, str]:
        return self._used

    def weight(self, key: str) -> Array:
        live = self._live_weights
        return live[key] if key in live else self._weights[key]  # what no gradient comes to stays as it rests

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
        self._rest()
        self._used = dict(texts)
        own = set(self._tags)
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
            if self._engine is not None:
                self._engine.clear_moments(key, ~keep)

    def masks(self) -> dict[str, Array]:
        return {site.key: self._mask(site.key) != 0 for site in self.sites if self._used.get(site.key) == MASK}

    def anchor(self, anchors: Mapping[str, Array], strength: float) -> None:
        self._anchors, self._strength = dict(anchors), np.float32(strength)

    def pull(self) -> float:
        squares = sum(float(np.sum(np.square(away, dtype=np.float64))) for _, away in self._away())
        return float(self._strength) / 2 * squares

    def _away(self) -> Iterator[tuple[str, Array]]:
        """How far each anchored layer is from its anchor."""
        return ((key, self.weight(key) - anchor) for key, anchor in self._anchors.items())

    def _mask(self, key: str) -> Array:
        live = self._live_frozen
        return live[f"{key}/{MASK}"] if f"{key}/{MASK}" in live else self._frozen[f"{key}/{MASK}"]

    def measure(self, shape: Sequence[int] | None, real: Any = None) -> dict[str, Measured]:
        """What the file fixes holds; a shape says the sizes that it leaves open."""
        model, weights = self._model, [row.weight for row in self._rows.values()]
        model.sizes.clear()
        for field, sizes in zip(fields_of(model), shapes_of(shape, real, [one.name for one in fields_of(model)])):
            dims = field.shape or ()
            open_axes = [axis for axis, size in enumerate(dims) if size is None and axis < len(sizes)]
            model.sizes.update({f"{field.name}.{axis}": int(sizes[axis]) for axis in open_axes})
        layers = layers_of(model, weights)
        found, _ = macs.of_weights(model, weights)
        rows = self._rows.items()
        return {tag: Measured(layers[id(r.weight)].size, found.get(id(r.weight), 0)) for tag, r in rows}

    # -- results

    def arrays(self) -> dict[str, Array]:
        """The numbers of every stored tensor that trained, by tag, as they would be stored."""
        sites = {site.key for site in self.sites}
        return {tag: self.effective(tag) if tag in sites else self.weight(tag) for tag in self._tags}

    def names(self) -> dict[str, str]:
        return {tag: row.name for tag, row in self._rows.items()}

    def with_live_weights(self) -> Model:
        """The model with the numbers as they are in training, those under masks included."""
        model = Model.open(self.source)
        plan = make_plan(model, Rule.make("unstructured", sparsity=0.0, allow=PRUNED))
        tags = trainables(model, plan, self.options.train_bn)
        send_back({tag: self.weight(tag) for tag in tags}, tags)
        return Model.open(model.take_proto())

    def finish(self) -> ModelProto:
        made = delivered(self.source, self.arrays(), self.names(), self.promise, None, self.options.train_bn)
        assert made is not None
        return made

    def export(self, path: str) -> str:
        """Write the model, with zeros in its weights and the record of what was promised."""
        delivered(self.source, self.arrays(), self.names(), self.promise, path, self.options.train_bn)
        return path

    def save(self, path: str, facts: Mapping[str, Any]) -> str:
        from onnxsparse.loops.stored import write_facts

        self.export(f"{path}.onnx")
        write_facts(f"{path}.json", facts)
        return f"{path}.onnx"


def _around(live: Mapping[str, Array], key: str) -> dict[str, Array]:
    return {one.partition("/")[2]: array for one, array in live.items() if one.startswith(f"{key}/")}


__all__ = ["OnnxNetwork"]
