"""Constant evaluation, a second opinion on weights: from the stored tensors to the nodes that consume them.

`flow` follows a tensor by rules of its own (layouts, masks, scales); what it forgets would be wrong in silence. Here
each operator is evaluated by its meaning, each call of a function by its own arguments, and each body on its own. The
two share the file reader, the nodes' attributes and the table of operators' slots and axes, and no conclusion.

An `Arrival` is one input of one node in one call where a constant comes to something that is not evaluated:

1. A node with an input that only a run knows, one that reads weights, or one whose operator is not known here.
2. An output of a graph or of a body.
They come in the order of the nodes. A node that applies a mask is evaluated, so a model has the same arrivals before
and after masks are put in or folded, one for one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

from onnxsparse.graph.attributes import Attributes, Caller, label
from onnxsparse.graph.constant_operators import (
    BLENDS,
    HOLE,
    MOVEMENTS,
    PARTLY,
    Call,
    UnclearError,
    declared_shape,
    known_operator,
    results,
)
from onnxsparse.graph.constants import Constant, Known, Literal, NoNumbersError, Stored, Tensors, Unknown
from onnxsparse.graph.edit import graphs_in
from onnxsparse.graph.operators import REFUSED, Arrangement, Slot, slots_of
from onnxsparse.graph.storage import FLOAT_KINDS, PACKED_KINDS, StoredTensor, kind_of
from onnxsparse.graph.stores import Container, Stores

ONNX = ("", "ai.onnx")


@dataclass(eq=False)
class Arrival:
    """A constant at one input of one node, in one call."""

    op: str
    node: str
    index: int
    scope: str
    calls: tuple[str, ...]
    value: Constant | Unknown
    source: NodeProto | None = None
    slot: Slot | None = None
    attributes: Attributes | None = None
    zeros: list[Known] = field(default_factory=list)
    """The zero points that an operator on integers, or what dequantises a looked-up row, reads it with."""
    counterpart: bool = False
    """The other factor is a constant too, so this one is rather what flows through the model."""

    @property
    def tensors(self) -> Tensors:
        return self.value.tensors

    @property
    def where(self) -> str:
        called = f", called by '{self.calls[-1]}'" if self.calls else ""
        return f"{self.op} '{self.node}'{called}" if self.op else f"output '{self.node}'{called}"

    @property
    def unknown(self) -> str:
        """Why its numbers cannot be told."""
        return self.value.reason if isinstance(self.value, Unknown) else ""

    def arranged(self) -> Arrangement | str:
        """Its axes by role, or why they have none."""
        if self.slot is None or self.attributes is None or isinstance(self.value, Unknown):
            return "no weight"
        return self.slot.arrange(self.value.shape, self.attributes)

    def matrix(self, value: Constant) -> Constant | None:
        """A value of its shape as (group, out, reduce, tap)."""
        found = self.arranged()
        if isinstance(found, str):
            return None
        roles = (found.group, found.out, found.reduce, found.tap)
        sizes = [int(np.prod([found.shape[axis] for axis in role], dtype=np.int64)) for role in roles]
        cut = value.reshaped(found.shape)
        turned = cut.moved(lambda window: window.transposed([axis for role in roles for axis in role]))
        return turned.reshaped(sizes)

    def zero_matrices(self) -> list[Constant] | str:
        """What stands for zero, each as a matrix like its own; or why that cannot be told."""
        if isinstance(self.value, Unknown) or self.value.kind not in _INTEGERS:
            return []
        if self.slot is not None and self.slot.family == "Embedding" and not self.zeros:
            return "its zero point is not known where it is looked up"
        found = [self._zero(zero) for zero in self.zeros]
        if any(isinstance(one, str) for one in found):
            return next(one for one in found if isinstance(one, str))
        return [one for one in found if isinstance(one, Constant)]

    def _zero(self, zero: Known) -> Constant | str:
        found = self.aligned(zero)
        return found if isinstance(found, str) else self.matrix(found) or "no weight"

    def aligned(self, zero: Known) -> Constant | str:
        """A zero point in the shape of the value that it belongs to."""
        arrangement = self.arranged()
        if isinstance(self.value, Unknown) or isinstance(arrangement, str) or self.slot is None:
            return "no weight"
        if not isinstance(zero, Constant):
            return zero.reason if zero is not None else "its zero point is known only at run time"
        shape = self.value.shape
        found = _beside(zero, shape, 0 if len(arrangement.shape) != len(shape) else arrangement.out[0], self.slot)
        return found if isinstance(found, str) else found.spread(shape)


_INTEGERS = (*PACKED_KINDS, "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


def _beside(zero: Constant, shape: Sequence[int], out: int, slot: Slot) -> Constant | str:
    """A zero point as it broadcasts against the value it belongs to."""
    rank = len(shape)
    if zero.size == 1:
        return zero.reshaped(())
    if slot.family == "Recurrent" and rank == 3 and zero.shape in ((shape[0],), (shape[0], shape[out])):
        long = shape[out] if len(zero.shape) == 2 else 1
        return zero.reshaped([shape[0], *(long if at == out else 1 for at in (1, 2))])
    if len(zero.shape) == 1 and zero.shape[0] == shape[out]:
        return zero.reshaped([shape[out] if at == out else 1 for at in range(rank)])
    if len(zero.shape) == rank and all(have in (1, full) for have, full in zip(zero.shape, shape)):
        return zero
    return "its zero point does not follow one of its axes"


@dataclass(eq=False)
class Scope:
    """The names of one graph or function body, and those around it."""

    title: str
    container: Container
    outer: Scope | None
    caller: Caller
    opsets: dict[str, int]
    calls: tuple[str, ...]
    names: dict[str, Known] = field(default_factory=dict)
    looked: dict[str, Arrival] = field(default_factory=dict)
    """Rows of integer tables that were looked up: what they are is told by who dequantises them."""
    shapes: dict[str, tuple[int | None, ...]] | None = None

    def find(self, name: str) -> Known:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        return None

    def opset(self, domain: str) -> int:
        return self.opsets.get("" if domain == "ai.onnx" else domain, 1)

    def declared(self, name: str) -> tuple[int | None, ...] | None:
        """The shape that the file declares for a value; free sizes are None."""
        if self.shapes is None:
            entries = [*getattr(self.container, "input", ()), *self.container.value_info]
            found = [(one.name, one.type.tensor_type) for one in entries if hasattr(one, "type")]
            self.shapes = {
                name: tuple(dim.dim_value if dim.dim_value > 0 else None for dim in kind.shape.dim)
                for name, kind in found
                if kind.HasField("shape")
            }
        return self.shapes.get(name)


def _opsets(imports: Iterable[object]) -> dict[str, int]:
    found = {str(getattr(one, "domain", "")): int(getattr(one, "version", 1)) for one in imports}
    return {"" if domain == "ai.onnx" else domain: version for domain, version in found.items()}


class Evaluator:
    """One evaluation of a model; `arrivals` is what it found."""

    def __init__(self, proto: ModelProto, stores: Stores) -> None:
        self._proto, self._stores = proto, stores
        self._functions = {(f.domain, f.name, getattr(f, "overload", "")): f for f in proto.functions}
        self._constants: dict[StoredTensor, Constant | Unknown] = {}
        self.arrivals: list[Arrival] = []
        self._graph(proto.graph, "", None, {}, [], _opsets(proto.opset_import), ())

    def of(self, tensor: StoredTensor) -> list[Arrival]:
        """Where a stored tensor arrives."""
        return [arrival for arrival in self.arrivals if tensor in arrival.tensors]

    def by_tensor(self) -> dict[StoredTensor, list[Arrival]]:
        found: dict[StoredTensor, list[Arrival]] = {}
        for arrival in self.arrivals:
            for tensor in arrival.tensors:
                found.setdefault(tensor, []).append(arrival)
        return found

    def hold(self, tensor: StoredTensor) -> None:
        """Keep the numbers of a tensor as they are now."""
        found = self._constants.get(tensor)
        if isinstance(found, Constant):
            found.source.hold()

    # -- scopes

    def _stored(self, tensor: StoredTensor) -> Constant | Unknown:
        found = self._constants.get(tensor)
        if found is None:
            constant = Constant.of(Stored(tensor))
            why = tensor.problem or f"it is stored as {tensor.kind}"
            found = self._constants[tensor] = constant if tensor.readable else Unknown(why, (constant,))
        return found

    def _graph(
        self,
        graph: GraphProto,
        title: str,
        outer: Scope | None,
        caller: Caller,
        given: Sequence[Known],
        opsets: dict[str, int],
        calls: tuple[str, ...],
    ) -> list[Known]:
        scope = Scope(title, graph, outer, caller, opsets, calls)
        for tensor in graph.initializer:
            scope.names[tensor.name] = self._stored(self._stores.of(tensor, tensor.name, title, "initializer", graph))
        for sparse in graph.sparse_initializer:
            stored = self._stores.of_sparse(sparse, title, graph)
            scope.names[stored.name] = self._stored(stored)
        for index, entry in enumerate(graph.input):
            if entry.name not in scope.names:
                scope.names[entry.name] = given[index] if index < len(given) else None
        for node in graph.node:
            self._node(node, scope)
        found = [scope.find(entry.name) if entry.name else None for entry in graph.output]
        for index, (entry, value) in enumerate(zip(graph.output, found)):
            if value is not None and value.tensors and not _late(value):
                self.arrivals.append(Arrival("", entry.name, index, title, calls, value))
        return found

    def _call(self, function: FunctionProto, node: NodeProto, scope: Scope) -> None:
        given = [scope.find(name) if name else None for name in node.input]
        given += [None] * (len(function.input) - len(given))
        bound: dict[str, AttributeProto | None] = {one.name: one for one in function.attribute_proto}
        bound.update(Attributes(node, scope.caller).table)
        title = f"function {function.domain}:{function.name}"
        calls = (*scope.calls, label(node))
        inner = Scope(title, function, None, bound, _opsets(function.opset_import) or scope.opsets, calls)
        inner.names.update(zip(function.input, given))
        for index, name in enumerate(node.input):
            if name in scope.looked and index < len(function.input):
                inner.looked[function.input[index]] = scope.looked[name]
        for one in function.node:
            self._node(one, inner)
        for index, name in enumerate(node.output):
            if name:
                scope.names[name] = inner.find(function.output[index]) if index < len(function.output) else None
                if index < len(function.output) and function.output[index] in inner.looked:
                    scope.looked[name] = inner.looked[function.output[index]]

    # -- nodes

    def _node(self, node: NodeProto, scope: Scope) -> None:
        function = self._functions.get((node.domain, node.op_type, getattr(node, "overload", "")))
        if function is not None:
            self._call(function, node, scope)
            return
        values = [scope.find(name) if name else None for name in node.input]
        attributes = Attributes(node, scope.caller)
        late = any(name and (value is None or _late(value)) for name, value in zip(node.input, values))
        evaluated = not late and known_operator(node.domain, node.op_type)
        self._arrive(node, values, attributes, scope, evaluated)
        self._dequantised(node, values, scope)
        bodies = self._bodies(node, values, attributes, scope)
        if bodies:
            found = _of_bodies(node, values, bodies)
        else:
            found = self._results(node, values, attributes, scope, late, evaluated)
        for index, name in enumerate(node.output):
            if name:
                scope.names[name] = found[index] if index < len(found) else None

    def _arrive(
        self, node: NodeProto, values: Sequence[Known], attributes: Attributes, scope: Scope, evaluated: bool
    ) -> None:
        slots = {slot.index: slot for slot in slots_of(node.domain, node.op_type)}
        if evaluated and not slots:
            return
        domain = "" if node.domain in ONNX else node.domain
        refused = REFUSED.get((domain, node.op_type), ((), ""))[0]
        for index, value in enumerate(values):
            if value is None or not value.tensors or (evaluated and index not in slots):
                continue
            if _late(value) and index not in slots and index not in refused:
                continue
            slot = slots.get(index)
            found = Arrival(node.op_type, label(node), index, scope.title, scope.calls, value, node, slot, attributes)
            if slot is not None:
                self._read_as_weight(found, slot, slots, node, values, scope)
            self.arrivals.append(found)

    def _read_as_weight(
        self,
        arrival: Arrival,
        slot: Slot,
        slots: dict[int, Slot],
        node: NodeProto,
        values: Sequence[Known],
        scope: Scope,
    ) -> None:
        others = [values[index] for index in slots if index != slot.index and index < len(values)]
        arrival.counterpart = any(other is not None and not _late(other) for other in others)
        if isinstance(arrival.value, Unknown) or arrival.value.kind not in _INTEGERS:
            return
        if slot.family == "Embedding":
            if node.output:
                scope.looked[node.output[0]] = arrival
            return
        at = slot.zero_point
        if at is None or at >= len(node.input) or not node.input[at]:
            arrival.zeros.append(Constant.literal(np.zeros((), np.int8)))
        else:
            arrival.zeros.append(values[at])

    def _dequantised(self, node: NodeProto, values: Sequence[Known], scope: Scope) -> None:
        """Whoever dequantises a row that was looked up says what its zero is."""
        for index, name in enumerate(node.input):
            arrival = scope.looked.get(name) if name else None
            if arrival is None:
                continue
            if node.op_type == "DequantizeLinear" or node.op_type.startswith("QLinear"):
                at = index + 2
                given = at < len(node.input) and bool(node.input[at])
                arrival.zeros.append(values[at] if given else Constant.literal(np.zeros((), np.int8)))
            elif node.op_type == "Cast" and kind_of(Attributes(node, scope.caller).integer("to")) in FLOAT_KINDS:
                arrival.zeros.append(Constant.literal(np.zeros((), np.int8)))
            elif node.op_type in ("Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten") and not index:
                scope.looked[node.output[0]] = arrival

    def _results(
        self,
        node: NodeProto,
        values: Sequence[Known],
        attributes: Attributes,
        scope: Scope,
        late: bool,
        evaluated: bool,
    ) -> Sequence[Known]:
        count = len(node.output)
        if node.domain in ONNX and node.op_type == "Constant":
            stored = self._stores.of_constant(node, attributes, scope.title, scope.container)
            return [self._stored(stored)] if stored else []
        call = Call(node.op_type, values, attributes, scope.opset(node.domain), count)
        if late:
            return self._late_results(node, call, scope)
        if any(isinstance(value, Constant) and _partial(value) for value in values):
            return _whole_or_partial(call) if node.op_type in PARTLY and evaluated else []
        given = tuple(value for value in values if value is not None)
        if evaluated:
            try:
                return results(call)
            except UnclearError as why:
                return [Unknown(str(why), given)] * count
        if not given:
            return []
        reason = next((one.reason for one in given if isinstance(one, Unknown)), "")
        return [Unknown(reason or f"{node.op_type}, which is not evaluated here", given)] * count

    def _late_results(self, node: NodeProto, call: Call, scope: Scope) -> Sequence[Known]:
        """What is known of a result that depends on the run: a declared shape; or whose numbers it still are."""
        if node.domain in ONNX and node.op_type == "Shape" and node.input and call.inputs[0] is None:
            sizes = scope.declared(node.input[0])
            return [declared_shape(sizes, call)] if sizes is not None else []
        kept: tuple[Constant | Unknown, ...] = ()
        if node.op_type in MOVEMENTS and known_operator(node.domain, node.op_type):
            first = call.inputs[0] if call.inputs else None
            kept = (first,) if first is not None and first.tensors else ()
        elif node.op_type in BLENDS and node.domain in ONNX:
            kept = tuple(value for value in call.inputs if value is not None and value.matrix)
        if not kept or node.op_type == "Gather":
            return []
        reason = next((one.reason for one in kept if isinstance(one, Unknown)), "")
        return [Unknown(reason or f"{node.op_type} with inputs known only at run time", kept, late=True)] * call.outputs

    # -- bodies

    def _bodies(
        self, node: NodeProto, values: Sequence[Known], attributes: Attributes, scope: Scope
    ) -> list[list[Known]]:
        found = []
        for name, attribute in attributes.table.items():
            if attribute is None:
                continue
            for graph in graphs_in(attribute):
                title = "/".join(part for part in (scope.title, label(node), name) if part)
                given = _body_inputs(node, values, graph, attributes, scope.opset(node.domain))
                found.append(self._graph(graph, title, scope, scope.caller, given, scope.opsets, scope.calls))
        return found


def _late(value: Known) -> bool:
    return isinstance(value, Unknown) and value.late


def _partial(value: Constant) -> bool:
    """A list of sizes of which some are known only at run time."""
    if value.tensors or value.kind != "int64" or value.size > 1024:
        return False
    return isinstance(value.source, Literal) and bool((value.numbers() == HOLE).any())


def _whole_or_partial(call: Call) -> Sequence[Known]:
    try:
        return [Constant.literal(np.array(one.numbers()), one.kind) for one in results(call)]
    except (UnclearError, NoNumbersError):
        return []


def _of_bodies(node: NodeProto, values: Sequence[Known], bodies: list[list[Known]]) -> Sequence[Known]:
    """An If chooses between its branches; a loop hands out what it began with, or what its body makes."""
    if node.op_type == "If":
        return [_blend("the choice of If", list(branches)) for branches in zip(*bodies)]
    made = bodies[0]
    if node.op_type == "Loop":
        starts: Sequence[Known] = values[2:]
        made = made[1:]
    else:
        starts = ()
    found: list[Known] = []
    for index in range(len(node.output)):
        given = [one[index] for one in (starts, made) if index < len(one)]
        found.append(_blend(f"the steps of {node.op_type}", [*given, None]))
    return found


def _blend(why: str, values: Sequence[Known]) -> Known:
    """A value that is one of several, as a run decides."""
    given = [value for value in values if value is not None and value.tensors]
    return Unknown(why, given, late=len(given) < len(values) or any(map(_late, given))) if given else None


def _body_inputs(
    node: NodeProto, values: Sequence[Known], graph: GraphProto, attributes: Attributes, opset: int
) -> list[Known]:
    """What the inputs of a body stand for: a state that every step hands on unchanged is what it started as."""
    if node.op_type == "Loop":
        return [None, None, *(_state(value, graph, at, at - 1) for at, value in enumerate(values) if at > 1)]
    if node.op_type == "Scan":
        early = opset < 9
        given = list(values[1:]) if early else list(values)
        count = len(given) - attributes.integer("num_scan_inputs")
        states = [_state(value, graph, at, at) for at, value in enumerate(given[:count])]
        states = [_step(value, "a sample of Scan") for value in states] if early else states
        return [*states, *(_step(value, "the steps of Scan") for value in given[count:])]
    if node.op_type == "SequenceMap":
        return [_step(value, "the elements of a sequence") if not at else value for at, value in enumerate(values)]
    return []


def _step(value: Known, why: str) -> Known:
    return None if value is None or not value.tensors else Unknown(why, (value,), late=_late(value))


def _state(value: Known, graph: GraphProto, given: int, result: int) -> Known:
    if value is None or given >= len(graph.input) or result >= len(graph.output):
        return None
    made_by = {name: node for node in graph.node for name in node.output}
    name = graph.output[result].name
    for _ in range(len(graph.node) + 1):
        node = made_by.get(name)
        if node is None or node.op_type != "Identity" or node.domain not in ONNX or not node.input:
            break
        name = node.input[0]
    kept = name == graph.input[given].name
    return value if kept else _step(value, "a state that changes from step to step")
