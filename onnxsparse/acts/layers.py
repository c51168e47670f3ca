"""The layers of an ONNX graph by the names of recipes, and how each can be skipped.

1. A layer is a node with a weight (Conv, Gemm, MatMul, with the addition of its bias), any node by its own name, or all
   nodes of a module, as exporters of torch name them: `blocks.3`, whose nodes are called `/blocks/blocks.3/...`.
2. It has one result that others read, and one input of the same type and shape: that is what stands for the result.
   Symbolic dimensions are alike where they have the same name. What else comes in (a mask of attention) is unread.
3. One that the graph does not let go is refused by its name, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Union

import onnx.shape_inference
from onnx import GraphProto, NodeProto, ValueInfoProto

from onnxsparse.acts.params import ALL, ALL_PRUNABLE, REGULAR, compiled
from onnxsparse.engines.distillation import stated
from onnxsparse.errors import OptionError, nearest
from onnxsparse.graph.edit import bypass, copied, downstream, reads, upstream
from onnxsparse.graph.model import Model
from onnxsparse.graph.torch_match import scope_of
from onnxsparse.planning.macs import open_dims, single, sized
from onnxsparse.planning.names import layers_of_node, named, names_of_node

PRUNABLE = ("Conv", "ConvTranspose", "Gemm", "MatMul")
PRIMES = (11, 13, 17, 19, 23, 29, 31, 37, 41, 43)
"""Sizes of dynamic dimensions, each of another one: what is alike for these is alike."""
SAMPLES = 7
SHOWN = 3
Shape = tuple[Union[int, str], ...]


@dataclass(frozen=True)
class Bypass:
    """A layer by its name and result, what stands for that, and the stored tensors, by tag, that nothing else reads."""

    name: str
    result: str
    source: str
    tags: tuple[str, ...]


def bypasses(model: Model, wanted: str | Sequence[str], where: str) -> list[Bypass]:
    """How the layers that the entries of a modifier mean can be skipped; one that cannot be is refused by its name."""
    layers = _Layers(model)
    entries = [wanted] if isinstance(wanted, str) else list(wanted)
    found = {name: layers.all[name] for entry in entries for name in layers.meant(entry, where)}
    ways = {name: layers.way(name, nodes, where) for name, nodes in found.items()}
    copy, made = copied(model.proto), list[Bypass]()
    for result, (name, source) in {result: (name, source) for name, (result, source) in ways.items()}.items():
        stored = _tags(model, copy.graph)
        if result in {name for node in copy.graph.node for name in node.output}:  # no part of another one
            bypass(copy, {result: source})
        left = _tags(model, copy.graph)
        made.append(Bypass(name, result, source, tuple(tag for tag in stored if tag not in left)))
    return made


def result_of(model: Model, name: str, where: str) -> tuple[str, Shape] | None:
    """What a module gives, and its shape: the one result of its nodes that others read. None if none is called so."""
    layers = _Layers(model)
    if name not in layers.all:
        return None
    nodes = [layers.graph.node[at] for at in layers.all[name]]
    result = layers.result(layers.all[name], nodes, lambda why: OptionError(f"{where}: {name[:80]!r}: {why}"))
    return result, layers.shapes([result])[result][1:]


def _tags(model: Model, graph: GraphProto) -> list[str]:
    """The stored tensors of the model that a copy of its graph has."""
    names = {tensor.name for tensor in graph.initializer}
    names |= {name for node in graph.node for name in node.output}
    homes = model.flow.stores.homes
    return [home.tag for tensor, home in homes.items() if home.scope or tensor.name in names]


@dataclass
class _Layers:
    """The nodes of a graph by what their layers may be called."""

    model: Model
    all: dict[str, list[int]] = field(default_factory=dict)
    prunable: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.graph = self.model.proto.graph
        self.makers = {name: at for at, node in enumerate(self.graph.node) for name in node.output if name}
        self.readers: dict[str, list[int]] = {}
        for at, node in enumerate(self.graph.node):
            for name in dict.fromkeys(reads(node)):
                self.readers.setdefault(name, []).append(at)
        self.fed = downstream(self.graph, self._inputs())
        for at, node in enumerate(self.graph.node):
            if any(name in self.fed for name in node.output):  # constants belong to whoever reads them
                self._note(at, node)
        for weight in self.model.weights:
            for node in weight.layers:
                self._note_weight(node, named(weight).layers)

    def _inputs(self) -> list[str]:
        stored = {tensor.name for tensor in self.graph.initializer}
        return [value.name for value in self.graph.input if value.name not in stored]

    def _note(self, at: int, node: NodeProto) -> None:
        path = scope_of(node) or next(iter(layers_of_node(node.name)[-1:]), "") if "/" in node.name else scope_of(node)
        steps = (path or "").split(".")
        for end in range(1, len(steps) + 1):
            self._add(".".join(steps[:end]), at)
        own = (*names_of_node(node.name), *node.output) if node.name else node.output
        for name in own:
            if name not in self.all or at not in self.all[name]:
                self.all.setdefault(name, [])
        for name in own:
            self.all[name] = self.all[name] or self._with_bias(at)

    def _add(self, name: str, at: int) -> None:
        if name:
            self.all.setdefault(name, []).append(at)

    def _note_weight(self, node: str, layers: Iterable[str]) -> None:
        at = next((place for place, one in enumerate(self.graph.node) if node in (one.name, *one.output)), None)
        if at is None:
            return
        if self.graph.node[at].op_type in PRUNABLE:
            self.prunable.append(node)
            self.all[node] = self._with_bias(at)
        for layer in layers:
            self.all.setdefault(layer, self._with_bias(at))

    def _with_bias(self, at: int) -> list[int]:
        """A node, and the addition of its bias where that is another one."""
        node = self.graph.node[at]
        behind = [self.graph.node[one] for one in self.readers.get(node.output[0], ())]
        if node.op_type == "MatMul" and len(behind) == 1 and behind[0].op_type == "Add":
            others = [name for name in behind[0].input if name != node.output[0]]
            if others and not set(others) & self.fed:
                return [at, self.readers[node.output[0]][0]]
        return [at]

    def meant(self, entry: str, where: str) -> list[str]:
        if entry.upper() == ALL:
            raise OptionError(f"{where}: {ALL} would leave nothing of the model; name layers, or {ALL_PRUNABLE}")
        if entry.upper() == ALL_PRUNABLE:
            found = self.prunable
        elif entry.startswith(REGULAR):
            pattern = compiled(entry[len(REGULAR) :], where)
            found = self._outermost([name for name in self.all if pattern.match(name)])
        else:
            found = [entry] if entry in self.all else [name for name in self.all if self._ends(name, entry)]
            if len({tuple(self.all[name]) for name in found}) > 1:
                raise OptionError(f"{where}: {entry[:80]!r} fits several layers: {', '.join(found[:SHOWN])}; name one")
            found = found[:1]
        if not found:
            raise OptionError(f"{where}: {entry[:80]!r} is no layer of the model{nearest(entry, self.all)}")
        return list(dict.fromkeys(found))

    @staticmethod
    def _ends(name: str, entry: str) -> bool:
        return "." in entry and name.endswith(f".{entry}")

    def _outermost(self, names: Sequence[str]) -> list[str]:
        """Of several layers that hold one another those that are in no other, each once."""
        sets = {name: frozenset(self.all[name]) for name in names}
        chosen: dict[frozenset[int], str] = {}
        for name, one in sets.items():
            if not any(one < other for other in sets.values()):
                chosen.setdefault(one, name)
        return list(chosen.values())

    # -- whether one can be skipped

    def way(self, name: str, places: Sequence[int], where: str) -> tuple[str, str]:
        """The result of a layer and what may stand for it."""

        def refused(why: str) -> OptionError:
            return OptionError(f"{where}: {name[:80]!r} cannot be skipped: {why}")

        nodes = [self.graph.node[at] for at in places]
        result = self.result(places, nodes, refused)
        own = {one for node in nodes for one in node.output}
        behind = downstream(self.graph, [result])
        given = dict.fromkeys(one for node in nodes for one in reads(node) if one in self.fed and one not in own)
        data = [one for one in given if one not in behind]
        if not data:
            raise refused("nothing comes into it that depends on the inputs of the model")
        shown = self.shapes([*data, result])
        alike = [one for one in data if shown[one] and shown[one] == shown[result]]
        if len(alike) > 1:
            raise refused(f"it has several inputs that could stand for its result: {', '.join(alike[:SHOWN])}")
        if not alike:
            raise refused(_unlike(data, result, shown))
        if result in self.ends and alike[0] in {value.name for value in self.graph.input}:
            raise refused(f"the input {alike[0]!r} of the model would be its output {result!r}")
        self._demand_targets(result, alike[0], refused)
        return result, alike[0]

    @property
    def ends(self) -> set[str]:
        return {value.name for value in self.graph.output}

    def result(self, places: Collection[int], nodes: Sequence[NodeProto], refused: Callable[[str], OptionError]) -> str:
        inside = set(places)
        made = [name for node in nodes for name in node.output if name]
        needed = upstream(self.graph, self.ends)
        read = [
            name
            for name in made
            if name in self.ends or (name in needed and any(at not in inside for at in self.readers.get(name, ())))
        ]
        if len(read) != 1:
            results = ", ".join(read[:SHOWN]) or "none"
            raise refused(f"it has {len(read)} results that others read, not one ({results})")
        return str(read[0])

    @cached_property
    def _known(self) -> Sequence[Mapping[str, ValueInfoProto]]:
        return _inferred(self.model), _declared(self.model.proto.graph)

    def shapes(self, names: Sequence[str]) -> dict[str, Shape]:
        """The types and sizes of some values: as they are inferred, or, where that says too little, declared."""
        found = [{name: _shape(known.get(name)) for name in names} for known in self._known]
        return next((shapes for shapes in found if all(shapes.values())), found[0])

    def _demand_targets(self, result: str, source: str, refused: Callable[[str], OptionError]) -> None:
        """What the loss may be matched at has to be there with and without the layer."""
        copy = copied(self.model.proto)
        bypass(copy, {result: source})
        made = {name for node in copy.graph.node for name in node.output} | set(self._inputs())
        lost = [one.name for one in stated(self.model.proto) if one.name not in made]
        if lost:
            raise refused(f"{lost[0]!r}, what the last layer gives before it is squashed, is in it")


def _shape(info: ValueInfoProto | None) -> Shape:
    """The type of a value and its sizes, by name where they are dynamic; nothing where one is not known."""
    if info is None or not info.type.tensor_type.HasField("shape"):
        return ()
    sizes = [dim.dim_value or dim.dim_param for dim in info.type.tensor_type.shape.dim]
    return (info.type.tensor_type.elem_type, *sizes) if all(sizes) and "?" not in sizes else ()


def _declared(graph: GraphProto) -> Mapping[str, ValueInfoProto]:
    return {info.name: info for info in (*graph.input, *graph.output, *graph.value_info)}


def _unlike(data: Sequence[str], result: str, shown: Mapping[str, Shape]) -> str:
    if not shown[result] or not any(shown[one] for one in data):
        return f"the shape of {result!r} or of what comes in is not known; a fixed size for dynamic inputs may tell it"
    kinds = {f"{one!r} {list(shown[one][1:])}" for one in data if shown[one]}
    return (
        f"it gives {list(shown[result][1:])}, and no input has that shape and type: {', '.join(sorted(kinds)[:SHOWN])}"
    )


def _inferred(model: Model) -> Mapping[str, ValueInfoProto]:
    """What is known of every value, with a size of its own for each dynamic dimension."""
    proto = single(sized(model.proto, model.sizes), SAMPLES)
    others = dict(zip(open_dims(proto), PRIMES * (1 + len(open_dims(proto)) // len(PRIMES))))
    proto = sized(proto, others)
    for info in (*proto.graph.output, *proto.graph.value_info):  # what was inferred for the old sizes
        info.type.tensor_type.ClearField("shape")
    try:
        return _declared(onnx.shape_inference.infer_shapes(proto, data_prop=True).graph)
    except Exception:  # whatever the inference makes of an odd graph
        return {}
