"""A model whose weights lie inside of functions, as one without functions, and the way back to the file.

1. Calls are replaced by the nodes of their functions in a copy; stored tensors carry their tags in it, as in training.
2. A constant of a function that is called several times is one tensor, which the nodes of all calls read: a tied one.
3. Masks and numbers that are found in the copy go to the tensors of the file by tag. Nothing in the file changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from onnx import GraphProto, ModelProto, NodeProto, TensorProto
from onnx.helper import make_node

from onnxsparse.graph.edit import every_tensor, scopes
from onnxsparse.graph.initializers import inlined
from onnxsparse.graph.model import Model
from onnxsparse.graph.stores import MARK
from onnxsparse.math.values import Array
from onnxsparse.planning.plan import Plan, PlanRow
from onnxsparse.planning.stored_params import StoredParam, vector_param, weight_param
from onnxsparse.planning.trainable import tagged

DEAD = "nothing that runs reads it"


@dataclass(frozen=True, eq=False)
class Inlined:
    """A copy of a model without functions."""

    model: Model
    tags: Mapping[str, StoredParam]
    """The tensors of the file."""

    def plan(self, plan: Plan) -> Plan:
        """The plan of the file for the copy. Weights that the copy has no longer are left out."""
        found = {weight.tensor.proto.doc_string: weight for weight in self.model.weights if weight.uses}
        rows = [replace(row, weight=found[row.weight.tag]) for row in plan.rows if row.weight.tag in found]
        return replace(plan, rows=tuple(rows))

    def names(self, plan: Plan) -> dict[str, str]:
        """What each weight of the copy is called in the file."""
        known = {row.weight.tag: row.name for row in plan.rows}
        found = {weight.name: known.get(weight.tensor.proto.doc_string, "") for weight in self.model.weights}
        return {name: own for name, own in found.items() if own}

    def rows(self, plan: Plan, made: Plan) -> Plan:
        """The plan of the file, with the levels, masks and reasons that were found for the copy."""
        found = {row.weight.tensor.proto.doc_string: row for row in made.rows}
        return replace(plan, rows=tuple(_with(row, found.get(row.weight.tag)) for row in plan.rows))

    def numbers(self, numbers: Mapping[str, Array], copies: Mapping[str, StoredParam]) -> dict[str, Array]:
        """Numbers by the tags of the file; `copies` are the tensors of the copy, by its own tags."""
        return {copies[tag].tensor.proto.doc_string: array for tag, array in numbers.items()}


def without_functions(model: Model, plan: Plan) -> Inlined | None:
    """The copy, where weights that are planned lie inside of functions; otherwise nothing."""
    if not model.proto.functions or not any(use.scope for row in plan.planned for use in row.weight.uses):
        return None
    weights = {weight.tensor: weight for weight in model.weights}
    tags = {
        home.tag: weight_param(weights[tensor]) if tensor in weights and weights[tensor].uses
        else vector_param(tensor, home.tag)
        for tensor, home in model.flow.stores.homes.items()
    }  # fmt: skip
    copy = inlined(tagged(model, tags))
    _share_constants(copy)
    return Inlined(Model.over(copy), tags)


def _share_constants(proto: ModelProto) -> None:
    """Constants with one tag are an initializer; where they stood is an Identity of it."""
    tags = Counter(one.doc_string for one in every_tensor(proto) if one.doc_string.startswith(MARK))
    several = {tag for tag, count in tags.items() if count > 1}
    made = dict[str, TensorProto]()
    for graph in scopes(proto.graph):
        nodes = [_shared(node, several, made) for node in graph.node]
        if any(new is not old for new, old in zip(nodes, graph.node)):
            _put(graph, nodes)
    proto.graph.initializer.extend(made.values())


def _shared(node: NodeProto, several: set[str], made: dict[str, TensorProto]) -> NodeProto:
    held = next((one.t for one in node.attribute if one.HasField("t")), None) if node.op_type == "Constant" else None
    if held is None or held.doc_string not in several:
        return node
    made.setdefault(held.doc_string, _named(held))
    return make_node("Identity", [made[held.doc_string].name], list(node.output))


def _named(held: TensorProto) -> TensorProto:
    found = TensorProto()
    found.CopyFrom(held)
    found.name = held.doc_string
    return found


def _put(graph: GraphProto, nodes: list[NodeProto]) -> None:
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _with(row: PlanRow, made: PlanRow | None) -> PlanRow:
    if made is None:
        return replace(row, reason=row.reason or DEAD) if row.pattern is not None else row
    return replace(row, drop=made.drop, reason=made.reason, keep=made.keep, cut=made.cut)


__all__ = ["Inlined", "without_functions"]
