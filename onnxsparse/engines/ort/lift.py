"""Stored tensors become initializers of the main graph.

1. Local functions are inlined.
2. Constants of all scopes, and initializers of bodies, move to the main graph, under new names where names clash.
3. A tensor that came out several times (a function called twice) is one tensor again: the tag says so.
4. Identity of an initializer is the initializer.
5. Initializers are no inputs of the graph.
6. A whole number that is fed, one and the same for all samples, is a constant.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx.inliner
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, numpy_helper
from onnx.helper import make_node

from onnxsparse.engines.ort.draft import Draft, keep
from onnxsparse.engines.ort.refusals import short
from onnxsparse.engines.ort.samples import Samples
from onnxsparse.engines.ort.scopes import Names, bodies, rename, scopes
from onnxsparse.errors import ModelError
from onnxsparse.math.values import Array


def inline_functions(model: ModelProto) -> ModelProto:
    if not model.functions:
        return model
    _write_defaults(model)
    try:
        return onnx.inliner.inline_local_functions(model, convert_version=False)
    except Exception as error:  # the inliner is C++ and raises what it likes
        raise ModelError(f"the model's functions cannot be inlined: {short(error)}") from error


def _write_defaults(model: ModelProto) -> None:
    """Calls say the attributes that their function has defaults for: the inliner overlooks these."""
    known = {(one.domain, one.name): {entry.name: entry for entry in one.attribute_proto} for one in model.functions}
    lists: list[Iterable[NodeProto]] = [graph.node for graph in scopes(model.graph)]
    lists += [nodes for function in model.functions for nodes in _lists(function.node)]
    for node in (node for nodes in lists for node in nodes):
        defaults = known.get((node.domain, node.op_type), {})
        given = {attribute.name for attribute in node.attribute}
        node.attribute.extend(entry for name, entry in defaults.items() if name not in given)


def _lists(nodes: Iterable[NodeProto]) -> list[Iterable[NodeProto]]:
    inner = (scope.node for node in nodes for body in bodies(node) for scope in scopes(body))
    return [nodes, *inner]


def lift(draft: Draft, tags: Iterable[str]) -> None:
    """All stored tensors to the main graph; `draft.tags` names the trained ones among them."""
    graph, wanted = draft.graph, set(tags)
    _remember(draft)
    names = Names(graph)
    _constants(graph)
    for node in graph.node:
        for body in bodies(node):
            _raise(body, graph, names)
    _one_each(draft, wanted)
    stored = {tensor.name for tensor in graph.initializer}
    while _without_identities(graph, stored):
        pass
    keep(graph.input, [value for value in graph.input if value.name not in stored])
    draft.tags = {tensor.name: tensor.doc_string for tensor in graph.initializer if tensor.doc_string in wanted}


def _remember(draft: Draft) -> None:
    """Tools that rebuild the model drop the tags, and keep the names."""
    for tensor in draft.graph.initializer:
        if tensor.name in draft.tags:
            tensor.doc_string = draft.tags[tensor.name]


def _constants(graph: GraphProto) -> None:
    """Constant nodes become initializers of their own graph, in bodies first: a changed graph has new nodes."""
    for node in graph.node:
        for body in bodies(node):
            _constants(body)
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
            return _listed(attribute)
    return None


def _listed(attribute: AttributeProto) -> TensorProto | None:
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


def _raise(body: GraphProto, main: GraphProto, names: Names) -> None:
    """Initializers of a body, and of the bodies in it, become ones of the main graph."""
    table = {}
    for tensor in body.initializer:
        table[tensor.name] = names.fresh(tensor.name)
        tensor.name = table[tensor.name]
        main.initializer.append(tensor)
    del body.initializer[:]
    rename(body.node, table)
    for value in body.output:  # a body gives what it computes
        if value.name in table:
            body.node.append(make_node("Identity", [table[value.name]], [value.name]))
    for node in body.node:
        for inner in bodies(node):
            _raise(inner, main, names)


def _one_each(draft: Draft, wanted: set[str]) -> None:
    graph, kept = draft.graph, []
    first: dict[str, str] = {}
    table: dict[str, str] = {}
    outputs = {value.name for value in graph.output}
    for tensor in graph.initializer:
        tag = tensor.doc_string if tensor.doc_string in wanted else ""
        if tag and tag in first and tensor.name not in outputs:
            table[tensor.name] = first[tag]
            continue
        if tag:
            first.setdefault(tag, tensor.name)
        kept.append(tensor)
    if table:
        keep(graph.initializer, kept)
        rename(graph.node, table)


def _without_identities(graph: GraphProto, stored: set[str]) -> bool:
    """Take out Identity nodes of initializers, in bodies first; whether there were any."""
    inner = [_without_identities(body, stored) for node in graph.node for body in bodies(node)]
    outputs = {value.name for value in graph.output}
    gone = [node for node in graph.node if _is_name(node, stored) and node.output[0] not in outputs]
    if gone:
        table = {node.output[0]: node.input[0] for node in gone}
        keep(graph.node, [node for node in graph.node if not (node.output and node.output[0] in table)])
        rename(graph.node, table)
    return any(inner) or bool(gone)


def _is_name(node: NodeProto, stored: set[str]) -> bool:
    return node.op_type == "Identity" and node.domain in ("", "ai.onnx") and node.input[0] in stored


def fix_numbers(draft: Draft, samples: Samples) -> None:
    """Whole numbers and flags that every sample feeds alike become constants."""
    fixed: set[str] = set()
    for value in draft.graph.input:
        array = samples.arrays.get(value.name)
        kind = value.type.tensor_type
        if array is None or kind.elem_type in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE):
            continue
        sizes = [dim.dim_value for dim in kind.shape.dim] if kind.HasField("shape") else [0]
        if all(size == 1 for size in sizes) and np.all(array == array.flat[0]) and array.dtype.kind in "iub":
            number = np.full(sizes, array.flat[0], onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
            draft.graph.initializer.append(numpy_helper.from_array(number, value.name))
            draft.note(f"the input '{value.name}' is {array.flat[0]} in all samples and was made a constant")
            fixed.add(value.name)
    keep(draft.graph.input, [value for value in draft.graph.input if value.name not in fixed])
    samples.without(fixed)
