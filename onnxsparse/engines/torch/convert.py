"""`to_module`: converts an ONNX file to a `torch.fx.GraphModule`, a node at a time.

1. Every node becomes one call of the plain function of its operator; nothing is folded, so shapes stay dynamic.
2. Bodies of If, Loop and Scan are child modules; what they read from around them is handed to them. Local functions are
   written out where they are called.
3. Lists of integers that the file stores are written into the calls; other stored tensors are parameters or buffers.
   What is written there, or says a size, is no parameter, though a weight slot may read it, too: exporters store equal
   numbers once.
4. What is one tensor in the file is one tensor in the module, however many nodes read it.
What it does not do: infer shapes, run anything, or change the file.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

from onnxsparse.engines.fake_quantization import FakeQuantize, is_fake
from onnxsparse.engines.torch import operators
from onnxsparse.engines.torch.error_messages import ONNX
from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.operators import Function
from onnxsparse.engines.torch.parameters import Child, Draft, Pool, Sources, Value, materialize, onward, own, reached
from onnxsparse.engines.torch.supported_operators import LAST_OPSET, demand_support, domain_of, function_key, opsets_of
from onnxsparse.errors import ModelError
from onnxsparse.graph.attributes import Attributes, Caller, label, text
from onnxsparse.graph.biases_and_scales import SIZES
from onnxsparse.graph.edit import functions_of
from onnxsparse.graph.model import Model, Source
from onnxsparse.graph.storage import StoredTensor
from onnxsparse.graph.stores import Container


def to_module(source: Source | Model, *, train_bn: bool = False) -> Any:
    """The model as a trainable module; `train_bn` lets batch normalizations follow the statistics of the batches."""
    model = opened(source)
    demand_support(model.proto)
    return Conversion(model, train_bn).module()


def opened(source: Source | Model) -> Model:
    """To read only: a ModelProto of the caller's is not copied."""
    torch()
    if isinstance(source, Model):
        return source
    return Model.over(source) if isinstance(source, ModelProto) else Model.open(source)


@dataclass(eq=False)
class Scope:
    """The names of one graph or function; bodies see those around them."""

    draft: Draft
    container: Container
    title: str
    opsets: dict[str, int]
    caller: Caller = field(default_factory=dict)
    around: Scope | None = None
    names: dict[str, Value] = field(default_factory=dict)

    def find(self, name: str) -> Value:
        if name not in self.names:
            if self.around is None:
                raise ModelError(f"tensor '{name}' is used, but no node, input or initializer makes it")
            outer = self.around.find(name)
            self.names[name] = Value(outer.sources, stored=outer.stored, outer=outer, name=name)
        return self.names[name]

    def values(self, names: Iterable[str]) -> list[Value | None]:
        return [self.find(name) if name else None for name in names]


class Conversion:
    """One walk over a model."""

    def __init__(self, model: Model, train_bn: bool) -> None:
        self._model, self._train_bn = model, train_bn
        self._stores = model.flow.stores
        self._functions = functions_of(model.proto)
        self._parameters: set[StoredTensor] = set()
        self._sizes: set[StoredTensor] = set()

    def module(self) -> Any:
        graph = self._model.proto.graph
        scope = Scope(Draft(), graph, "", opsets_of(self._model.proto))
        self.graph(graph, scope)
        stored = {tensor.name for tensor in graph.initializer}
        inputs = [entry.name for entry in graph.input if entry.name not in stored]
        pool = Pool(self._parameters - self._sizes, self._stores)
        return materialize(scope.draft, pool, inputs, [entry.name for entry in graph.output], self._train_bn)

    def graph(self, graph: GraphProto, scope: Scope, given: Sequence[Sources] = ()) -> list[Sources]:
        """Write a graph into its draft; return what its outputs are made of, as `given` says of its inputs."""
        if graph.sparse_initializer:
            raise ModelError("the model has sparse initializers; store them dense first")
        for tensor in graph.initializer:
            stored = self._stores.of(tensor, tensor.name, scope.title, "initializer", graph)
            scope.names[tensor.name] = Value(own(stored), stored=stored)
        for index, entry in enumerate(graph.input):
            if entry.name not in scope.names:
                sources = given[index] if index < len(given) else None
                scope.names[entry.name] = Value(sources, scope.draft.input(entry.name))
        self._nodes(graph.node, scope)
        found = [scope.find(entry.name) for entry in graph.output]
        results = tuple(scope.draft.node(value) for value in found)
        scope.draft.graph.output(results[0] if len(results) == 1 else results)
        return [value.sources for value in found]

    def _nodes(self, nodes: Sequence[NodeProto], scope: Scope) -> None:
        for node in nodes:
            domain, attributes = domain_of(node), Attributes(node, scope.caller)
            if function_key(node) in self._functions:
                self._inline(self._functions[function_key(node)], node, attributes, scope)
            elif domain == "" and node.op_type == "Constant":
                self._constant(node, attributes, scope)
            elif domain == "" and node.op_type in operators.CONTROL:
                self._control(node, attributes, scope)
            elif is_fake(node):
                self._fake_quantize(node, scope)
            else:
                self._call(node, domain, attributes, scope)

    def _constant(self, node: NodeProto, attributes: Attributes, scope: Scope) -> None:
        stored = self._stores.of_constant(node, attributes, scope.title, scope.container)
        if stored is None:
            raise ModelError(f"Constant '{label(node)}' holds no tensor of numbers")
        scope.names[node.output[0]] = Value(own(stored), stored=stored)

    def _call(self, node: NodeProto, domain: str, attributes: Attributes, scope: Scope) -> None:
        function = operators.find(domain, node.op_type, scope.opsets.get(domain, LAST_OPSET))
        assert function is not None
        form = signature(function)
        values = scope.values(node.input)
        keywords = self._keywords(node, form, attributes, scope)
        if self._train_bn and domain == "" and node.op_type == "BatchNormalization":
            called = self._batch_norm(node, values, keywords, scope)
        else:
            args = [self._argument(value, index, form, scope.draft) for index, value in enumerate(values)]
            called = scope.draft.call(function, tuple(args), keywords, _title(node))
        sources = [value.sources if value else frozenset() for value in values]
        for slot in SIZES.get(node.op_type, ()):
            self._sizes |= (sources[slot] if slot < len(sources) else None) or set()
        self._parameters |= reached(domain, node.op_type, sources)
        define(node, called, form.several, [onward(domain, node.op_type, sources)] * len(node.output), scope)

    def _argument(self, value: Value | None, index: int, form: Signature, draft: Draft) -> Any:
        """A node of the graph, or plain numbers where the function takes them and the file stores them."""
        if value is None or (value.node is None and value.stored is None and value.outer is None):
            return None
        if value.stored is not None and index in form.integers | form.numbers:
            found = numbers(value.stored, single=index in form.numbers)
            if found is not None:
                self._sizes.add(value.stored)
                return found
        return draft.node(value)

    def _keywords(self, node: NodeProto, form: Signature, attributes: Attributes, scope: Scope) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, attribute in attributes.table.items():
            if attribute is None:
                continue
            if name not in form.attributes:
                raise ModelError(f"{node.op_type} '{label(node)}' has an attribute '{name}' that torch does not know")
            found[name] = self._attribute(node, name, attribute, scope)
        if form.counted:
            found[COUNT] = len(node.output)
        return found

    def _attribute(self, node: NodeProto, name: str, attribute: AttributeProto, scope: Scope) -> Any:
        if attribute.type != AttributeProto.TENSOR:
            return attribute_value(attribute)
        title = f"{label(node)}.{name}"
        stored = self._stores.of(attribute.t, title, scope.title, "attribute", scope.container, node)
        return scope.draft.node(Value(stored=stored))

    def _batch_norm(
        self, node: NodeProto, values: Sequence[Value | None], keywords: dict[str, Any], scope: Scope
    ) -> Any:
        from onnxsparse.engines.torch.operators.control import BatchNorm

        numbers_ = (keywords.get("epsilon", 1e-5), keywords.get("momentum", 0.9))
        child = Child(lambda: BatchNorm(*numbers_), (), ())
        args = tuple(scope.draft.node(value) for value in values if value)
        return scope.draft.call_child(child, _title(node), args)

    def _fake_quantize(self, node: NodeProto, scope: Scope) -> None:
        """A module of its own, whose scale is no tensor of the file's; a weight stays a weight behind it."""
        from onnxsparse.engines.torch.operators.control import FakeQuantize as Module

        value, scale = scope.find(node.input[0]), scope.find(node.input[1]).stored
        assert scale is not None
        said, shape = FakeQuantize.of(node), scale.shape
        child = Child(lambda: Module(said, shape), (), ())
        called = scope.draft.call_child(child, _title(node), (scope.draft.node(value),))
        define(node, called, False, [value.sources], scope)

    def _control(self, node: NodeProto, attributes: Attributes, scope: Scope) -> None:
        child, args, sources = child_of(self, node, attributes, scope)
        called = scope.draft.call_child(child, f"{node.op_type}_{_title(node)}", args)
        define(node, called, True, sources, scope)

    def body(
        self, graph: GraphProto, name: str, node: NodeProto, scope: Scope, given: Sequence[Sources] = ()
    ) -> tuple[Draft, list[Sources]]:
        """The body of a node, as a draft of its own."""
        title = "/".join(part for part in (scope.title, label(node), name) if part)
        inner = Scope(Draft(), graph, title, scope.opsets, scope.caller, scope)
        sources = self.graph(graph, inner, given)
        return inner.draft, sources

    def _inline(self, function: FunctionProto, node: NodeProto, attributes: Attributes, scope: Scope) -> None:
        title = f"function {function.domain}:{function.name}"
        bound: dict[str, AttributeProto | None] = dict.fromkeys(function.attribute)
        bound.update({one.name: one for one in function.attribute_proto})
        bound.update({name: one for name, one in attributes.table.items() if one is not None})
        opsets = {**scope.opsets, **opsets_of(function)}
        inner = Scope(scope.draft, function, title, opsets, bound)
        given = scope.values(node.input)
        for index, name in enumerate(function.input):
            inner.names[name] = (given[index] if index < len(given) else None) or Value(frozenset())
        self._nodes(function.node, inner)
        for name, made in zip(node.output, function.output):
            if name:
                scope.names[name] = inner.find(made)


def define(node: NodeProto, called: Any, several: bool, sources: Sequence[Sources], scope: Scope) -> None:
    """The outputs of a node get their names."""
    called.meta[ONNX] = (node.op_type, label(node))
    for index, name in enumerate(node.output):
        if name:
            result = scope.draft.graph.call_function(operator.getitem, (called, index)) if several else called
            scope.names[name] = Value(sources[index] if index < len(sources) else None, result)


def _title(node: NodeProto) -> str:
    return next((name for name in node.output if name), "") or node.name or node.op_type


# -- If, Loop and Scan: which modules their bodies become, and what is handed to them.


Made = tuple[Child, tuple[Any, ...], Sequence[Sources]]


def child_of(conversion: Conversion, node: NodeProto, attributes: Attributes, scope: Scope) -> Made:
    """The child module of a node, its arguments, and what its results are made of."""
    makers: dict[str, Callable[..., Made]] = {"If": _if, "Loop": _loop, "Scan": _scan}
    return makers[node.op_type](conversion, node, attributes, scope)


def _graph(node: NodeProto, attributes: Attributes, name: str) -> GraphProto:
    attribute = attributes.table.get(name)
    if attribute is None:
        raise ModelError(f"{node.op_type} '{label(node)}' has no {name}")
    return attribute.g


def _given(values: Sequence[Value | None], draft: Draft) -> list[Any]:
    return [None if value is None else draft.node(value) for value in values]


def _if(conversion: Conversion, node: NodeProto, attributes: Attributes, scope: Scope) -> Made:
    """A choice between stored tensors is made of both."""
    from onnxsparse.engines.torch.operators.control import If

    names = ("then_branch", "else_branch")
    (then, made), (other, made_else) = (
        conversion.body(_graph(node, attributes, name), name, node, scope) for name in names
    )
    taken = len(then.captures)
    child = Child(lambda first, second: If(first, second, taken), (then, other), names)
    args = _given([*scope.values(node.input), *then.captures, *other.captures], scope.draft)
    pairs = zip(made, made_else)
    return child, tuple(args), [None if a is None or b is None else a | b for a, b in pairs]


def _loop(conversion: Conversion, node: NodeProto, attributes: Attributes, scope: Scope) -> Made:
    from onnxsparse.engines.torch.operators.control import Loop

    graph = _graph(node, attributes, "body")
    inputs = [*scope.values(node.input), None, None][: max(len(node.input), 2)]
    states = len(inputs) - 2
    kept = _kept(graph, inputs[2:], 2, 1)
    body, _ = conversion.body(graph, "body", node, scope, [None, None, *kept])
    child = Child(lambda made: Loop(made, states, len(graph.output) - 1 - states), (body,), ("body",))
    return child, tuple(_given([*inputs, *body.captures], scope.draft)), kept


def _kept(graph: GraphProto, states: Sequence[Value | None], inputs: int, outputs: int) -> list[Sources]:
    """A state that every step hands on as it came is what it started as."""
    alias = {one.output[0]: one.input[0] for one in graph.node if one.op_type == "Identity"}
    found: list[Sources] = []
    for index, value in enumerate(states):
        name = graph.output[index + outputs].name
        while name in alias:
            name = alias[name]
        same = value is not None and name == graph.input[index + inputs].name
        found.append(value.sources if value is not None and same else None)
    return found


def _scan(conversion: Conversion, node: NodeProto, attributes: Attributes, scope: Scope) -> Made:
    from onnxsparse.engines.torch.operators.control import BatchedScan, Scan

    graph = _graph(node, attributes, "body")
    batched = scope.opsets.get("", 9) < 9
    scanned = attributes.integer("num_scan_inputs")
    states = len(node.input) - scanned - batched
    kept = _kept(graph, scope.values(node.input[batched : batched + states]), 0, 0)
    body, _ = conversion.body(graph, "body", node, scope, kept)
    stacked = len(graph.output) - states
    turned = attributes.integers("directions" if batched else "scan_input_directions") or [0] * scanned
    axes = attributes.integers("scan_input_axes") or [0] * scanned
    output_axes = attributes.integers("scan_output_axes") or [0] * stacked
    output_turned = attributes.integers("scan_output_directions") or [0] * stacked

    def make(made: Any) -> Any:
        scan = Scan(made, states, scanned, axes, turned, output_axes, output_turned)
        return BatchedScan(scan) if batched else scan

    args = _given([*scope.values(node.input), *body.captures], scope.draft)
    return Child(make, (body,), ("scan.body" if batched else "body",)), tuple(args), kept


# -- Plain Python numbers from attributes and small stored tensors.


LARGEST = 64
_WHOLE = ("int64", "int32")
_NUMBERS = (*_WHOLE, "float32", "float64", "float16")


def numbers(stored: StoredTensor, single: bool) -> Any:
    """The integers of a small stored tensor as a list, or its one number; None where it has to stay a tensor."""
    if single:
        return stored.read().tolist()[0] if stored.size == 1 and stored.kind in _NUMBERS else None
    if stored.size > LARGEST or stored.kind not in _WHOLE:
        return None
    found = stored.read().tolist()
    return found if stored.shape else found[0]


def attribute_value(attribute: AttributeProto) -> Any:
    kind = attribute.type
    if kind == AttributeProto.INT:
        return attribute.i
    if kind == AttributeProto.FLOAT:
        return attribute.f
    if kind == AttributeProto.STRING:
        return attribute.s.decode("utf-8", "replace")
    if kind == AttributeProto.INTS:
        return list(attribute.ints)
    if kind == AttributeProto.FLOATS:
        return list(attribute.floats)
    if kind == AttributeProto.STRINGS:
        return [one.decode("utf-8", "replace") for one in attribute.strings]
    if kind == AttributeProto.TYPE_PROTO:
        return None
    raise ModelError(f"attribute '{text(attribute.name)}' is of a kind that torch does not take")


# -- How a node's inputs and attributes bind to the function of its operator: read once from the function itself.


COUNT = "outputs"  # what a function calls the number of outputs of its node


@dataclass(frozen=True)
class Signature:
    """`integers` and `numbers` are the inputs that may be plain Python numbers."""

    inputs: int | None  # how many; None for any number
    attributes: frozenset[str]
    integers: frozenset[int]
    numbers: frozenset[int]
    several: bool
    counted: bool


@cache
def signature(function: Function) -> Signature:
    found = inspect.signature(function)
    parameters = list(found.parameters.values())
    positional = [one for one in parameters if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    named = {one.name for one in parameters if one.kind is not inspect.Parameter.VAR_POSITIONAL}
    variadic = any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters)
    kinds = [str(one.annotation).split(" ")[0] for one in positional]
    return Signature(
        None if variadic else len(positional),
        frozenset(named - {COUNT}),
        frozenset(index for index, kind in enumerate(kinds) if kind == "Ints"),
        frozenset(index for index, kind in enumerate(kinds) if kind == "Real"),
        found.return_annotation == "Outputs",
        COUNT in named,
    )
