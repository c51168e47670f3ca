"""Data flow of weights: follows every constant through the graph, from its storage to the nodes that use it.

A name in the graph stands for one of three things:

    Traced     one stored tensor, seen through Identity, Transpose, Reshape, Squeeze, Unsqueeze, Flatten, Cast,
               QuantizeLinear, DequantizeLinear, Dropout, scaling, or a constant 0/1 mask
    Computed   a constant that is not a plain view of one stored tensor (Concat, Slice, a sum ...)
    Varying    something that depends on the model's inputs, and on stored tensors that met them on the way
    None       something that depends on the model's inputs

Bodies of If, Loop and Scan see the names around them; a local function is walked once for each call, with its
arguments and attributes bound. What it does not do: run or infer anything; shapes of activations are not needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

from onnxsparse.errors import ModelError
from onnxsparse.graph.attributes import Attributes, Caller, IdentityKey, label, text
from onnxsparse.graph.edit import demand_bounded, every_tensor, functions_of, graphs_in, reads
from onnxsparse.graph.layout import Layout, Shape, size_of
from onnxsparse.graph.origins import Computed, Joined, Known, Part, Traced, Value, Varying, computed, tensors_of
from onnxsparse.graph.shape_values import Declared, Shapes, known, shape_of
from onnxsparse.graph.storage import WEIGHT_KINDS, StoredTensor
from onnxsparse.graph.stores import Container, Stores
from onnxsparse.graph.uses import Place, Uses
from onnxsparse.graph.view_operators import PASSING, cross, mask_of, parts_of
from onnxsparse.graph.weights import Weight

APPLYING = ("Mul", "Where")
UNARY = frozenset(("Neg", "Abs", "Round", "Cast", "Identity", "Floor", "Ceil", "Sqrt", "Exp", "Relu", "Tanh", "Sign"))
MOST_NODES = 200_000
DEEPEST_CALL = 60

ELEMENTWISE = frozenset(("Mul", "Div", "Add", "Sub", "Where", "Max", "Min", "Mod", "Pow"))
MOVING = PASSING | {
    "Split", "Slice", "Expand", "Tile", "Pad", "Gather", "GatherND", "ScatterND", "ScatterElements", "Compress", "Neg",
    "Concat", "SequenceConstruct", "SequenceAt", "SequenceInsert", "SequenceErase", "ConcatFromSequence", "ReduceSum",
    "ReduceMean", "Sum",
} | ELEMENTWISE  # fmt: skip
"""Operators whose result still is the weight that went in, moved or changed by a run-time value."""


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
    opset: int = 0
    arguments: dict[str, tuple[Scope, str]] = field(default_factory=dict)
    """What the inputs of a local function are called where it is called."""

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
        self._met_at: Counter[IdentityKey] = Counter()
        self._shapes = Shapes(proto)
        self._nodes_seen = 0
        self._calls: list[str] = []

    def walk(self) -> Flow:
        demand_bounded(self._proto, MOST_NODES, DEEPEST_CALL)
        self._graph(self._proto.graph, "", None, {}, [], _opset(self._proto))
        for tensor, other in self.stores.overlapping(every_tensor(self._proto)).items():
            weight = self._found.weight(tensor)
            weight.overlaps, weight.refusal = other, f"its bytes in the data file overlap those of '{other}'"
        for twins in self.stores.twins():
            weights = [self._found.weight(tensor) for tensor in twins]
            for weight in weights:
                weight.twins = [other for other in weights if other is not weight]
        self._found.settle()
        return self

    def calls_of(self, node: NodeProto) -> int:
        """How often a node that may apply a mask was met inside local functions: once for each call."""
        return self._met_at[IdentityKey(node)]

    def consumers(self, tensor: StoredTensor) -> Weight:
        """All uses of a stored tensor, whether it counts as a weight or not."""
        return self._found.weight(tensor)

    @property
    def weights(self) -> list[Weight]:
        return self._found.weights

    # -- scopes

    def _graph(
        self,
        graph: GraphProto,
        title: str,
        outer: Scope | None,
        caller: Caller,
        given: Sequence[Value],
        opset: int,
        unread: Collection[int] = (),
    ) -> list[Value]:
        scope = Scope(title, graph, outer, caller, opset=opset)
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
        for index, result in enumerate(results):
            # A state of a Loop is the body's input after that of its output: the number of the step comes before them.
            if index not in unread or not _handed_on(result, given[index + 1]):
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
        inner = Scope(title, function, None, self._bound(function, node, scope), opset=_opset(function) or scope.opset)
        for name, value in zip(function.input, given):
            inner.define(name, value)
        inner.arguments = {own: (scope, name) for own, name in zip(function.input, node.input) if name}
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
            if self._calls and node.op_type in APPLYING:
                self._met_at[IdentityKey(node)] += 1
            self._node(node, scope)

    # -- nodes

    def _node(self, node: NodeProto, scope: Scope) -> None:
        function = self._functions.get((text(node.domain), text(node.op_type), getattr(node, "overload", "")))
        if function is not None:
            self._call(function, node, scope)
            return
        found = [scope.find(name) if name else None for name in node.input]
        values = [None if isinstance(value, Varying) else value for value in found]
        varying = [value if isinstance(value, Varying) else None for value in found]
        attributes = Attributes(node, scope.caller)
        place = Place(node, values, attributes, scope.title, self._peek(scope), self._readers(scope), varying)
        taken = self._found.record(place)
        unread = self._unread(node, scope)
        bodies = self._bodies(node, found, attributes, scope, unread)
        results = _results_of_bodies(node, values, bodies, unread) if bodies else self._results(place, scope)
        self._found.note_others(node, values, taken, results)
        met = None if taken or bodies else self._met(place, found, scope)
        for index, name in enumerate(node.output):
            if name:
                result = results[index] if index < len(results) else None
                scope.define(name, met if result is None else result)

    def _met(self, place: Place, found: Sequence[Value], scope: Scope) -> Varying | None:
        """What comes out where stored tensors that may be weights meet run-time values.

        `sure` where the result is no larger than the tensors: then a weight was moved by a run-time value, and not an
        activation by a table.
        """
        node, values = place.node, place.values
        if node.op_type not in MOVING | UNARY or node.domain not in ("", "ai.onnx"):
            return None
        able = [
            value for value in values if value is not None and not isinstance(value, Known) and _may_be_weight(value)
        ]
        if node.op_type not in ELEMENTWISE | {"Concat", "Sum", "SequenceConstruct", "SequenceInsert"}:
            able = [value for value in able if value is values[0]]
        before = [value for value in place.varying if value is not None]
        tensors = tensors_of([*able, *before])
        if not tensors:
            return None
        why = next((value.why for value in before), f"{node.op_type}, where it meets a value known only at run time")
        others = [name for name, value in zip(node.input, found) if name and value is None]
        mixing = node.op_type in ELEMENTWISE | {"Concat", "Sum"}
        if before and (not others or not mixing):
            same = node.op_type in ELEMENTWISE | UNARY
            shape = next((value.shape for value in before), None) if same else None
            return Varying(tensors, why, all(value.sure for value in before), shape)
        largest = max(self._shapes_of_moved(place, able, before, scope), key=size_of, default=None)
        sizes = [self._size(name, scope) for name in others]
        most = 0 if largest is not None else sum(one.size for one in tensors)  # of a constant whose shape is not known
        fits = all(one is not None and (_fits(one, largest or ()) or 0 < _size_of(one) <= most) for one in sizes)
        sure = fits if mixing else not before
        return Varying(tensors, why, sure and all(value.sure for value in before), largest if fits else None)

    def _shapes_of_moved(
        self, place: Place, able: Sequence[Value], before: Sequence[Varying], scope: Scope
    ) -> Iterator[Shape]:
        """The shapes of what may be a weight, as they are followed or as the operators have them."""
        yield from (value.shape for value in before if value.shape is not None)
        for name, value in zip(place.node.input, place.values):
            if value is None or not any(value is one for one in able):
                continue
            sizes = self._size(name, scope) if value.shape is None else value.shape
            known = [size for size in sizes or () if size is not None]
            if sizes is not None and len(known) == len(sizes):
                yield tuple(known)

    def _size(self, name: str, scope: Scope) -> Sequence[int | None] | None:
        """The shape of a run-time value, where it is known; that of an argument is the caller's."""
        here: Scope | None = scope
        while here is not None:
            if name in here.arguments:
                return self._size(here.arguments[name][1], here.arguments[name][0])
            value = here.names.get(name)
            if isinstance(value, Varying) and value.shape is not None:
                return value.shape
            found = self._shapes.known(name, here.container)
            if found is not None:
                return found
            here = here.outer
        return None

    def _peek(self, scope: Scope) -> Callable[[str], Value]:
        """The value of a name where it is known, that of a Constant which comes later among them."""

        def peek(name: str) -> Value:
            value = scope.peek(name)
            if value is not None:
                return value
            later = next((node for node in scope.container.node if name in node.output), None)
            if later is None or later.op_type != "Constant":
                return None
            stored = self.stores.of_constant(later, Attributes(later, scope.caller), scope.title, scope.container)
            return Traced(stored, Layout.stored(stored.shape)) if stored else None

        return peek

    def _readers(self, scope: Scope) -> Callable[[str], list[NodeProto]]:
        """Who reads a name in a graph; the table is made when it is first asked for."""

        def readers(name: str) -> list[NodeProto]:
            if scope.readers is None:
                scope.readers = {}
                for node in scope.container.node:
                    for read in dict.fromkeys(reads(node)):
                        scope.readers.setdefault(read, []).append(node)
            return scope.readers.get(name, [])

        return readers

    def _bodies(
        self,
        node: NodeProto,
        values: Sequence[Value],
        attributes: Attributes,
        scope: Scope,
        unread: Collection[int] = (),
    ) -> list[list[Value]]:
        """Walk the bodies of a node; return what their outputs stand for."""
        results = []
        for name, attribute in attributes.table.items():
            if attribute is None:
                continue
            for graph in graphs_in(attribute):
                title = "/".join(part for part in (scope.title, label(node), name) if part)
                given = _body_inputs(node, values, graph, attributes, scope.opset)
                results.append(self._graph(graph, title, scope, scope.caller, given, scope.opset, unread))
        return results

    def _unread(self, node: NodeProto, scope: Scope) -> set[int]:
        """States of a Loop, by their place among its body's outputs, that nobody behind it reads: they end there."""
        if node.op_type != "Loop":
            return set()
        readers, handed = self._readers(scope), {getattr(one, "name", one) for one in scope.container.output}
        read = {at for at, name in enumerate(node.output, 1) if name and (readers(name) or name in handed)}
        return set(range(1, len(node.input) - 1)) - read

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
        shape = shape_of(node, values, attributes, self._declared(scope))
        if shape is not None:
            return shape
        given = [value for value in values if value is not None]
        if not given:
            return None
        if len(given) < len([name for name in node.input if name]):
            moved = values[0] is not None and (node.op_type in PASSING or node.op_type == "Slice")
            return computed(given[:1], f"{node.op_type} with inputs known only at run time") if moved else None
        found = known(node, values, attributes) or self._crossed(node, values, attributes, scope)
        return found or computed(given, node.op_type, _shape_of(node, given))

    def _declared(self, scope: Scope) -> Declared:
        return lambda name: self._shapes.of(name, scope.container)

    def _crossed(self, node: NodeProto, values: Sequence[Value], attributes: Attributes, scope: Scope) -> Value:
        crossing = cross(node, values, attributes)
        if crossing is None:
            return None
        value = crossing.value
        if isinstance(value, (Part, Joined)):
            return value
        if crossing.mask is not None:
            self.mask_sites.append(MaskSite(scope.container, node, crossing.source, value, crossing.mask))
            value = value.then(mask_of(crossing.mask, value))
        seen = node.op_type in value.crossed
        return value if seen else replace(value, crossed=(*value.crossed, node.op_type))


def _opset(owner: ModelProto | FunctionProto) -> int:
    return max((entry.version for entry in owner.opset_import if entry.domain in ("", "ai.onnx")), default=0)


def _may_be_weight(value: Traced | Computed) -> bool:
    tensors = [value.tensor] if isinstance(value, Traced) else value.tensors
    return any(tensor.size > 1 and tensor.kind in WEIGHT_KINDS for tensor in tensors)


def _shape_of(node: NodeProto, given: Sequence[Traced | Computed]) -> Shape | None:
    """The shape of what an element-wise operator makes of constants, where theirs are known."""
    if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        return given[0].shape
    shapes = [value.shape for value in given]
    known = [shape for shape in shapes if shape is not None]
    if node.op_type not in ELEMENTWISE | UNARY or len(known) < len(shapes):
        return None
    try:
        return tuple(np.broadcast_shapes(*known))
    except (ValueError, RuntimeError):  # more axes than numpy has
        return None


def _size_of(shape: Sequence[int | None]) -> int:
    """How many elements a shape has; 0 where that is not known."""
    return size_of([size or 0 for size in shape])


def _fits(shape: Sequence[int | None], constant: Sequence[int]) -> bool:
    """Whether a value broadcasts against a constant without enlarging it."""
    padded = [1] * (len(constant) - len(shape)) + list(shape)
    return len(padded) == len(constant) and all(have in (1, full) for have, full in zip(padded, constant))


def _results_of_bodies(
    node: NodeProto, values: Sequence[Value], bodies: list[list[Value]], unread: Collection[int]
) -> list[Value]:
    """An If that chooses between constants is a constant that nobody can follow, and so is what a loop hands out."""
    if node.op_type == "If":
        return [_chosen(branches) for branches in zip(*bodies)]
    first, skipped = (2, 1) if node.op_type == "Loop" else (0, 0)
    results: list[Value] = []
    for index, value in enumerate(bodies[0][skipped:] if bodies else []):
        started = values[first + index] if node.op_type == "Loop" and first + index < len(values) else None
        given = [one for one in (value, started) if one is not None]
        why = f"{node.op_type}, which hands it out"
        if index + skipped in unread and _handed_on(value, started):
            results.append(value)
        elif value is None or isinstance(value, Known):
            results.append(None)
        elif isinstance(value, Varying):
            results.append(value)
        else:
            results.append(computed(given, why))
    return results


def _handed_on(result: Value, state: Value) -> bool:
    """Whether a state of a loop is what it was before the step."""
    return isinstance(result, Traced) and isinstance(state, Traced) and result.key == state.key


def _chosen(branches: Sequence[Value]) -> Value:
    given = [value for value in branches if value is not None and not isinstance(value, Varying)]
    if len(given) == len(branches):
        return computed(given, "If")
    able = [value for value in given if not isinstance(value, Known) and _may_be_weight(value)]
    met = [value for value in branches if isinstance(value, Varying)]
    why = "If, whose other branch is known only at run time"
    return Varying(tensors_of([*able, *met]), why, not met or all(one.sure for one in met)) if able or met else None


def _body_inputs(
    node: NodeProto, values: Sequence[Value], graph: GraphProto, attributes: Attributes, opset: int
) -> list[Value]:
    """What the inputs of a body stand for: a state that every step hands on unchanged is the constant it started as."""
    if node.op_type == "Loop":
        states = [_state(value, graph, index, index - 1) for index, value in enumerate(values) if index > 1]
        return [None, None, *states]
    if node.op_type == "Scan" and opset < 9:  # sequence_lens comes first, and a batch axis stands before all others
        return [_piece(value, "the batches of Scan") for value in values[1:]]
    if node.op_type == "Scan":
        scanned = attributes.integer("num_scan_inputs")
        states = [_state(value, graph, index, index) for index, value in enumerate(values[: len(values) - scanned])]
        pieces = [_piece(value, "the steps of Scan") for value in values[len(states) :]]
        return [*states, *pieces]
    if node.op_type == "SequenceMap":
        return [_piece(value, "the elements of SequenceMap") for value in values]
    return [None] * len(graph.input)


def _piece(value: Value, why: str) -> Value:
    return value if value is None or isinstance(value, Varying) else computed([value], why)


def _state(value: Value, graph: GraphProto, given: int, result: int) -> Value:
    """What a state of a loop is in its body: the constant it starts as, where every step hands it on unchanged."""
    if value is None or given >= len(graph.input) or result >= len(graph.output):
        return None
    if isinstance(value, Varying):
        return value
    made_by = {name: node for node in graph.node for name in node.output}
    name = graph.output[result].name
    for _ in range(len(graph.node) + 1):
        node = made_by.get(name)
        if node is None or node.op_type != "Identity" or not node.input:
            break
        name = node.input[0]
    if name == graph.input[given].name:
        return value
    moved = not isinstance(value, Known) and _may_be_weight(value)
    return Varying(tensors_of([value]), "the steps of a loop, which change it", True) if moved else None
