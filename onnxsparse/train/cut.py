"""The part of a model that trains: cut where its end cannot, with proposals for its second stage, and copies as one.

1. The part is a model of its own, made of the same numbers: the nodes up to where the model is cut. What is trained
   there goes back into the whole file by the tags of its tensors, which are those of the whole model.
2. What lies behind a choice (NonMaxSuppression, TopK) is given to it as the dense model chooses: an input more, filled
   for each batch by running the dense model, one sample at a time.
3. How many proposals there are may differ from sample to sample: all samples get as many, the first ones, or their own
   ones again.
4. Weights that are copies of one are that one in the part, times the factors of their outputs: their gradients add up.
What it does not do: find where to cut (`graph.cut_points`), or change the whole model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, numpy_helper
from onnx.helper import make_node, make_tensor_value_info, np_dtype_to_tensor_dtype

from onnxsparse.data import Data, Samples
from onnxsparse.engines.inference import Session
from onnxsparse.errors import ModelError
from onnxsparse.graph.attributes import IdentityKey
from onnxsparse.graph.cut_points import CHOOSING, CutPoints, CutSearch
from onnxsparse.graph.edit import FreshNames, called, copied, extracted, insert_nodes, reduce_to, rename_reads
from onnxsparse.graph.model import Model
from onnxsparse.graph.stores import keys
from onnxsparse.graph.weights import Weight
from onnxsparse.math.values import Array
from onnxsparse.options import Names
from onnxsparse.planning.plan import Plan, ties_of
from onnxsparse.planning.stored_params import StoredParam
from onnxsparse.planning.ties import Tie

AUTO = "auto"
LOOKED_AT, MOST = 16, 128
"""Samples that say how many proposals there are, and how many of them at most are trained with where that varies."""
SHOWN = 8
BEHIND = "it lies behind where --until cuts"
GIVEN = "_given"

Arrays = Mapping[str, Array]
Given = tuple[str, "np.dtype[Any]", tuple[int, ...]]
"""The name of an input, its type, and its sizes for one sample."""


@dataclass(frozen=True, eq=False)
class Part:
    """What of a model trains: `model` up to `points`, or whole, with the whole model's tags. `inputs` are those of its
    second stage, by the value that they stand for. `ties` are those of weights that are another one in it."""

    model: Model
    tags: Mapping[str, StoredParam]
    points: CutPoints | None
    ties: Mapping[Weight, Tie]
    held: frozenset[str]
    """The tags of all stored tensors that are in it, whether they train or not."""
    inputs: Mapping[str, Given] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def of(self, whole: ModelProto) -> ModelProto:
        """The same part of a copy of the whole model, which may have other numbers; the copy is changed."""
        return _part(whole, self.points, self.inputs, self.ties)

    def spread(self, arrays: Arrays) -> dict[str, Array]:
        """Trained numbers by tag, with those of copies."""
        led = [(copy, tie) for copy, tie in self.ties.items() if tie.leader.tag in arrays]
        return {**arrays, **{copy.tag: tie.numbers(arrays[tie.leader.tag]) for copy, tie in led}}


def search_in(model: Model, tags: Mapping[str, StoredParam]) -> CutSearch:
    """Where a model can be cut; `tags` are what trains in it."""
    return CutSearch(model.proto, model.flow.stores.homes, [one.tensor for one in tags.values()])


def part_of(model: Model, tags: Mapping[str, StoredParam], until: Names | None, data: Data, plan: Plan) -> Part | None:
    """The part of a model that trains; None where it is the whole model, weight by weight."""
    points = None if until is None else _points(model, tags, until)
    ties, notes = _ties(model, tags, plan)
    if points is None and not ties:
        return None
    whole, inputs = model.copy_proto(), dict[str, Given]()
    if points is not None and points.given:
        dense = _Dense(extracted(whole, points.given), points.given)
        inputs = dense.inputs_for(data, whole.graph)
        _complete(data, dense, inputs)
    part = Model.over(_part(whole, points, inputs, ties))
    by_key, own = {key: tensor for tensor, key in keys(part.flow.stores).items()}, keys(model.flow.stores)
    kept = {tag: replace(one, tensor=by_key[own[one.tensor]]) for tag, one in tags.items() if own[one.tensor] in by_key}
    homes = model.flow.stores.homes
    held = frozenset(homes[tensor].tag for tensor, key in own.items() if key in by_key)
    notes += [] if points is None else _said(points, until)
    return Part(part, kept, points, ties, held, inputs, tuple(notes))


def _points(model: Model, tags: Mapping[str, StoredParam], until: Names) -> CutPoints | None:
    """Where to cut; None where `auto` finds nothing behind the last weights."""
    search = search_in(model, tags)
    names = _names(until)
    if names != [AUTO]:
        return search.named(names)
    points = search.auto()
    if not points.heads:
        raise ModelError("--until auto finds no value that weights and inputs have a say in; name one in place of auto")
    return None if set(points.heads) == {value.name for value in model.proto.graph.output} else points


def _names(until: Names) -> list[str]:
    return [name.strip() for text in ([until] if isinstance(until, str) else until) for name in text.split(",")]


def _ties(model: Model, tags: Mapping[str, StoredParam], plan: Plan) -> tuple[dict[Weight, Tie], list[str]]:
    """The ties of weights that can be one in training, and what is said of the others."""
    homes, trained = model.flow.stores.homes, {one.tensor for one in tags.values()}
    here, found = IdentityKey(model.proto.graph), ties_of(plan)
    kept = {
        copy: tie
        for copy, tie in found.items()
        if {copy.tensor, tie.leader.tensor} <= trained
        and all(IdentityKey(homes[one.tensor].container) == here and one.tensor.name for one in (copy, tie.leader))
    }
    apart = [copy.name for copy in found if copy not in kept]
    notes = [f"{len(kept)} copies train as the weights that they are copies of"] if kept else []
    said = f"{len(apart)} copies train apart, under the same first masks: they are not in the main graph"
    return kept, [*notes, *([f"{said} ({_listed(apart)})"] if apart else [])]


def said_of_cuts(model: Model, tags: Mapping[str, StoredParam], until: Names | None, part: Part | None) -> list[str]:
    """Where the model was cut, or that it might be: choices are no good to learn from."""
    notes = [] if part is None else [*part.notes]
    if part is not None and part.points is not None:
        return notes
    if until is not None:
        return [*notes, "--until auto cuts nothing: the outputs of the model are the last values that weights make"]
    if not any(node.op_type in CHOOSING for node in model.proto.graph.node):
        return notes
    chooses = search_in(model, tags).chooses
    said = "has no gradient, and its choices differ from model to model: --until auto trains before it"
    return notes if chooses is None else [*notes, f"{called(chooses)} {said}"]


def _said(points: CutPoints, until: Names | None) -> list[str]:
    chosen = "before post-processing, at" if until is not None and _names(until) == [AUTO] else "at"
    said = [f"trained and measured {chosen} {_listed(points.heads)}; the file that is delivered is the whole one"]
    if points.given:
        said.append(
            f"{_listed(points.given)} {'is' if len(points.given) == 1 else 'are'} given to what lies behind, as the "
            "dense model chooses: no gradient passes there, and the samples train one at a time"
        )
    return said


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(f"'{name}'" for name in names[:SHOWN]) + more


def _part(
    whole: ModelProto, points: CutPoints | None, inputs: Mapping[str, Given], ties: Mapping[Weight, Tie]
) -> ModelProto:
    """The part in place of the whole."""
    if ties:
        _share(whole.graph, ties)
    if points is None:
        reduce_to(whole, [value.name for value in whole.graph.output])
        return whole
    return _cut(whole, points, inputs)


def _share(graph: GraphProto, ties: Mapping[Weight, Tie]) -> None:
    """Whoever read a copy reads what it is a copy of, times its factors."""
    fresh, names, makers = FreshNames.of(graph), dict[str, str](), list[tuple[str, NodeProto]]()
    for copy, tie in ties.items():
        led = names[copy.tensor.name] = tie.leader.tensor.name
        if tie.factors is not None:
            names[copy.tensor.name] = fresh(f"{copy.tensor.name}_shared")
            factors = numpy_helper.from_array(tie.factors, fresh(f"{copy.tensor.name}_factors"))
            graph.initializer.append(factors)
            makers.append((led, make_node("Mul", [led, factors.name], [names[copy.tensor.name]], fresh("shared"))))
    rename_reads(graph.node, names)
    for led, node in makers:
        at = next((place for place, one in enumerate(graph.node, 1) if led in one.output), 0)
        insert_nodes(graph, at, [node])


def _cut(whole: ModelProto, points: CutPoints, inputs: Mapping[str, Given]) -> ModelProto:
    """The part in place of the whole; each input that is given loses the axis of its samples, of which it has one."""
    graph, fresh, nodes = whole.graph, FreshNames.of(whole.graph), []
    for value, (name, dtype, sizes) in inputs.items():
        _forget(graph, value, fresh)
        shape = fresh(f"{name}_sizes")
        graph.initializer.append(numpy_helper.from_array(np.array(sizes, np.int64), shape))
        graph.input.append(make_tensor_value_info(name, np_dtype_to_tensor_dtype(dtype), [1, *sizes]))
        nodes.append(make_node("Reshape", [name, shape], [value], name=fresh(f"{name}_reshape")))
    rest = list(graph.node)
    if nodes:  # in front of those that read them
        ordered = [type(node).FromString(node.SerializeToString()) for node in (*nodes, *rest)]
        del graph.node[:]
        graph.node.extend(ordered)
    reduce_to(whole, points.heads)
    return whole


def _forget(graph: GraphProto, value: str, fresh: FreshNames) -> None:
    """The node that made a value makes one of another name."""
    for node in graph.node:
        for place, name in enumerate(node.output):
            if name == value:
                node.output[place] = fresh(f"{value}_chosen")


# -- what the dense model chooses


class _Dense:
    """The dense model up to what it chooses, run sample by sample."""

    def __init__(self, proto: ModelProto, values: Sequence[str]) -> None:
        self._session, self._values = Session(copied(proto)), values
        many = [name for name, _, shape in self._session.inputs if shape and isinstance(shape[0], int) and shape[0] > 1]
        if many:
            raise ModelError(f"input '{many[0]}' takes several samples at once, which a model of two stages cannot")

    def __call__(self, batch: Arrays, shared: Collection[str]) -> list[dict[str, Array]]:
        own = {name: batch[name] for name, _, _ in self._session.inputs if name in batch}
        count = max((len(one) for name, one in own.items() if one.ndim and name not in shared), default=1)
        return [self._one(own, shared, place) for place in range(count)]

    def _one(self, own: Arrays, shared: Collection[str], place: int) -> dict[str, Array]:
        feed = {name: one if name in shared or not one.ndim else one[place : place + 1] for name, one in own.items()}
        found = self._session.run({name: np.asarray(one, order="C") for name, one in feed.items()})
        return {name: np.asarray(found[name]) for name in self._values}

    def inputs_for(self, data: Data, graph: GraphProto) -> dict[str, Given]:
        """What the part is given for one sample: as many proposals as the first samples have, but not too many."""
        some = data.take(np.arange(min(LOOKED_AT, data.count))) if isinstance(data, Samples) else data.batch(0, 2)
        found, fresh = self(some, data.shared), FreshNames.of(graph)
        made = {}
        for value in self._values:
            arrays = [one[value] for one in found]
            made[value] = fresh(f"{value}{GIVEN}"), arrays[0].dtype, _sizes(value, arrays)
        return made


def _sizes(value: str, arrays: Sequence[Array]) -> tuple[int, ...]:
    shapes = {one.shape for one in arrays}
    if len({len(shape) for shape in shapes}) > 1:
        raise ModelError(f"'{value}' has not as many axes for every sample; name other tensors with --until")
    varying = [axis for axis, sizes in enumerate(zip(*shapes)) if len(set(sizes)) > 1]
    if len(varying) > 1:
        raise ModelError(f"'{value}' varies along {len(varying)} axes; name other tensors with --until")
    most = [max(sizes) for sizes in zip(*shapes)]
    for axis in varying:
        most[axis] = max(1, min(MOST, most[axis]))
    return tuple(max(1, size) for size in most)


def _complete(data: Data, dense: _Dense, inputs: Mapping[str, Given]) -> None:
    """Have every batch of the data hold what is given, too."""

    def completed(batch: dict[str, Array]) -> dict[str, Array]:
        found = dense(batch, data.shared)
        given = {
            name: np.stack([_filled(one[value], sizes) for one in found]) for value, (name, _, sizes) in inputs.items()
        }
        return {**batch, **given}

    _ = data.fingerprint  # of what the user gave, and at no cost of runs
    data.complete = completed


def _filled(array: Array, sizes: Sequence[int]) -> Array:
    """The first ones along the axis that varies, or all of them again and again; zeros where there are none."""
    if not array.size:
        return np.zeros(sizes, array.dtype)
    for axis, size in enumerate(sizes):
        array = np.take(array, np.arange(size) % array.shape[axis], axis)
    return array
