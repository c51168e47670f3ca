"""`to_module`: from an ONNX file to a `torch.fx.GraphModule`, a node at a time.

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

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

from onnxsparse.engines.torch import operators
from onnxsparse.engines.torch.bodies import child_of
from onnxsparse.engines.torch.draft import Child, Draft, Value
from onnxsparse.engines.torch.explaining import ONNX
from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.literals import attribute_value, numbers
from onnxsparse.engines.torch.materialize import Pool, materialize
from onnxsparse.engines.torch.parameters import Sources, onward, own, reached
from onnxsparse.engines.torch.signatures import COUNT, Signature, signature
from onnxsparse.engines.torch.support import (
    LAST_OPSET,
    demand_support,
    domain_of,
    function_key,
    opsets_of,
)
from onnxsparse.errors import ModelError
from onnxsparse.graph.attributes import Attributes, Caller, label
from onnxsparse.graph.every import functions_of
from onnxsparse.graph.model import Model, Source
from onnxsparse.graph.storage import StoredTensor
from onnxsparse.graph.stores import Container
from onnxsparse.graph.vectors import SIZES


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
