"""Every tensor of a model, wherever it stands: in bodies, functions, attributes and training graphs too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto


def every_tensor(proto: ModelProto) -> Iterator[TensorProto]:
    """All tensors of a model, wherever they stand."""
    yield from _graph_tensors(proto.graph)
    for function in proto.functions:
        yield from _node_tensors(function.node)
    for training in proto.training_info:
        yield from _graph_tensors(training.initialization)
        yield from _graph_tensors(training.algorithm)


def _graph_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Sequence[NodeProto]) -> Iterator[TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            yield from _attribute_tensors(attribute)


def _attribute_tensors(attribute: AttributeProto) -> Iterator[TensorProto]:
    if attribute.type in (AttributeProto.TENSOR, AttributeProto.TENSORS):
        yield from [attribute.t, *attribute.tensors] if attribute.HasField("t") else attribute.tensors
    elif attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
        for graph in [attribute.g, *attribute.graphs] if attribute.HasField("g") else attribute.graphs:
            yield from _graph_tensors(graph)
    elif attribute.type in (AttributeProto.SPARSE_TENSOR, AttributeProto.SPARSE_TENSORS):
        for sparse in [attribute.sparse_tensor, *attribute.sparse_tensors]:
            yield sparse.values
            yield sparse.indices
