"""Graphs of onnx-graphsurgeon: exported to a model for the passes, and what a pass made put back into the same graph.

1. A graph is recognised by the module of its class; the package is not imported before somebody hands one over.
2. Passes never work on it: it is exported to a ModelProto of its own, and a pass changes that.
3. A constant that two bodies read is one object there, but onnx-graphsurgeon 0.6.1 writes it into each body. It is
   stored once here, so that it is planned once and gets one set of numbers.
4. `put_back` brings the difference into the graph that was given. Tensors and nodes that stay are the same objects;
   constants get their new numbers, nodes other inputs, and nodes of masks come and go. Bodies and functions alike.
   Numbers are handed over as stored tensors, which no type of numpy has to hold: bfloat16 stays what it is.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto

from onnxsparse.errors import MissingExtraError, ModelError, OnnxSparseError, one_line
from onnxsparse.graph.attributes import IdentityKey
from onnxsparse.graph.edit import every_tensor

PACKAGE = "onnx_graphsurgeon"
CONTENT = (
    "data_type", "dims", "raw_data", "float_data", "double_data", "int32_data", "int64_data", "uint64_data",
    "string_data",
)  # fmt: skip
Key = tuple[str, ...]


def is_graph(source: object) -> bool:
    """Whether something is a graph of onnx-graphsurgeon; a local function of one is no model."""
    return is_a(source, PACKAGE, "Graph") and not is_a(source, PACKAGE, "Function")


def is_a(value: object, package: str, name: str) -> bool:
    """Whether a class of that name, of that package, is among the classes of a value; nothing of it is called."""
    kinds = type.mro(type(value)) if not issubclass(type(value), type) else []
    return any(kind.__name__ == name and str(kind.__module__).partition(".")[0] == package for kind in kinds)


def exported(graph: Any) -> ModelProto:
    """The model of a graph, without what was recorded in the file that it came from."""
    try:
        for one in (graph, *graph.functions):
            _demand_names(one, {})
        proto: ModelProto = surgeon().export_onnx(graph)
        _store_once(graph, proto.graph)
    except OnnxSparseError:
        raise
    except Exception as error:  # a graph in the middle of surgery fails in as many ways as there are
        raise ModelError(
            f"onnx_graphsurgeon does not export the graph: {type(error).__name__}: {one_line(error)[:200]}; "
            "is it whole? graph.cleanup().toposort() drops what nothing reads"
        ) from error
    for tensor in every_tensor(proto):  # loaded since, but still called external
        if tensor.data_location == TensorProto.EXTERNAL and not len(tensor.external_data):
            tensor.ClearField("data_location")
    return proto


def _demand_names(graph: Any, outer: Mapping[str, Any]) -> None:
    """Two constants of one name are written as one, with a warning; which node reads which would be a guess.

    A body that has a constant of a name from outside is written, and read again as if it were the one outside.
    """
    seen: dict[str, Any] = {}
    ends = [tensor for node in graph.nodes for tensor in (*node.inputs, *node.outputs)]
    for tensor in (*graph.inputs, *ends, *graph.outputs):
        if not tensor.name:
            continue
        hidden = outer.get(tensor.name, tensor)
        shadows = hidden is not tensor and (is_a(hidden, PACKAGE, "Constant") or is_a(tensor, PACKAGE, "Constant"))
        if shadows or seen.setdefault(tensor.name, tensor) is not tensor:
            raise ModelError(f"two tensors of the graph are called '{one_line(tensor.name)[:80]}'; rename one of them")
    for node in graph.nodes:
        for value in node.attrs.values():
            if is_a(value, PACKAGE, "Graph"):
                _demand_names(value, {**outer, **seen})


def imported(proto: ModelProto) -> Any:
    """A graph of onnx-graphsurgeon for a model, over a copy: the graph's changes are not the model's."""
    copy = ModelProto()
    copy.CopyFrom(proto)
    return surgeon().import_onnx(copy)


def surgeon() -> Any:
    """The package, which somebody has who hands a graph over."""
    try:
        return importlib.import_module(PACKAGE)
    except ImportError:
        raise MissingExtraError(
            "graphs of onnx-graphsurgeon need that package: pip install 'onnxsparse[graphsurgeon]'"
        ) from None


# -- constants of several bodies


def _store_once(graph: Any, proto: GraphProto) -> None:
    """What bodies share is stored in the main graph, where each of them sees it."""
    bodies = list(_bodies(graph, proto))
    read = [_constants(body) for body, _ in bodies]
    places = Counter(IdentityKey(tensor) for constants in read for tensor in constants.values())
    owners = Counter(name for body, _ in bodies for name in body._local_tensors())
    stored = {tensor.name for tensor in proto.initializer}
    for (_, held), constants in zip(bodies[1:], read[1:]):
        for place in reversed(range(len(held.initializer))):
            name = held.initializer[place].name
            tensor = constants.get(name)
            # another tensor of that name in a body between would be read instead
            if tensor is None or places[IdentityKey(tensor)] < 2 or owners[name] != places[IdentityKey(tensor)]:
                continue
            if name not in stored:
                proto.initializer.add().CopyFrom(held.initializer[place])
                stored.add(name)
            del held.initializer[place]


def _bodies(graph: Any, proto: GraphProto) -> Iterator[tuple[Any, GraphProto]]:
    """A graph and all bodies in it, beside what each was exported as."""
    yield graph, proto
    for node, made in zip(graph.nodes, proto.node):
        for attribute in made.attribute:
            if attribute.HasField("g"):
                yield from _bodies(node.attrs[attribute.name], attribute.g)


# -- what a pass made


def put_back(graph: Any, made: ModelProto) -> None:
    """Bring what a pass made of the graph's model into the graph itself."""
    found = imported(made)
    _put(graph, found, {})
    functions = {one.unique_id: one for one in found.functions}
    for function in graph.functions:
        if function.unique_id in functions:
            _put(function, functions[function.unique_id], {})


def _put(own: Any, made: Any, outer: Mapping[str, Any]) -> None:
    """Nodes and numbers as in `made`; tensors by name, those of the graphs around included."""
    tensors = {**outer, **own.tensors()}
    constants = _constants(own)
    known: dict[Key, list[Any]] = {}
    for node in own.nodes:
        known.setdefault(_key(node), []).append(node)
    placed = []
    for node in made.nodes:
        same = known.get(_key(node))
        if not same and node.op == "Constant" and node.outputs[0].name in constants:
            # a function has no initializers: a constant of its own is exported as a node
            _renumber(constants[node.outputs[0].name], node.attrs["value"])
            continue
        mine = same.pop(0) if same else _bare(node, tensors)
        if [tensor.name for tensor in mine.inputs] != [tensor.name for tensor in node.inputs]:
            mine.inputs = [_own(tensor, tensors) for tensor in node.inputs]
        placed.append(mine)
        _put_attributes(mine, node, tensors)
    for gone in (node for nodes in known.values() for node in nodes):
        gone.inputs.clear()
        gone.outputs.clear()
    own.nodes[:] = placed
    for name, tensor in _constants(made).items():
        if name in tensors:
            _renumber(tensors[name], tensor)


def _put_attributes(mine: Any, node: Any, tensors: Mapping[str, Any]) -> None:
    for name, value in node.attrs.items():
        if is_a(value, PACKAGE, "Graph"):
            _put(mine.attrs[name], value, tensors)
        elif is_a(value, PACKAGE, "Constant"):
            _renumber(mine.attrs[name], value)
        elif node.op == "Constant" and isinstance(value, (float, list)) and not np.array_equal(mine.attrs[name], value):
            mine.attrs[name] = value


def _renumber(tensor: Any, made: Any) -> None:
    """Give a constant its numbers where they are others now; else what it holds is not even loaded."""
    stored = getattr(made._values, "tensor", None)
    if tensor is not made and isinstance(stored, TensorProto) and not _same(_stored(tensor), stored):
        tensor.values = made._values
        tensor._export_dtype = None


def _stored(tensor: Any) -> Any:
    exporter = importlib.import_module("onnx_graphsurgeon.exporters.onnx_exporter").OnnxExporter
    return exporter.export_tensor_proto(tensor)


def _same(one: TensorProto, other: TensorProto) -> bool:
    return all(getattr(one, field) == getattr(other, field) for field in CONTENT)


def _bare(node: Any, tensors: dict[str, Any]) -> Any:
    """A new node of a pass, with tensors of the graph's own."""
    outputs = [_own(tensor, tensors) for tensor in node.outputs]
    return surgeon().Node(node.op, node.name, node.attrs, [], outputs, node.domain)


def _own(tensor: Any, tensors: dict[str, Any]) -> Any:
    """The graph's tensor of that name; of a new one a copy that no other graph's nodes are listed in."""
    if tensor.is_empty():
        return surgeon().Variable.empty()
    if tensor.name not in tensors:
        tensors[tensor.name] = tensor.copy()
    return tensors[tensor.name]


def _key(node: Any) -> Key:
    """What a node keeps whatever a pass does around it."""
    return (node.domain or "", node.op, *(tensor.name for tensor in node.outputs))


def _constants(graph: Any) -> dict[str, Any]:
    return {name: tensor for name, tensor in graph.tensors().items() if is_a(tensor, PACKAGE, "Constant")}


__all__ = ["exported", "imported", "is_a", "is_graph", "put_back", "surgeon"]
