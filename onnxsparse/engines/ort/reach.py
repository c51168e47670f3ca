"""What depends on what in a graph, and what is left when only some values are wanted."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from onnx import GraphProto, ModelProto, ValueInfoProto

from onnxsparse.engines.ort.draft import keep
from onnxsparse.engines.ort.scopes import reads

SIZES = ("Shape", "Size")


def downstream(graph: GraphProto, sources: Iterable[str], sizes: bool = True) -> set[str]:
    """All values that depend on the sources, and these; without `sizes` not those that only ask for their shape."""
    found = set(sources)
    for node in graph.node:
        if (sizes or node.op_type not in SIZES) and any(name in found for name in reads(node)):
            found |= {name for name in node.output if name}
    return found


def upstream(graph: GraphProto, targets: Iterable[str], through: Collection[str] | None = None) -> set[str]:
    """All values that the targets depend on, and these; only by way of the values in `through` if it is given."""
    found = set(targets)
    for node in reversed(graph.node):
        if any(name in found for name in node.output):
            found |= {name for name in reads(node) if through is None or name in through}
    return found


def reduce_to(model: ModelProto, outputs: Iterable[str]) -> None:
    """Only what the outputs need is left: nodes, initializers, inputs; they are the outputs of the graph."""
    graph, wanted = model.graph, list(dict.fromkeys(outputs))
    needed = upstream(graph, wanted)
    declared = {value.name: value for value in (*graph.value_info, *graph.output)}
    ends = [declared.get(name) or ValueInfoProto(name=name) for name in wanted]
    keep(graph.node, [node for node in graph.node if any(name in needed for name in node.output)])
    if any(tensor.name not in needed for tensor in graph.initializer):
        keep(graph.initializer, [tensor for tensor in graph.initializer if tensor.name in needed])
    keep(graph.input, [value for value in graph.input if value.name in needed])
    keep(graph.output, ends)
    made = {name for node in graph.node for name in node.output}
    keep(graph.value_info, [value for value in graph.value_info if value.name in made and value.name not in wanted])


def part(model: ModelProto, outputs: Iterable[str]) -> ModelProto:
    """A model of its own that computes the outputs and nothing else."""
    wanted = list(dict.fromkeys(outputs))
    needed = upstream(model.graph, wanted)
    made = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    graph = made.graph
    graph.name = model.graph.name or "part"
    graph.node.extend(node for node in model.graph.node if any(name in needed for name in node.output))
    graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in needed)
    graph.input.extend(value for value in model.graph.input if value.name in needed)
    declared = {value.name: value for value in model.graph.output}
    graph.output.extend(declared.get(name) or ValueInfoProto(name=name) for name in wanted)
    return made
