"""Follows every constant through the graph, from where it is stored to the nodes that use it as a weight.

A name in the graph stands for one of three things:

    Traced     one stored tensor, seen through Identity, Transpose, Reshape, Squeeze, Unsqueeze, Flatten, Cast,
               QuantizeLinear, DequantizeLinear, Dropout, scaling, or a constant 0/1 mask
    Computed   a constant that is not a plain view of one stored tensor (Concat, Slice, a sum ...)
    None       something that depends on the model's inputs

Bodies of If, Loop and Scan see the names around them; a local function is walked once for each call, with its
arguments and attributes bound. What it does not do: run or infer anything; shapes of activations are not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

from onnxsparse.errors import ModelError
from onnxsparse.graph.attributes import Attributes, Caller, label, text
from onnxsparse.graph.crossings import PASSING, cross, mask_of, parts_of
from onnxsparse.graph.every import demand_bounded, every_tensor, functions_of
from onnxsparse.graph.integers import known, shape_of
from onnxsparse.graph.layout import Layout
from onnxsparse.graph.storage import StoredTensor
from onnxsparse.graph.stores import Container, Stores
from onnxsparse.graph.traced import Computed, Joined, Part, Traced, Value, computed
from onnxsparse.graph.uses import Place, Uses
from onnxsparse.graph.weights import Weight

MOST_NODES = 200_000
DEEPEST_CALL = 60


@dataclass(frozen=True, eq=False)
class MaskSite:
    """A node that multiplies a stored tensor with a constant 0/1 mask."""

    container: Container
    node: NodeProto
    weight_input: int
    weight: Traced
    mask: Traced


@dataclass(eq=False)
class Scope:
    """The names of one graph or function body, and those around it."""

    title: str
    container: Container
    outer: Scope | None
    caller: Caller
    names: dict[str, Value] = field(default_factory=dict)
    readers: dict[str, list[NodeProto]] | None = None
    shapes: dict[str, tuple[int | None, ...]] | None = None

    def declared(self, name: str) -> tuple[int | None, ...] | None:
        """The shape that the file declares for a value of this graph; free sizes are None."""
        if self.shapes is None:
            values = (self.container.value_info, getattr(self.container, "input", ()))
            tensors = [(one.name, one.type.tensor_type) for each in values for one in each if hasattr(one, "type")]
            self.shapes = {
                name: tuple(dim.dim_value if dim.dim_value > 0 else None for dim in kind.shape.dim)
                for name, kind in tensors
                if kind.HasField("shape")
            }
        return self.shapes.get(name)

    def peek(self, name: str) -> Value:
        """The value of a name, where it is known already."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        return None

    def find(self, name: str) -> Value:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        raise ModelError(self._unknown(name))

    def _unknown(self, name: str) -> str:
        where = f" in {self.title}" if self.title else ""
        if any(name in node.output for node in self.container.node):
            return f"tensor '{name}'{where} is used before it is made: the graph is cyclic or its nodes are not sorted"
        return f"tensor '{name}'{where} is used, but no node, input or initializer makes it"

    def define(self, name: str, value: Value) -> None:
        if text(name) in self.names:
            where = f" in {self.title}" if self.title else ""
            raise ModelError(f"tensor '{name}'{where} is made twice; names must be unique")
        self.names[name] = value


class Flow:
    """One walk over a model; `weights` and `mask_sites` are what it found."""

    def __init__(self, proto: ModelProto, stores: Stores) -> None:
        self._proto, self.stores = proto, stores
        self._functions = functions_of(proto)
        self._found = Uses(stores)
        self.mask_sites: list[MaskSite] = []
        self._nodes_seen = 0
        self._calls: list[str] = []

    def walk(self) -> Flow:
        demand_bounded(self._proto, MOST_NODES, DEEPEST_CALL)
        self._graph(self._proto.graph, "", None, {}, [])
        for tensor, other in self.stores.overlapping(every_tensor(self._proto)).items():
            self._found.weight(tensor).refusal = f"its bytes in the data file overlap those of '{other}'"
        self._found.settle()
        for twins in self.stores.twins():
            weights = [self._found.weight(tensor) for tensor in twins]
            for weight in weights:
                weight.twins = [other for other in weights if other is not weight]
        return self

    def consumers(self, tensor: StoredTensor) -> Weight:
        """All uses of a stored tensor, whether it counts as a weight or not."""
        return self._found.weight(tensor)

    @property
    def weights(self) -> list[Weight]:
        return self._found.weights

    # -- scopes

    def _graph(
        self, graph: GraphProto, title: str, outer: Scope | None, caller: Caller, given: Sequence[Value]
    ) -> list[Value]:
        scope = Scope(title, graph, outer, caller)
        for tensor in graph.initializer:
            stored = self.stores.of(tensor, tensor.name, title, "initializer", graph)
            scope.define(tensor.name, Traced(stored, Layout.stored(stored.shape)))
        for sparse in graph.sparse_initializer:
            stored = self.stores.of_sparse(sparse, title, graph)
            scope.define(stored.name, Computed(frozenset({stored}), "sparse_initializer"))
        for index, entry in enumerate(graph.input):
            if entry.name not in scope.names:
                scope.define(entry.name, given[index] if index < len(given) else None)
        self._body(graph.node, scope)
        results = [scope.find(entry.name) if entry.name else None for entry in graph.output]
        for result in results:
            self._found.consume(result, "a graph output")
        return results

    def _call(self, function: FunctionProto, node: NodeProto, scope: Scope) -> None:
        title = f"function {function.domain}:{function.name}"
        if len(self._calls) >= DEEPEST_CALL or title in self._calls:
            raise ModelError(
                f"{title} calls itself"
                if title in self._calls
                else f"local functions are nested deeper than {DEEPEST_CALL}"
            )
        self._calls.append(title)
        given = [scope.find(name) if name else None for name in node.input]
        given += [None] * (len(function.input) - len(given))
        inner = Scope(title, function, None, self._bound(function, node, scope))
        for name, value in zip(function.input, given):
            inner.define(name, value)
        self._body(function.node, inner)
        self._calls.pop()
        results = [inner.find(name) for name in function.output]
        for index, name in enumerate(node.output):
            if name:
                scope.define(name, results[index] if index < len(results) else None)

    def _bound(self, function: FunctionProto, node: NodeProto, scope: Scope) -> dict[str, AttributeProto | None]:
        bound: dict[str, AttributeProto | None] = {default.name: default for default in function.attribute_proto}
        bound.update(Attributes(node, scope.caller).table)
        return bound

    def _body(self, nodes: Iterable[NodeProto], scope: Scope) -> None:
        for node in nodes:
            self._nodes_seen += 1
            if self._nodes_seen > MOST_NODES:
                raise ModelError(f"the model has more than {MOST_NODES} nodes once its functions are called; refused")
            self._node(node, scope)

    # -- nodes

    def _node(self, node: NodeProto, scope: Scope) -> None:
        function = self._functions.get((text(node.domain), text(node.op_type), getattr(node, "overload", "")))
        if function is not None:
            self._call(function, node, scope)
            return
        values = [scope.find(name) if name else None for name in node.input]
        attributes = Attributes(node, scope.caller)
        place = Place(node, values, attributes, scope.title, scope.peek, self._readers(scope))
        taken = self._found.record(place)
        bodies = self._bodies(node, values, attributes, scope)
        results = _results_of_bodies(node, bodies) if bodies else self._results(place, scope)
        if not any(results):
            self._found.note_others(node, values, taken)
        for index, name in enumerate(node.output):
            if name:
                scope.define(name, results[index] if index < len(results) else None)

    def _readers(self, scope: Scope) -> Callable[[str], list[NodeProto]]:
        """Who reads a name in a graph; the table is made when it is first asked for."""

        def readers(name: str) -> list[NodeProto]:
            if scope.readers is None:
                scope.readers = {}
                for node in scope.container.node:
                    for read in dict.fromkeys(node.input):
                        scope.readers.setdefault(read, []).append(node)
            return scope.readers.get(name, [])

        return readers

    def _bodies(
        self, node: NodeProto, values: Sequence[Value], attributes: Attributes, scope: Scope
    ) -> list[list[Value]]:
        """Walk the bodies of a node; return what their outputs stand for."""
        results = []
        for name, attribute in attributes.table.items():
            if attribute is None:
                continue
            graphs = [attribute.g] if attribute.type == AttributeProto.GRAPH else list(attribute.graphs)
            for graph in graphs:
                title = "/".join(part for part in (scope.title, label(node), name) if part)
                given = _body_inputs(node, values, graph, attributes)
                results.append(self._graph(graph, title, scope, scope.caller, given))
        return results

    def _results(self, place: Place, scope: Scope) -> list[Value]:
        """What the outputs of a node stand for."""
        node, values = place.node, place.values
        if node.op_type == "Split" and node.domain in ("", "ai.onnx"):
            parts = parts_of(node, place.value(0), place.value(1), place.attributes)
            if parts:
                return parts
        result = self._result(node, values, place.attributes, scope)
        return [result] * len(node.output) if isinstance(result, Computed) else [result]

    def _result(self, node: NodeProto, values: Sequence[Value], attributes: Attributes, scope: Scope) -> Value:
        if node.domain in ("", "ai.onnx") and node.op_type == "Constant":
            stored = self.stores.of_constant(node, attributes, scope.title, scope.container)
            return Traced(stored, Layout.stored(stored.shape)) if stored else None
        shape = shape_of(node, values, attributes, scope.declared)
        if shape is not None:
            return shape
        given = [value for value in values if value is not None]
        if not given:
            return None
        if len(given) < len([name for name in node.input if name]):
            moved = values[0] is not None and (node.op_type in PASSING or node.op_type == "Slice")
            return computed(given[:1], f"{node.op_type} with inputs known only at run time") if moved else None
        found = known(node, values, attributes)
        return found or self._crossed(node, values, attributes, scope) or computed(given, node.op_type)

    def _crossed(self, node: NodeProto, values: Sequence[Value], attributes: Attributes, scope: Scope) -> Value:
        crossing = cross(node, values, attributes)
        if crossing is None:
            return None
        value = crossing.value
        if isinstance(value, (Part, Joined)):
            return value
        if crossing.mask is not None:
            self.mask_sites.append(MaskSite(scope.container, node, crossing.source, value, crossing.mask))
            value = replace(value, masks=(*value.masks, mask_of(crossing.mask, value)))
        seen = node.op_type in value.crossed
        return value if seen else replace(value, crossed=(*value.crossed, node.op_type))


def _results_of_bodies(node: NodeProto, bodies: list[list[Value]]) -> list[Value]:
    """An If that chooses between constants is a constant that nobody can follow; a loop's results depend on its run."""
    if node.op_type != "If":
        return []
    results: list[Value] = []
    for branches in zip(*bodies):
        given = [value for value in branches if value is not None]
        results.append(computed(given, "If") if len(given) == len(branches) else None)
    return results


def _body_inputs(node: NodeProto, values: Sequence[Value], graph: GraphProto, attributes: Attributes) -> list[Value]:
    """What the inputs of a body stand for: a state that every step hands on unchanged is the constant it started as."""
    if node.op_type == "Loop":
        states = [_state(value, graph, index, index - 1) for index, value in enumerate(values) if index > 1]
        return [None, None, *states]
    if node.op_type == "Scan":
        scanned = attributes.integer("num_scan_inputs")
        states = [_state(value, graph, index, index) for index, value in enumerate(values[: len(values) - scanned])]
        pieces = [computed([value], "the steps of Scan") if value else None for value in values[len(states) :]]
        return [*states, *pieces]
    return [None] * len(graph.input)


def _state(value: Value, graph: GraphProto, given: int, result: int) -> Value:
    if value is None or given >= len(graph.input) or result >= len(graph.output):
        return None
    made_by = {name: node for node in graph.node for name in node.output}
    name = graph.output[result].name
    for _ in range(len(graph.node) + 1):
        node = made_by.get(name)
        if node is None or node.op_type != "Identity" or not node.input:
            break
        name = node.input[0]
    return value if name == graph.input[given].name else None
