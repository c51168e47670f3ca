"""One ONNX file of the parts of a detector and the graphs between them: tensors of one name are one tensor.

1. Names inside a later part that an earlier one has, too, are changed; those of weights are not: two parts that name
   different weights alike are refused.
2. The record of what the zeros are for holds the layers of all parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnx import GraphProto, ModelProto, NodeProto, checker, helper

from models.export.graph import IR_VERSION
from onnxsparse.errors import ModelError
from onnxsparse.graph.model import Model
from onnxsparse.planning.record import record_joined

LEAST_OPSET = 16
"""RoiAlign's half_pixel; whatever stands in the graphs has the same form from there on."""


def joined(parts: Sequence[ModelProto], outputs: Sequence[str], name: str) -> ModelProto:
    """The parts after each other, in the order in which they run; `outputs` are those of the whole."""
    graph = GraphProto(name=name)
    for number, part in enumerate(parts):
        _append(graph, part.graph, f"part{number}/")
    values = {one.name: one for part in parts for one in part.graph.output}
    graph.output.extend(values[one] for one in outputs)
    made = helper.make_model(graph, opset_imports=_opsets(parts), producer_name="onnxsparse")
    made.ir_version = max([IR_VERSION, *(part.ir_version for part in parts)])
    records = [{one.key: one.value for one in part.metadata_props} for part in parts]
    model = Model.over(made)
    record_joined(model, [one for one in records if one])
    proto = model.take_proto()
    checker.check_model(proto)
    return proto


def _opsets(parts: Iterable[ModelProto]) -> list[object]:
    """The newest of each domain; networks come from one exporter, and the graphs between them mean the same in it."""
    versions: dict[str, int] = {}
    for part in parts:
        for one in part.opset_import:
            domain = "" if one.domain == "ai.onnx" else one.domain
            versions[domain] = max(versions.get(domain, 0), one.version)
    if versions.get("", 0) < LEAST_OPSET:
        raise ModelError(f"opset {versions.get('')} has no RoiAlign of half pixels; export at {LEAST_OPSET} or later")
    return [helper.make_opsetid(*one) for one in versions.items()]


def _append(graph: GraphProto, part: GraphProto, prefix: str) -> None:
    known = _defined(graph)
    given = {one.name for one in part.input}
    weights = {one.name for one in part.initializer if one.name not in given}
    clash = sorted(name for name in weights & known if name.endswith((".weight", ".bias")))
    if clash:
        raise ModelError(f"two parts have a weight called '{clash[0]}'; they cannot be in one file")
    renamed = {name: prefix + name for name in _defined(part) & known if name not in given}
    names = {one.name for one in graph.node}
    graph.node.extend(_renamed(node, renamed, prefix if node.name in names else "") for node in part.node)
    for one in part.initializer:
        if not (one.name in given and one.name in known):
            graph.initializer.add().CopyFrom(one)
            graph.initializer[-1].name = renamed.get(one.name, one.name)
    for one in part.value_info:
        graph.value_info.add().CopyFrom(one)
        graph.value_info[-1].name = renamed.get(one.name, one.name)
    graph.input.extend(one for one in part.input if one.name not in known)


def _defined(graph: GraphProto) -> set[str]:
    made = {name for node in graph.node for name in node.output if name}
    return made | {one.name for values in (graph.initializer, graph.input) for one in values}


def _renamed(node: NodeProto, names: dict[str, str], prefix: str) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.name = prefix + node.name if node.name else ""
    copy.input[:] = [names.get(one, one) for one in node.input]
    copy.output[:] = [names.get(one, one) for one in node.output]
    return copy
