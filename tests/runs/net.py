"""A network of two layers and an engine of numpy alone, with exact gradients, to train runs in no time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from onnx import TensorProto, numpy_helper
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

from onnxsparse import sparsers
from onnxsparse.acts.act import Act
from onnxsparse.data import open_data
from onnxsparse.engines.engine import DivergedError, Engine, Spec
from onnxsparse.graph.model import Model
from onnxsparse.optimizers import Moments
from onnxsparse.optimizers import parse as parse_optimizer
from onnxsparse.options import SparsityOptions
from onnxsparse.planning.model_inputs import fields_of
from onnxsparse.planning.request import planned
from onnxsparse.planning.trainable import trainables
from onnxsparse.recipes import Recipe
from onnxsparse.recipes.modifiers.modifier import Modifier
from onnxsparse.recipes.modifiers.pruning import Pruning
from onnxsparse.recipes.modifiers.training import KeepBest, Objective, Training
from onnxsparse.sparsers import Moment
from onnxsparse.train.batches import Feeding
from onnxsparse.train.loop import Run
from onnxsparse.train.objective import goal_of
from onnxsparse.train.task import Task

SIZES = (8, 16, 12)
SAMPLES = 96


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.Generator(np.random.Philox(key=seed)).standard_normal(shape).astype(np.float32)


def model(sizes=SIZES):
    """x -> MatMul -> Relu -> MatMul -> y"""
    stored = [random(*pair, seed=7 + place) for place, pair in enumerate(zip(sizes, sizes[1:]))]
    nodes = [
        make_node("MatMul", ["x", "first"], ["hidden"], "one"),
        make_node("Relu", ["hidden"], ["bent"], "bend"),
        make_node("MatMul", ["bent", "second"], ["y"], "two"),
    ]
    graph = make_graph(
        nodes,
        "net",
        [make_tensor_value_info("x", TensorProto.FLOAT, ["N", sizes[0]])],
        [make_tensor_value_info("y", TensorProto.FLOAT, ["N", sizes[2]])],
        [numpy_helper.from_array(array, name) for array, name in zip(stored, ("first", "second"))],
    )
    return make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=8)


class NumpyEngine(Engine):
    """The loss is the mean square of what the outputs differ from the dense model's."""

    def __init__(self, spec: Spec, dense: dict[str, np.ndarray], optimizer: str) -> None:
        self.notes, self.unreached = [], {}
        self._dense, self._order = {tag: array.copy() for tag, array in dense.items()}, list(dense)
        self.weights, self.frozen, self._sparsers = {}, {}, {}
        for tag, array in dense.items():
            self.weights[tag] = array.copy()
            if tag in spec.sparsers:
                self._add(tag, sparsers.parse(spec.sparsers[tag]))
        self._moments = Moments(parse_optimizer(optimizer))
        self.calls: list[str] = []
        self.discard_gradients()

    def _add(self, tag, sparser) -> None:
        weight = self.weights[tag]
        self._sparsers[tag] = sparser
        trained = sparser.trained(weight)
        fed = sparser.feed(weight, trained, np.ones(weight.shape, np.float32), Moment(tag))
        self.weights.update({f"{tag}/{role}": array.copy() for role, array in trained.items()})
        self.frozen.update({f"{tag}/{role}": array.copy() for role, array in fed.items()})

    def _around(self, tag):
        trained = {key.partition("/")[2]: one for key, one in self.weights.items() if key.startswith(f"{tag}/")}
        frozen = {key.partition("/")[2]: one for key, one in self.frozen.items() if key.startswith(f"{tag}/")}
        return trained, frozen

    def effective(self, tag):
        if tag not in self._sparsers:
            return self.weights[tag]
        return self._sparsers[tag].effective(self.weights[tag], *self._around(tag))

    def _forward(self, x, first, second):
        hidden = x @ first
        bent = np.maximum(hidden, 0)
        return hidden, bent, bent @ second

    def _loss(self, batch):
        x = batch.arrays["x"]
        first, second = (self.effective(tag) for tag in self._order)
        hidden, bent, y = self._forward(x, first, second)
        return hidden, bent, y, y - self.dense(batch)["y"], second

    def ask_ahead(self, count, batches) -> None:
        self.calls.append("ask_ahead")
        assert sum(len(batch.rows) for batch in batches) >= count

    def step(self, batch) -> float:
        self.calls.append("step")
        x = batch.arrays["x"]
        hidden, bent, _, off, second = self._loss(batch)
        up = off * np.float32(2 / off.size)
        grads = [x.T @ ((up @ second.T) * (hidden > 0)), bent.T @ up]
        for tag, upstream in zip(self._order, grads):
            self._take(tag, upstream.astype(np.float32))
        self._steps += 1
        return float(np.mean(off * off))

    def _take(self, tag, upstream) -> None:
        if tag not in self._sparsers:
            self._gradients[tag] += upstream
            return
        own, extra = self._sparsers[tag].gradient(self.weights[tag], *self._around(tag), upstream)
        self._gradients[tag] += own
        for role, gradient in extra.items():
            self._gradients[f"{tag}/{role}"] += gradient

    def gradients(self):
        return self._gradients

    def scale_gradients(self, factors) -> None:
        for tag, array in factors.items():
            self._gradients[tag] *= array

    def update(self, pace) -> bool:
        for key, gradient in pace.moving(self._gradients).items():
            if not np.isfinite(gradient).all():
                raise DivergedError("a gradient is no number")
            weight, scale = self.weights[key], 1 / max(1, self._steps)
            decay = pace.decays.get(key, pace.decay)
            self._moments.step(key, weight, gradient, pace.rate_of(key), decay, scale)
        self.discard_gradients()
        return True

    def discard_gradients(self) -> None:
        self._gradients = {key: np.zeros(array.shape, np.float32) for key, array in self.weights.items()}
        self._steps = 0

    def evaluate(self, batch):
        _, _, y, off, _ = self._loss(batch)
        return float(np.mean(off * off)), {"y": y}

    def dense(self, batch):
        return {"y": self._forward(batch.arrays["x"], *(self._dense[tag] for tag in self._order))[2]}

    def clear_moments(self, tag, where=None) -> None:
        self._moments.clear(tag, where)

    def state(self):
        arrays = {f"weight/{key}": array for key, array in self.weights.items()}
        arrays.update({f"frozen/{key}": array for key, array in self.frozen.items()})
        arrays.update(self._moments.arrays())
        return arrays, {"counts": dict(self._moments.counts)}

    def restore(self, arrays, facts) -> None:
        for kind, own in (("weight", self.weights), ("frozen", self.frozen)):
            for key, array in own.items():
                if f"{kind}/{key}" in arrays:
                    array[...] = arrays[f"{kind}/{key}"]
        counts = {key: count for key, count in facts["counts"].items() if key in self.weights}
        known = {key for key in arrays if key.partition("/")[0] in self._moments.optimizer.moments}
        self._moments.load({key: arrays[key] for key in known if key.partition("/")[2] in counts}, counts)
        self.discard_gradients()


class Figures:
    """What a test measures of an engine, after every epoch."""

    each_epoch = True

    def __init__(self, measure) -> None:
        self.measure = measure

    def begin(self, engine, spec) -> None:
        """Nothing can be wrong with it."""

    def __call__(self, engine) -> dict[str, float]:
        return self.measure(engine)

    def dense(self, engine) -> dict[str, float]:
        return {}


class Bench:
    """A task on the small network; `engines` are all that were made, the newest last."""

    def __init__(self, *modifiers, masks=None, data=None, sizes=SIZES, steps_per_epoch=None, make=NumpyEngine) -> None:
        self.model = Model.open(model(sizes))
        pruning = next((one for one in modifiers if isinstance(one, Pruning)), Pruning(pattern="2:4"))
        training = next((one for one in modifiers if isinstance(one, Training)), Training(steps=20, batch=8))
        best = [one for one in modifiers if isinstance(one, KeepBest)] or [KeepBest(checks=4, retries=2)]
        spies = [one for one in modifiers if isinstance(one, Spy)]
        self.modifiers = (training, Objective(), pruning, *best, *spies)
        self.plan, _ = planned(self.model, None, masks, _asked(pruning, training))
        self.tags = trainables(self.model, self.plan)
        by_tensor = {one.tensor: tag for tag, one in self.tags.items()}
        self.planned = {by_tensor[row.weight.tensor]: row for row in self.plan.planned}
        self.dense = {tag: one.numbers() for tag, one in self.tags.items()}
        self.data = {"x": random(SAMPLES, sizes[0], seed=3)} if data is None else data
        self.training, self.kind, self.asked = training, make, steps_per_epoch
        self.engines: list[NumpyEngine] = []

    def task(self, modifiers=None, **more) -> Task:
        data = open_data(self.data, fields_of(self.model))
        feeding = Feeding(data, self.training.batch, self.training.seed, self.asked)
        recipe = Recipe(tuple(self.modifiers if modifiers is None else modifiers))
        made = Task(
            self.model, recipe, self.plan, self.tags, data, feeding, goal_of(Objective(), data), digest="digest"
        )
        return replace(made, **more)

    def run(self, folder=None, resume=False, watch=None, measure=None, **more) -> Run:
        evaluation = None if measure is None else Figures(measure)
        return Run(self.task(**more), self, evaluation, folder, resume, watch)

    def make(self, spec: Spec) -> NumpyEngine:
        self.engines.append(self.kind(spec, self.dense, self.training.optimizer))
        return self.engines[-1]


def _asked(pruning: Pruning, training: Training) -> SparsityOptions:
    seed = training.seed if pruning.score == "random" else None
    return SparsityOptions(
        pruning.pattern,
        None,
        pruning.sparsity,
        pruning.allocation,
        pruning.score,
        allow=("small", "stem", "output"),
        seed=seed,
    )


class Spy(Modifier):
    """A modifier of a test: what `look(run, step)` gives at every step, once the masks of the step stand."""

    def __init__(self, look) -> None:
        self.look, self.seen = look, []

    def start(self, run) -> Act:
        spy = self

        class Looking(Act):
            def before_update(self, trainee, step: int) -> None:
                spy.seen.append(spy.look(run, step))

        return Looking()
