"""Moving the batch axis to the front: Transposes at inputs and outputs, as engines know no other order.

1. The input keeps its name and gets its sizes in another order; a Transpose behind it gives what the graph reads.
2. An output likewise: what made it gets another name, and a Transpose gives the output.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx import GraphProto, ModelProto, NodeProto, TensorShapeProto
from onnx.helper import make_node

from onnxsparse.errors import ModelError
from onnxsparse.graph.edit import FreshNames, rename_reads


def turn(proto: ModelProto, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> ModelProto:
    """Change the model: `inputs` and `outputs` are the axes of the samples where these are not the first."""
    graph, fresh = proto.graph, FreshNames.of(proto.graph)
    front = [_turned_input(graph, value, inputs[value.name], fresh) for value in graph.input if value.name in inputs]
    behind = [
        _turned_output(graph, value, outputs[value.name], fresh)
        for value in graph.output
        if _made(graph, value, outputs)
    ]
    if front or behind:
        nodes = [NodeProto.FromString(node.SerializeToString()) for node in graph.node]
        del graph.node[:]
        graph.node.extend([*front, *nodes, *behind])
    return proto


def _made(graph: GraphProto, value: Any, outputs: Mapping[str, int]) -> bool:
    return value.name in outputs and any(value.name in node.output for node in graph.node)


def _turned_input(graph: GraphProto, value: Any, axis: int, fresh: FreshNames) -> NodeProto:
    inner, rank = fresh(f"{value.name}_as_declared"), _rank(value)
    rename_reads(graph.node, {value.name: inner})
    _to_front(value, axis)
    order = [*range(1, rank)]
    order.insert(axis, 0)
    return make_node("Transpose", [value.name], [inner], inner, perm=order)


def _turned_output(graph: GraphProto, value: Any, axis: int, fresh: FreshNames) -> NodeProto:
    inner, rank = fresh(f"{value.name}_as_declared"), _rank(value)
    rename_reads(graph.node, {value.name: inner})
    for node in graph.node:
        for place, name in enumerate(node.output):
            if name == value.name:
                node.output[place] = inner
    _to_front(value, axis)
    return make_node(
        "Transpose", [inner], [value.name], inner, perm=[axis, *(one for one in range(rank) if one != axis)]
    )


def _rank(value: Any) -> int:
    if not value.type.tensor_type.HasField("shape"):
        raise ModelError(f"the model does not say how many axes '{value.name}' has, which turning them takes")
    return len(value.type.tensor_type.shape.dim)


def _to_front(value: Any, axis: int) -> None:
    shape = value.type.tensor_type.shape
    dims = [TensorShapeProto.Dimension.FromString(dim.SerializeToString()) for dim in shape.dim]
    del shape.dim[:]
    shape.dim.extend([dims[axis], *(dim for place, dim in enumerate(dims) if place != axis)])
