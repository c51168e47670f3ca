"""The editor of ONNX graphs: the walk into bodies and functions, free names, reads, renaming, inserting, removing.

1. A *body* is the graph in an attribute of a node (If, Loop, Scan, SequenceMap); a *scope* is a graph or local function
   with the names that it gives. A body sees the names of the scopes around it, and hides those that it gives itself.
2. What a node *reads* are its inputs and the names that its bodies take from the scopes around them.
3. Everything is done for many names in one walk, so that the work grows with the model and not with its square.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableSequence, Sequence
from typing import Any, Union

import numpy as np
import numpy.typing as npt
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    numpy_helper,
)
from onnx.helper import make_node, make_tensor_value_info, np_dtype_to_tensor_dtype

from onnxsparse.errors import ModelError
from onnxsparse.graph.attributes import IdentityKey, text

Container = Union[GraphProto, FunctionProto]

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
CONTROL_FLOW = ("If", "Loop", "Scan", "SequenceMap")
RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
SIZES = ("Shape", "Size")
"""Operators that ask for the shape of a value and not for its numbers."""
COUNTING = {"NonZero", "NonMaxSuppression", "Unique", "Compress"}
"""Operators whose results have as many elements as the data decides."""


# -- walking


def graphs_in(attribute: AttributeProto) -> Iterator[GraphProto]:
    """The bodies that an attribute holds."""
    if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def bodies(node: NodeProto) -> Iterator[GraphProto]:
    """The bodies of a node."""
    for attribute in node.attribute:
        yield from graphs_in(attribute)


def scopes(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph and all bodies in it, outer ones first."""
    yield graph
    yield from scopes_below(graph.node)


def scopes_below(nodes: Iterable[NodeProto]) -> Iterator[GraphProto]:
    """All bodies of some nodes, and those in them."""
    for node in nodes:
        for body in bodies(node):
            yield from scopes(body)


def containers(proto: ModelProto) -> Iterator[Container]:
    """The graph, the local functions, and the bodies in them."""
    for root in (proto.graph, *proto.functions):
        yield root
        yield from scopes_below(root.node)


# -- names


def defined(graph: GraphProto) -> set[str]:
    """The names a graph gives: inputs, initializers, outputs of nodes. Inside a body they hide those around it."""
    names = {entry.name for entry in graph.input} | {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        names.update(node.output)
    return names


def reads(node: NodeProto) -> list[str]:
    """What a node needs: its inputs, and what its bodies take from the scopes around them."""
    found = [name for name in node.input if name]
    for body in bodies(node):
        own = defined(body)
        wanted = [name for inner in body.node for name in reads(inner)] + [entry.name for entry in body.output]
        found += [name for name in dict.fromkeys(wanted) if name not in own]
    return found


def all_names(proto: ModelProto) -> set[str]:
    """Every name in use anywhere in the model, so that a new one collides with none."""
    return {name for container in containers(proto) for name in _names(container)}


def _names(container: Container) -> Iterator[str]:
    for node in container.node:
        yield node.name
        yield from node.input
        yield from node.output
    if isinstance(container, FunctionProto):
        yield from container.input
        yield from container.output
        return
    yield from (entry.name for entry in (*container.input, *container.output))
    yield from (tensor.name for tensor in container.initializer)
    yield from (sparse.values.name for sparse in container.sparse_initializer)


class FreshNames:
    """Hands out names that are not taken; they are afterwards."""

    def __init__(self, taken: set[str]) -> None:
        self._taken, self._tried = taken, Counter[str]()

    @classmethod
    def of(cls, graph: GraphProto) -> FreshNames:
        """Names that neither a graph nor a body in it has."""
        return cls({name for scope in scopes(graph) for name in _names(scope)})

    def __call__(self, wanted: str) -> str:
        """A name like `wanted`: itself, or with the first number that is free."""
        name = wanted
        while name in self._taken:
            self._tried[wanted] += 1  # what was taken once stays so: thousands of bodies may all call their weight `w`
            name = f"{wanted}_{self._tried[wanted]}"
        self._taken.add(name)
        return name


def called(node: NodeProto) -> str:
    """A node in words."""
    name = node.name or (node.output[0] if node.output else "")
    return f"{node.op_type} '{name}'"


# -- renaming, inserting, removing


def rename_reads(nodes: Iterable[NodeProto], names: Mapping[str, str]) -> None:
    """Make every node, and every body below that sees the old names, read the new ones instead."""
    if not names:
        return
    for node in nodes:
        for index, name in enumerate(node.input):
            if name in names:
                node.input[index] = names[name]
        for graph in bodies(node):
            _rename_in_body(graph, names)


def _rename_in_body(graph: GraphProto, names: Mapping[str, str]) -> None:
    hidden = defined(graph) & names.keys()
    seen = {old: new for old, new in names.items() if old not in hidden} if hidden else names
    rename_reads(graph.node, seen)
    for entry in graph.output:  # a body may hand out a name of the graph around it
        if entry.name in seen:
            entry.name = seen[entry.name]


class Outputs:
    """Which names are outputs of a graph or function; each list is looked through once."""

    def __init__(self) -> None:
        self._known: dict[IdentityKey, set[str]] = {}

    def has(self, container: Container, name: str) -> bool:
        key = IdentityKey(container)
        if key not in self._known:
            self._known[key] = {getattr(entry, "name", entry) for entry in container.output}
        return name in self._known[key]


def insert_nodes(container: Container, at: int, nodes: list[NodeProto]) -> None:
    for offset, node in enumerate(nodes):
        container.node.insert(at + offset, node)


def remove_nodes(container: Container, nodes: Iterable[NodeProto]) -> None:
    """Remove these very nodes; equal ones elsewhere stay."""
    gone = set(map(IdentityKey, nodes))
    _delete(container.node, [index for index, node in enumerate(container.node) if IdentityKey(node) in gone])


def _delete(repeated: MutableSequence[Any], places: Sequence[int]) -> None:
    """Take entries out, from the last to the first, neighbours together; the others stay the very same messages."""
    stop = len(places)
    for start in range(len(places) - 1, -1, -1):
        if not start or places[start - 1] != places[start] - 1:
            del repeated[places[start] : places[stop - 1] + 1]
            stop = start


class Unread:
    """Removes what nobody reads any more: constants, the nodes between them, and initializers that are no inputs."""

    def __init__(self, proto: ModelProto) -> None:
        self._reads: Counter[str] = Counter()
        self._made: dict[str, tuple[Container, NodeProto | None]] = {}
        for container in containers(proto):
            self._note(container)

    def _note(self, container: Container) -> None:
        for node in container.node:
            self._reads.update(node.input)
            self._made.update((name, (container, node)) for name in node.output)
        if isinstance(container, FunctionProto):
            self._reads.update(container.output)
            return
        self._reads.update(entry.name for entry in container.output)
        self._reads.update(entry.name for entry in container.input)  # an input belongs to the model's interface
        self._made.update((tensor.name, (container, None)) for tensor in container.initializer)

    def remove(self, names: Iterable[str]) -> None:
        """Remove what makes `names` where nobody reads it, and then what only that read."""
        nodes: dict[IdentityKey, tuple[Container, list[NodeProto]]] = {}
        tensors: dict[IdentityKey, tuple[GraphProto, set[str]]] = {}
        waiting = list(dict.fromkeys(names))
        while waiting:
            name = waiting.pop()
            if self._reads[name] or name not in self._made:
                continue
            container, node = self._made.pop(name)
            if node is None:
                assert isinstance(container, GraphProto)
                tensors.setdefault(IdentityKey(container), (container, set()))[1].add(name)
            elif len(node.output) == 1 and not list(bodies(node)):
                nodes.setdefault(IdentityKey(container), (container, []))[1].append(node)
                self._reads.subtract(node.input)
                waiting += [entry for entry in node.input if entry]
        for container, gone in nodes.values():
            remove_nodes(container, gone)
        for graph, dropped in tensors.values():
            _delete(graph.initializer, [i for i, tensor in enumerate(graph.initializer) if tensor.name in dropped])


# -- what depends on what, and cutting a throw-away copy down to it


def downstream(graph: GraphProto, sources: Iterable[str], sizes: bool = True) -> set[str]:
    """All values that depend on the sources, and these; without `sizes` not those that only ask for their shape."""
    found = set(sources)
    for node in graph.node:
        if (sizes or node.op_type not in SIZES) and any(name in found for name in reads(node)):
            found |= {name for name in node.output if name}
    return found


def upstream(graph: GraphProto, targets: Iterable[str], through: Collection[str] | None = None) -> set[str]:
    """All values that the targets depend on, and these; only by way of the values in `through` if it is given."""
    found = set(targets)
    for node in reversed(graph.node):
        if any(name in found for name in node.output):
            found |= {name for name in reads(node) if through is None or name in through}
    return found


def reduce_to(model: ModelProto, outputs: Iterable[str]) -> None:
    """Only what the outputs need is left: nodes, initializers, inputs; they are the outputs of the graph."""
    graph, wanted = model.graph, list(dict.fromkeys(outputs))
    needed = upstream(graph, wanted)
    declared = {value.name: value for value in (*graph.value_info, *graph.output)}
    ends = [declared.get(name) or ValueInfoProto(name=name) for name in wanted]
    keep(graph.node, [node for node in graph.node if any(name in needed for name in node.output)])
    if any(tensor.name not in needed for tensor in graph.initializer):
        keep(graph.initializer, [tensor for tensor in graph.initializer if tensor.name in needed])
    keep(graph.input, [value for value in graph.input if value.name in needed])
    keep(graph.output, ends)
    made = {name for node in graph.node for name in node.output}
    keep(graph.value_info, [value for value in graph.value_info if value.name in made and value.name not in wanted])


def extracted(model: ModelProto, outputs: Iterable[str]) -> ModelProto:
    """A model of its own that computes the outputs and nothing else."""
    wanted = list(dict.fromkeys(outputs))
    needed = upstream(model.graph, wanted)
    made = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    graph = made.graph
    graph.name = model.graph.name or "part"
    graph.node.extend(node for node in model.graph.node if any(name in needed for name in node.output))
    graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in needed)
    graph.input.extend(value for value in model.graph.input if value.name in needed)
    declared = {value.name: value for value in model.graph.output}
    graph.output.extend(declared.get(name) or ValueInfoProto(name=name) for name in wanted)
    return made


def copied(model: ModelProto) -> ModelProto:
    """A copy of a model."""
    copy = ModelProto()
    copy.CopyFrom(model)
    return copy


def keep(field: Any, kept: Sequence[Any]) -> None:
    """A repeated field holds these messages (its own or others) and no more."""
    copies = []
    for entry in kept:  # a message of the field dies with it, so each is copied before
        copies.append(type(entry)())
        copies[-1].CopyFrom(entry)
    del field[:]
    field.extend(copies)


def bypass(proto: ModelProto, ways: Mapping[str, str]) -> None:
    """Have each result be what its source is, in place; what nobody needs any more is gone, with its initializers."""
    graph = proto.graph
    before = upstream(graph, [value.name for value in graph.output])
    keep(graph.node, [_handing_on(node, ways) for node in graph.node])
    needed = upstream(graph, [value.name for value in graph.output])
    lost = before - needed
    keep(graph.node, [node for node in graph.node if needed & set(node.output) or not lost & set(node.output)])
    keep(graph.initializer, [tensor for tensor in graph.initializer if tensor.name not in lost])
    stored = {tensor.name for tensor in graph.initializer}
    inputs = {value.name for value in graph.input}
    made = {name for node in graph.node for name in node.output} | stored | inputs
    keep(graph.value_info, [value for value in graph.value_info if value.name in made])


def _handing_on(node: NodeProto, ways: Mapping[str, str]) -> NodeProto:
    result = next((name for name in node.output if name in ways), "")
    return make_node("Identity", [ways[result]], [result], name=node.name) if result else node


class Writer:
    """Writes nodes for a throw-away copy, under names that are new in it.

    Nodes are collected in `nodes`; constants and inputs go into the graph at once. The caller places the nodes.
    """

    def __init__(self, graph: GraphProto, opset: int) -> None:
        self.graph, self.opset = graph, opset
        self.nodes: list[NodeProto] = []
        self.fresh = FreshNames.of(graph)

    def replace(self, write: Callable[[NodeProto], object]) -> None:
        """The nodes that `write` writes for a node of the graph take its place."""
        placed, changed = list[NodeProto](), False
        for node in self.graph.node:
            self.nodes = []
            write(node)
            placed += self.nodes or [node]
            changed |= bool(self.nodes)
        if changed:
            keep(self.graph.node, placed)

    def constant(self, value: Any, stem: str = "constant", dtype: Any = None) -> str:
        """A new initializer; floats become float32 and whole numbers int64 unless `dtype` says otherwise."""
        array: npt.NDArray[Any] = np.asarray(value, dtype)
        if dtype is None and array.dtype.kind in "fi":
            array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
        name = self.fresh(stem)
        self.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name))
        return name

    def input(self, stem: str, dtype: Any, shape: Sequence[int]) -> str:
        """A new graph input."""
        name = self.fresh(stem)
        kind = np_dtype_to_tensor_dtype(np.dtype(dtype))
        self.graph.input.append(make_tensor_value_info(name, kind, list(shape)))
        return name

    def node(self, op: str, *inputs: str, to: str | None = None, domain: str = "", **attributes: Any) -> str:
        """A node with one output, named `to` or anew; returns the output's name."""
        return self.many(op, *inputs, to=[to or self.fresh(op.lower())], domain=domain, **attributes)[0]

    def cast(self, value: str, kind: int, to: str | None = None) -> str:
        """`value` as numbers of another kind, a `TensorProto.DataType`."""
        name = to or self.fresh("cast")
        self.nodes.append(make_node("Cast", [value], [name], name=self.fresh("Cast_node"), to=kind))
        return name

    def many(self, op: str, *inputs: str, to: Sequence[str], domain: str = "", **attributes: Any) -> list[str]:
        """A node with several outputs, of the names in `to` ('' = left out)."""
        given = {name: value for name, value in attributes.items() if value is not None}
        self.nodes.append(make_node(op, inputs, list(to), name=self.fresh(f"{op}_node"), domain=domain, **given))
        return list(to)


# -- Every tensor of a model, wherever it stands: in bodies, functions, attributes and training graphs too.
#
# And how much a model comes to once its local functions are called, which a small file can make very much.


Called = tuple[str, str, str]
"""Domain, name and overload of a function."""


def every_tensor(proto: ModelProto) -> Iterator[TensorProto]:
    """All tensors of a model, wherever they stand."""
    yield from _graph_tensors(proto.graph)
    for function in proto.functions:
        yield from _node_tensors(function.node)
    for training in proto.training_info:
        yield from _graph_tensors(training.initialization)
        yield from _graph_tensors(training.algorithm)


def _graph_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Sequence[NodeProto]) -> Iterator[TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            yield from _attribute_tensors(attribute)


def _attribute_tensors(attribute: AttributeProto) -> Iterator[TensorProto]:
    if attribute.type in (AttributeProto.TENSOR, AttributeProto.TENSORS):
        yield from [attribute.t, *attribute.tensors] if attribute.HasField("t") else attribute.tensors
    elif attribute.type in (AttributeProto.SPARSE_TENSOR, AttributeProto.SPARSE_TENSORS):
        for sparse in [attribute.sparse_tensor, *attribute.sparse_tensors]:
            yield sparse.values
            yield sparse.indices
    for graph in graphs_in(attribute):
        yield from _graph_tensors(graph)


def functions_of(proto: ModelProto) -> dict[Called, FunctionProto]:
    """The local functions of a model, by what a node that calls one says."""
    return {(one.domain, one.name, getattr(one, "overload", "")): one for one in proto.functions}


def demand_bounded(proto: ModelProto, most: int, deepest: int) -> None:
    """Refuse a model that has more than `most` nodes, or calls nested deeper than `deepest`, once it is called.

    Each function is looked at once, however often it is called; bodies count where they stand.
    """
    count, depth = _Calls(functions_of(proto), deepest).sizes(proto.graph.node)
    if depth > deepest:
        raise ModelError(f"local functions are nested deeper than {deepest}")
    if count > most:
        raise ModelError(f"the model has more than {most} nodes once its functions are called; refused")


class _Calls:
    """How many nodes, and how many calls inside each other, each function comes to."""

    def __init__(self, functions: Mapping[Called, FunctionProto], deepest: int) -> None:
        self._functions, self._deepest = functions, deepest
        self._known: dict[Called, tuple[int, int]] = {}
        self._open: list[Called] = []

    def sizes(self, nodes: Iterable[NodeProto]) -> tuple[int, int]:
        count, calls = self._own(nodes)
        called = [(times, self._size(one)) for one, times in calls.items()]
        return count + sum(times * size for times, (size, _) in called), max(
            (deep for _, (_, deep) in called), default=0
        )

    def _size(self, called: Called) -> tuple[int, int]:
        if called in self._open:
            raise ModelError(f"function {called[0]}:{called[1]} calls itself")
        if len(self._open) >= self._deepest:
            raise ModelError(f"local functions are nested deeper than {self._deepest}")
        if called not in self._known:
            self._open.append(called)
            count, depth = self.sizes(self._functions[called].node)
            self._known[called] = count, depth + 1
            self._open.pop()
        return self._known[called]

    def _own(self, nodes: Iterable[NodeProto]) -> tuple[int, Counter[Called]]:
        """The nodes of a graph and of its bodies, and which functions they call how often."""
        count, calls, waiting = 0, Counter[Called](), [nodes]
        while waiting:
            for node in waiting.pop():
                count += 1
                called = text(node.domain), text(node.op_type), getattr(node, "overload", "")
                if called in self._functions:
                    calls[called] += 1
                else:
                    waiting += [graph.node for graph in bodies(node)]
        return count, calls
