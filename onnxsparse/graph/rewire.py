"""Small changes to a graph that keep everything else in place: renaming what is read, inserting and removing nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Union

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

Container = Union[GraphProto, FunctionProto]


def bodies(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def defines(graph: GraphProto, name: str) -> bool:
    return (
        any(entry.name == name for entry in graph.initializer)
        or any(entry.name == name for entry in graph.input)
        or any(name in node.output for node in graph.node)
    )


def rename_reads(nodes: Iterable[NodeProto], old: str, new: str, skip: NodeProto | None = None) -> int:
    """Make every node, and every body below that sees the same `old`, read `new` instead; return how many reads."""
    count = 0
    for node in nodes:
        if node is skip:
            continue
        for index, name in enumerate(node.input):
            if name == old:
                node.input[index] = new
                count += 1
        for graph in bodies(node):
            if not defines(graph, old):
                count += rename_reads(graph.node, old, new, skip)
                count += _rename_outputs(graph, old, new)
    return count


def _rename_outputs(graph: GraphProto, old: str, new: str) -> int:
    """A body may hand out a name of the graph around it."""
    found = [entry for entry in graph.output if entry.name == old]
    for entry in found:
        entry.name = new
    return len(found)


def reads(nodes: Iterable[NodeProto], name: str) -> int:
    """How many inputs of these nodes, and of the bodies below that see it, read `name`."""
    count = 0
    for node in nodes:
        count += list(node.input).count(name)
        count += sum(reads(graph.node, name) for graph in bodies(node) if not defines(graph, name))
        count += sum(entry.name == name for graph in bodies(node) for entry in graph.output if not defines(graph, name))
    return count


def is_output(container: Container, name: str) -> bool:
    if isinstance(container, FunctionProto):
        return name in container.output
    return any(entry.name == name for entry in container.output)


def insert_nodes(container: Container, at: int, nodes: list[NodeProto]) -> None:
    for offset, node in enumerate(nodes):
        container.node.insert(at + offset, node)


def remove_node(container: Container, node: NodeProto) -> None:
    """Remove this very node; an equal one elsewhere stays."""
    del container.node[next(index for index, other in enumerate(container.node) if other is node)]


def producer(container: Container, name: str) -> NodeProto | None:
    return next((node for node in container.node if name in node.output), None)


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


def fresh(wanted: str, taken: set[str]) -> str:
    """A name like `wanted` that is not taken; it is taken afterwards."""
    name, number = wanted, 1
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    taken.add(name)
    return name
