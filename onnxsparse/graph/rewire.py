"""Small changes to a graph that keep everything else in place: renaming what is read, inserting and removing nodes.

Everything is done for many names in one walk, so that the work grows with the model and not with its square.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, MutableSequence, Sequence
from typing import Any, Union

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

from onnxsparse.graph.attributes import IdentityKey

Container = Union[GraphProto, FunctionProto]


def bodies(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def defined(graph: GraphProto) -> set[str]:
    """The names a body makes itself; inside it they hide those of the graph around it."""
    names = {entry.name for entry in graph.input} | {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        names.update(node.output)
    return names


def rename_reads(nodes: Iterable[NodeProto], names: Mapping[str, str]) -> None:
    """Make every node, and every body below that sees the old names, read the new ones instead."""
    for node in nodes:
        for index, name in enumerate(node.input):
            if name in names:
                node.input[index] = names[name]
        for graph in bodies(node):
            _rename_in_body(graph, names)


def _rename_in_body(graph: GraphProto, names: Mapping[str, str]) -> None:
    hidden = defined(graph) & names.keys()
    seen = {old: new for old, new in names.items() if old not in hidden} if hidden else names
    if not seen:
        return
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
            self._known[key] = _outputs(container)
        return name in self._known[key]


def _outputs(container: Container) -> set[str]:
    if isinstance(container, FunctionProto):
        return set(container.output)
    return {entry.name for entry in container.output}


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


def all_names(proto: ModelProto) -> set[str]:
    """Every name in use anywhere in the model, so that a new one collides with none."""
    names: set[str] = set()
    for container in containers(proto):
        for node in container.node:
            names.update(node.input, node.output, [node.name])
        if isinstance(container, GraphProto):
            names.update(entry.name for entry in (*container.input, *container.output))
            names.update(tensor.name for tensor in container.initializer)
            names.update(sparse.values.name for sparse in container.sparse_initializer)
        else:
            names.update(container.input, container.output)
    return names


def containers(proto: ModelProto) -> Iterator[Container]:
    roots: list[Container] = [proto.graph, *proto.functions]
    for root in roots:
        yield from _below(root)


def _below(container: Container) -> Iterator[Container]:
    yield container
    for node in container.node:
        for graph in bodies(node):
            yield from _below(graph)


class FreshNames:
    """Hands out names that are not taken; they are afterwards."""

    def __init__(self, taken: set[str]) -> None:
        self._taken, self._tried = taken, Counter[str]()

    def __call__(self, wanted: str) -> str:
        """A name like `wanted`: itself, or with the first number that is free."""
        name = wanted
        while name in self._taken:
            self._tried[wanted] += 1  # what was taken once stays so: thousands of bodies may all call their weight `w`
            name = f"{wanted}_{self._tried[wanted]}"
        self._taken.add(name)
        return name
