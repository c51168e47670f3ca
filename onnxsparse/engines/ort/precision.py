"""The copy computes in float32 throughout, whatever the user's file is stored in.

1. Tensors of half, brain and double precision, in initializers and attributes, become float32.
2. Casts, `dtype` attributes and declared types follow.
3. A finite double beyond the range of float32 becomes the largest float32, not an infinity.
"""

from __future__ import annotations

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, TypeProto, numpy_helper

from onnxsparse.engines.ort.draft import Draft
from onnxsparse.engines.ort.scopes import scopes

OTHER = (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
_KINDS = {"Cast": ("to",)}  # elsewhere the attribute is `dtype`


def single(draft: Draft) -> None:
    """Make the draft float32."""
    changed = False
    for graph in scopes(draft.graph):
        for tensor in graph.initializer:
            changed |= _narrow(tensor)
        for node in graph.node:
            changed |= _node(node)
        changed |= _declared(graph)
    if changed:
        draft.note("it computes in another precision than float32; the copy is trained in float32")


def _narrow(tensor: TensorProto) -> bool:
    if tensor.data_type not in OTHER:
        return False
    array = numpy_helper.to_array(tensor)
    limit = float(np.finfo(np.float32).max)
    finite = np.isfinite(array.astype(np.float64))
    wide = array.astype(np.float64)
    values = np.where(finite, np.clip(wide, -limit, limit), wide).astype(np.float32)
    name, text = tensor.name, tensor.doc_string
    tensor.CopyFrom(numpy_helper.from_array(values.reshape(array.shape), name))
    tensor.doc_string = text
    return True


def _node(node: NodeProto) -> bool:
    changed = False
    for attribute in node.attribute:
        if attribute.type == AttributeProto.TENSOR:
            changed |= _narrow(attribute.t)
        elif attribute.name in _KINDS.get(node.op_type, ("dtype",)) and attribute.i in OTHER:
            attribute.i, changed = TensorProto.FLOAT, True
    return changed


def _declared(graph: GraphProto) -> bool:
    changed = False
    for value in (*graph.input, *graph.output, *graph.value_info):
        changed |= _type(value.type)
    return changed


def _type(kind: TypeProto) -> bool:
    if kind.HasField("sequence_type"):
        return _type(kind.sequence_type.elem_type)
    if kind.HasField("optional_type"):
        return _type(kind.optional_type.elem_type)
    if kind.HasField("tensor_type") and kind.tensor_type.elem_type in OTHER:
        kind.tensor_type.elem_type = TensorProto.FLOAT
        return True
    return False
