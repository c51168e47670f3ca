"""Every tensor of a model, wherever it stands: in bodies, functions, attributes and training graphs too.

And how much a model comes to once its local functions are called, which a small file can make very much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from onnxsparse.errors import ModelError
from onnxsparse.graph.attributes import text
from onnxsparse.graph.edit import bodies, graphs_in

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
