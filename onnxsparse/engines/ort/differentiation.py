"""Subprocess that builds and proves a graph of gradients with respect to inner values: the engine may crash on it.

    python -m onnxsparse.engines.ort.worker differentiation FOLDER

leaves `gradients.onnx` in the folder and, last, `manifest.json`; or `error.json` with one line (see `jobs`).

1. The model is prepared as for training, for the sizes of the feeds that it comes with, and rewritten until gradients
   can pass. Where they cannot everywhere the model is refused: a graph that is cut has other gradients.
2. The projection is written behind the targets, with what each element is multiplied with as an input.
3. The engine writes the gradients; those of the inner values become the outputs of an ordinary graph.
4. Weights of recurrent layers have a gradient, too, as the engine dies otherwise; nobody asks for it.
5. The gradients have to agree with finite differences: what is added to the inner values of the graph as it was before
   it was rewritten moves the projection as they say.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto
from onnx.external_data_helper import load_external_data_for_model
from onnx.helper import make_node, make_tensor_value_info

from onnxsparse.engines.light_model import DATA, Place
from onnxsparse.engines.ort import gradients, library, rewrites
from onnxsparse.engines.ort.assemble import once
from onnxsparse.engines.ort.building import MANIFEST
from onnxsparse.engines.ort.draft import Samples
from onnxsparse.engines.ort.gradients import FED, must_train
from onnxsparse.engines.ort.jobs import MODEL, Job, carry_out
from onnxsparse.engines.ort.library import LOAD, Runner, told
from onnxsparse.engines.ort.prepare import inputs_of, prepare
from onnxsparse.engines.ort.rewrites.rewrite import View
from onnxsparse.engines.ort.shapes import infer_shapes
from onnxsparse.engines.random_projection import IN_STEPS, UNUSED
from onnxsparse.errors import ModelError
from onnxsparse.graph.edit import (
    CONTROL_FLOW,
    RANDOM,
    FreshNames,
    Writer,
    called,
    containers,
    copied,
    keep,
    reduce_to,
    upstream,
)
from onnxsparse.math.values import Array

GRADIENTS = "gradients.onnx"
FLOAT = 1
RECURRENT = ("LSTM", "GRU", "RNN")
Feed = Mapping[str, Array]


class Differentiation(Job):
    """One graph of gradients, step by step. The samples hold feeds of one shape one after the other, and what the
    targets are multiplied with for the first of them."""

    def run(self) -> None:
        names, factors = self.job["values"], self.job["factors"]
        samples = self.samples()
        given = {target: samples.pop(key) for target, key in factors.items()}
        self.stage("preparing the graph")
        plain, feed = self._prepared(samples, [*given, *names])
        reduce_to(plain, list(given))
        names, unreached = _used(plain, names)
        model = copied(plain)
        self.stage("rewriting operators")
        anchors = must_train(model)
        _rewrite(model, {*names, *anchors})
        loss, fed = _project(model, given)
        reached = _reached(model, names, anchors)
        unreached.update({name: IN_STEPS for name in names if name not in reached})
        made = {}
        if reached:
            self.stage("building the gradients")
            made = self._differentiated(model, loss, reached, anchors)
            self.stage("taking the first gradients")
            feed = {name: feed[name] for name in feed if name in {value.name for value in model.graph.input}}
            found = self._first(made, loss, {**feed, **{fed[target]: array for target, array in given.items()}})
            self.stage("holding the gradients against finite differences")
            demand_agreement(plain, feed, given, found)
        apart = {*fed.values(), *self.job["places"]}
        inputs = [(name, kind.name, list(shape)) for name, kind, shape in inputs_of(model) if name not in apart]
        known = {"inputs": inputs, "factors": fed, "gradients": made, "projection": loss, "unreached": unreached}
        self.write(MANIFEST, known)

    def _prepared(self, samples: Mapping[str, Array], values: Sequence[str]) -> tuple[ModelProto, dict[str, Array]]:
        """The model in a form that runs everywhere, with its values by their names, and its first feed."""
        model = onnx.load(self.at(MODEL), load_external_data=False)
        samples = {**samples, **self._feed_stored(model)}
        feed = Samples(model.graph, samples).one(0)
        prepared = prepare(model, set(), samples, 1, values)
        kinds = {name: kind for name, kind, _ in prepared.inputs}
        feed = {name: np.ascontiguousarray(feed[name], kinds[name]).reshape(feed[name].shape) for name in kinds}
        return prepared.model, feed

    def _feed_stored(self, model: ModelProto) -> dict[str, Array]:
        """Large stored tensors become inputs of a model; returns what is fed to them."""
        nodes = (node for container in containers(model) for node in container.node)
        if any(node.op_type in RECURRENT for node in nodes):  # the engine wants their weights stored
            load_external_data_for_model(model, self.folder)
            return {}
        stored = {name: Place(**place) for name, place in self.job["places"].items()}
        keep(model.graph.initializer, [one for one in model.graph.initializer if one.name not in stored])
        known = {value.name for value in model.graph.input}
        added = (make_tensor_value_info(name, FLOAT, one.dims) for name, one in stored.items() if name not in known)
        model.graph.input.extend(added)
        return {name: one.array(self.at(DATA)) for name, one in stored.items()}

    def _store(self, graph: GraphProto) -> None:
        """What became inputs is stored again."""
        places = {name: Place(**place) for name, place in self.job["places"].items()}
        graph.initializer.extend(places[one.name].reference(one.name) for one in graph.input if one.name in places)
        keep(graph.input, [one for one in graph.input if one.name not in places])

    def _differentiated(self, model: ModelProto, loss: str, names: Sequence[str], anchors: set[str]) -> dict[str, str]:
        """Write the graph whose outputs are the gradients; returns their names."""
        library.demand()
        state = importlib.import_module("onnxruntime.capi._pybind_state")
        moving = {*names, *(anchors & View.of(model, {*names, *anchors}).gradients)}
        blob = model.SerializeToString()
        if moving != set(names):  # it has gradients of recurrent layers only in a form that it brings them into itself
            blob = state.get_optimized_model(_showing(model, names).SerializeToString(), moving, library.options())
        builder = state.GradientGraphBuilder(blob, {loss}, moving, loss)
        builder.build()
        graph = onnx.load_from_string(builder.get_model())
        made = {name: f"{name}_grad" for name in names}
        lost = set(made.values()) - {name for node in graph.graph.node for name in node.output}
        if lost:
            raise ModelError(f"the engine writes no gradient '{min(lost)}'; try --engine torch")
        reduce_to(graph, [*made.values(), loss])
        self._store(graph.graph)
        with open(self.at(GRADIENTS), "wb") as file:
            file.write(graph.SerializeToString())
        return made

    def _first(self, made: Mapping[str, str], loss: str, feed: Feed) -> dict[str, Array]:
        found, _ = GradientSession(self.at(GRADIENTS), made, loss)(feed)
        bad = next((name for name, array in found.items() if array.size and not np.isfinite(array).any()), None)
        if bad is not None:
            raise ModelError(f"the engine's gradient of '{bad}' is no number; try --engine torch")
        return found


class GradientSession:
    """A graph of gradients, loaded; `names` are the inner values and the names of their gradients, `loss` is the
    projection."""

    def __init__(self, path: str, names: Mapping[str, str], loss: str) -> None:
        runtime = importlib.import_module("onnxruntime")
        self._names, self._loss = dict(names), loss
        options = library.options()
        options.add_session_config_entry("session.disable_prepacking", "1")  # the numbers stay in the file, once
        with told("load the graph of gradients", LOAD), library.quiet():
            self._session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self._inputs = [entry.name for entry in self._session.get_inputs()]

    def __call__(self, feed: Feed) -> tuple[dict[str, Array], float]:
        given = {name: feed[name] for name in self._inputs}
        *found, value = self._session.run([*self._names.values(), self._loss], given)
        return dict(zip(self._names, found)), float(value)


def _used(model: ModelProto, names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    used = upstream(model.graph, [value.name for value in model.graph.output])
    return [name for name in names if name in used], {name: UNUSED for name in names if name not in used}


def _rewrite(model: ModelProto, moving: set[str]) -> None:
    """Rewrite what the engine cannot differentiate; what is left of it is an error."""
    odd = [node for node in model.graph.node if node.op_type in {*FED, *RANDOM, *CONTROL_FLOW}]
    if odd:
        raise ModelError(f"the engine cannot differentiate a graph with {called(odd[0])}; try --engine torch")
    rewrites.apply(model, moving)
    blocked = gradients.blocked(model, moving)
    if blocked:
        node, reason = blocked[0]
        raise ModelError(f"no gradient gets past {called(node)}: {reason}; try --engine torch")


def _project(model: ModelProto, factors: Feed) -> tuple[str, dict[str, str]]:
    """Write the projection, the one output afterwards; returns its name, and the inputs of the factors by target."""
    opset = max(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    writer = Writer(model.graph, opset)
    fed = {target: writer.input("factors", "float32", array.shape) for target, array in factors.items()}
    parts = [writer.node("ReduceSum", writer.node("Mul", target, name), keepdims=0) for target, name in fed.items()]
    total = parts[0]
    for part in parts[1:]:
        total = writer.node("Add", total, part)
    keep(model.graph.node, [*model.graph.node, *writer.nodes])
    keep(model.graph.output, [make_tensor_value_info(total, FLOAT, [])])
    if all(entry.domain != "com.microsoft" for entry in model.opset_import):
        model.opset_import.add(domain="com.microsoft", version=1)
    model.ir_version = min(max(model.ir_version, 8), library.LAST_IR)
    return total, fed


def _reached(model: ModelProto, names: Sequence[str], anchors: set[str]) -> list[str]:
    """The inner values that a gradient comes to; nodes that read one of them twice are changed for the engine."""
    infer_shapes(model)
    moving = View.of(model, {*names, *anchors}).gradients
    reached = [name for name in names if name in moving]
    opset = max(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    keep(model.graph.node, once(list(model.graph.node), {*reached, *anchors}, Writer(model.graph, opset)))
    infer_shapes(model)
    return reached


def _showing(model: ModelProto, names: Sequence[str]) -> ModelProto:
    """A copy with inner values as outputs: so they are not optimized away."""
    copy, known = copied(model), {value.name: value for value in model.graph.value_info}
    copy.graph.output.extend(known[name] for name in names)
    return copy


# -- Finite differences: the projection, with something added to the inner values, in the graph before it is rewritten.
#
# 1. Each value moves along its own gradient, by a share of its own size; central differences, with several step sizes,
#    because kinks and rounding make single ones look wrong.
# 2. Values are taken together in a few groups; in more where that costs little.

STEPS = (3e-3, 3e-4, 3e-2, 3e-5)
AGREES, FAINT = 0.1, 1e-6
"""How exact a slope has to be, and how exact the projection is."""
GROUPS, CHEAP = 8, 1 << 22
"""Groups at most, and elements of all values together up to which there are so many."""


def demand_agreement(model: ModelProto, feed: Feed, factors: Feed, found: Feed) -> None:
    """An error where the projection does not move as the gradients say."""
    made = {name for node in model.graph.node for name in node.output}
    alive = [name for name, array in found.items() if name in made and array.any()]
    if not alive:
        return
    elements = sum(found[name].size for name in alive)
    groups = int(np.clip(GROUPS * CHEAP // max(elements, 1), 1, GROUPS))
    values = Runner(model, alive)(feed)
    lengths = {name: _norm(found[name]) for name in alive}
    sizes = {name: max(_norm(values[name]), 1e-3 * np.sqrt(values[name].size)) for name in alive}
    del values
    probed, probes = _with_probes(model, {name: found[name].shape for name in alive})
    ways = {name: (found[name], sizes[name] / lengths[name]) for name in alive}
    check = _Slopes(Runner(probed, list(factors)), feed, factors, probes, ways)
    for group in (alive[start::groups] for start in range(min(groups, len(alive)))):
        if not check.agree(group, sum(lengths[name] * sizes[name] for name in group)):
            raise ModelError(f"the engine's gradients of {_listed(group)} are wrong; try --engine torch")


def _listed(names: Sequence[str]) -> str:
    more = f" or of {len(names) - 1} others" if len(names) > 1 else ""
    return f"'{names[0]}'{more}"


def _norm(array: Array) -> float:
    return float(np.linalg.norm(array.astype(np.float64)))


def _with_probes(model: ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> tuple[ModelProto, dict[str, str]]:
    """A copy with an input that is added to each of these values; and the names of these inputs."""
    copy = copied(model)
    fresh, probes, nodes = FreshNames.of(copy.graph), dict[str, str](), list[NodeProto]()
    for node in copy.graph.node:
        nodes.append(node)
        for place, name in enumerate(node.output):
            if name in shapes:
                node.output[place], probes[name] = fresh(f"{name}_before"), fresh(f"{name}_probe")
                nodes.append(make_node("Add", [node.output[place], probes[name]], [name]))
                copy.graph.input.append(make_tensor_value_info(probes[name], FLOAT, list(shapes[name])))
    keep(copy.graph.node, nodes)
    return copy, probes


Way = tuple[Array, float]
"""A gradient, and by how much it is as long as its value."""


class _Slopes:
    """How the projection moves with the inner values."""

    def __init__(
        self, runner: Runner, feed: Feed, factors: Feed, probes: Mapping[str, str], ways: Mapping[str, Way]
    ) -> None:
        self._run, self._feed, self._factors, self._probes, self._ways = runner, feed, factors, probes, ways
        self._still = {probes[name]: np.zeros_like(gradient) for name, (gradient, _) in ways.items()}
        targets = runner({**feed, **self._still})
        self._noise = FAINT * float(np.linalg.norm([_norm(factors[name] * targets[name]) for name in factors]))

    def agree(self, names: Sequence[str], promised: float) -> bool:
        """Whether some step shows the slope that was promised; true where it would drown in rounding."""
        steps = [step for step in STEPS if promised * step > self._noise / AGREES]
        return not steps or any(abs(self._slope(names, step) - promised) <= AGREES * promised for step in steps)

    def _slope(self, names: Sequence[str], step: float) -> float:
        up, down = (self._run(self._moved(names, way)) for way in (step, -step))
        parts = (
            (factor.astype(np.float64) * (up[name].astype(np.float64) - down[name])).sum()
            for name, factor in self._factors.items()
        )
        return float(sum(parts)) / (2 * step)

    def _moved(self, names: Sequence[str], step: float) -> dict[str, Array]:
        ways = {name: self._ways[name] for name in names}
        moved = {self._probes[name]: gradient * np.float32(step * size) for name, (gradient, size) in ways.items()}
        return {**self._feed, **self._still, **moved}


def main(folder: str) -> int:
    # where torch is installed, too, this onnxruntime imports it as it starts, which takes ten times as long as the rest
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    return carry_out(Differentiation(folder))
