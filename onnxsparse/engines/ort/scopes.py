"""Graphs inside graphs: bodies of control flow, what they read from outside, and new names in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from onnx import AttributeProto, GraphProto, NodeProto

CONTROL_FLOW = ("If", "Loop", "Scan", "SequenceMap")


class Names:
    """Every name of a graph and its bodies, so that a new one clashes with none."""

    def __init__(self, graph: GraphProto) -> None:
        self._taken = {name for scope in scopes(graph) for name in _names(scope)}

    def fresh(self, stem: str) -> str:
        name, count = stem, 1
        while name in self._taken:
            name, count = f"{stem}_{count}", count + 1
        self._taken.add(name)
        return name


def scopes(graph: GraphProto) -> Iterator[GraphProto]:
    """The graph and all bodies in it, outer ones first."""
    yield graph
    for node in graph.node:
        for body in bodies(node):
            yield from scopes(body)


def bodies(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def _names(graph: GraphProto) -> Iterator[str]:
    yield from (value.name for value in (*graph.input, *graph.output))
    yield from (tensor.name for tensor in graph.initializer)
    yield from (tensor.values.name for tensor in graph.sparse_initializer)
    for node in graph.node:
        yield node.name
        yield from node.input
        yield from node.output


def defined(graph: GraphProto) -> set[str]:
    """The names a graph gives: inputs, initializers, outputs of nodes."""
    found = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    return found | {name for node in graph.node for name in node.output}


def reads(node: NodeProto) -> list[str]:
    """What a node needs: its inputs, and what its bodies take from outside."""
    found = [name for name in node.input if name]
    for body in bodies(node):
        found += captured(body)
    return found


def captured(body: GraphProto) -> list[str]:
    own = defined(body)
    wanted = [name for node in body.node for name in reads(node)] + [value.name for value in body.output]
    return [name for name in dict.fromkeys(wanted) if name not in own]


def rename(nodes: Iterable[NodeProto], table: Mapping[str, str]) -> None:
    """Reads of the names in `table` read the new ones; bodies that give a name anew keep theirs."""
    if not table:
        return
    for node in nodes:
        for index, name in enumerate(node.input):
            if name in table:
                node.input[index] = table[name]
        for body in bodies(node):
            own = defined(body)
            rename(body.node, {old: new for old, new in table.items() if old not in own})
