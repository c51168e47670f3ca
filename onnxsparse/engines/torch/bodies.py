"""If, Loop and Scan: which modules their bodies become, and what is handed to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from onnx import GraphProto, NodeProto

from onnxsparse.engines.torch.draft import Child, Draft, Value
from onnxsparse.engines.torch.parameters import Sources
from onnxsparse.errors import ModelError
from onnxsparse.graph.attributes import Attributes, label

if TYPE_CHECKING:
    from onnxsparse.engines.torch.convert import Conversion, Scope

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
