"""Stored tensors as initializers of their graph, whatever a file has them in: Constant nodes, Identity, functions.

1. Local functions are inlined.
2. Constant nodes and sparse tensors become initializers of the graph that they stand in, under the same names.
3. Identity of an initializer is the initializer.
"""

from __future__ import annotations

import numpy as np
import onnx.inliner
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, numpy_helper

from onnxsparse.errors import ModelError, one_line
from onnxsparse.graph.edit import bodies, containers, keep, rename_reads
from onnxsparse.graph.storage import Array


def inlined(model: ModelProto) -> ModelProto:
    """The model with its local functions inlined."""
    if not model.functions:
        return model
    _write_defaults(model)
    try:
        return onnx.inliner.inline_local_functions(model, convert_version=False)
    except Exception as error:  # the inliner is C++ and raises what it likes
        raise ModelError(f"the model's functions cannot be inlined: {one_line(error)[:200]}") from error


def _write_defaults(model: ModelProto) -> None:
    """Calls say the attributes that their function has defaults for: onnx's inliner (to 1.23) overlooks these."""
    known = {(one.domain, one.name): {entry.name: entry for entry in one.attribute_proto} for one in model.functions}
    for node in (node for container in containers(model) for node in container.node):
        defaults = known.get((node.domain, node.op_type), {})
        given = {attribute.name for attribute in node.attribute}
        node.attribute.extend(entry for name, entry in defaults.items() if name not in given)


def constants_as_initializers(graph: GraphProto) -> None:
    """Constant nodes become initializers of their own graph, in bodies first: a changed graph has new nodes."""
    for node in graph.node:
        for body in bodies(node):
            constants_as_initializers(body)
    _dense(graph)
    kept = []
    for node in graph.node:
        tensor = stored_of(node) if node.op_type == "Constant" and node.domain in ("", "ai.onnx") else None
        if tensor is None:
            kept.append(node)
            continue
        tensor.name = node.output[0]
        graph.initializer.append(tensor)
    if len(kept) < len(graph.node):
        keep(graph.node, kept)


def stored_of(node: NodeProto) -> TensorProto | None:
    """The tensor that a Constant node holds."""
    for attribute in node.attribute:
        if attribute.name == "value":
            tensor: TensorProto = attribute.t
            return tensor
        if attribute.name == "sparse_value":
            return dense(attribute.sparse_tensor)
        if attribute.name.startswith("value_"):
            return _as_tensor(attribute)
    return None


def _as_tensor(attribute: AttributeProto) -> TensorProto | None:
    value = onnx.helper.get_attribute_value(attribute)
    if attribute.type in (AttributeProto.STRING, AttributeProto.STRINGS):
        return numpy_helper.from_array(np.array(value, object))
    whole = attribute.type in (AttributeProto.INT, AttributeProto.INTS)
    return numpy_helper.from_array(np.array(value, np.int64 if whole else np.float32))


def _dense(graph: GraphProto) -> None:
    for sparse in graph.sparse_initializer:
        tensor = dense(sparse)
        tensor.name = sparse.values.name
        graph.initializer.append(tensor)
    del graph.sparse_initializer[:]


def dense(sparse: SparseTensorProto) -> TensorProto:
    """The same numbers with the zeros written out."""
    values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    full: Array = np.zeros(tuple(sparse.dims), values.dtype)
    if indices.ndim == 2:
        full[tuple(indices.T)] = values
    else:
        full.reshape(-1)[indices] = values
    return numpy_helper.from_array(full)


def without_identities(graph: GraphProto, stored: set[str]) -> bool:
    """Take out Identity nodes of initializers, in bodies first; whether there were any."""
    inner = [without_identities(body, stored) for node in graph.node for body in bodies(node)]
    outputs = {value.name for value in graph.output}
    gone = [node for node in graph.node if _is_name(node, stored) and node.output[0] not in outputs]
    if gone:
        table = {node.output[0]: node.input[0] for node in gone}
        keep(graph.node, [node for node in graph.node if not (node.output and node.output[0] in table)])
        rename_reads(graph.node, table)
    return any(inner) or bool(gone)


def _is_name(node: NodeProto, stored: set[str]) -> bool:
    return node.op_type == "Identity" and node.domain in ("", "ai.onnx") and node.input[0] in stored
