"""A copy of a model without its weights, to walk over: functions inlined, sizes fixed, all shapes inferred.

Stored tensors carry their tags as doc strings; of their numbers only the few that may be sizes or places are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx.inliner
import onnx.shape_inference
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from onnxsparse.graph.attributes import IdentityKey
from onnxsparse.graph.edit import graphs_in, scopes
from onnxsparse.graph.model import Model
from onnxsparse.graph.shape_values import LARGEST
from onnxsparse.graph.storage import StoredTensor
from onnxsparse.graph.stores import FloatsAttribute

NAMELESS = ("", "?", "-1", "Any", "None", "none", "unk", "unknown")
Tags = Mapping[IdentityKey, str]


def bare_copy(model: Model, shapes: Mapping[str, Sequence[int]]) -> ModelProto:
    """The copy; `shapes` are those of inputs where the file leaves sizes open."""
    proto = _copied(model)
    for value in proto.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ())):
            dim.dim_value = size
    if proto.functions:
        proto = onnx.inliner.inline_local_functions(proto)
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    declared = [_without_declared(graph) for graph in scopes(proto.graph)]
    _name_sizes(proto.graph.input)
    proto = _inferred(proto)
    if shapes or not any(declared):
        return proto
    more = [_declare(graph, values) for graph, values in zip(scopes(proto.graph), declared)]
    return _inferred(proto) if any(more) else proto


def _inferred(proto: ModelProto) -> ModelProto:
    try:
        return onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except Exception:  # whatever the inference makes of an odd graph: what has no shape stays where it is
        return proto


def _without_declared(graph: GraphProto) -> list[ValueInfoProto]:
    """Take away what the file declares of shapes, which may be left from before an edit."""
    declared = [*graph.value_info]
    del graph.value_info[:]
    return declared


def _declare(graph: GraphProto, values: Sequence[ValueInfoProto]) -> bool:
    """Add what the file declares where the operators say nothing, such as those that ONNX does not know."""
    known = {value.name for value in graph.value_info if value.type.tensor_type.HasField("shape")}
    missing = [value for value in values if value.name not in known]
    graph.value_info.extend(missing)
    _name_sizes(graph.value_info[len(graph.value_info) - len(missing) :])
    return bool(missing)


def _name_sizes(values: Iterable[ValueInfoProto]) -> None:
    """Sizes that are left open get names, so that shape inference can tell which are equal.

    Some exporters write a size of 0 or -1, or one name for all sizes that they do not know.
    """
    for value in values:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_value <= 0 and dim.dim_param in NAMELESS:
                dim.dim_param = f"{value.name}.{axis}"


def _copied(model: Model) -> ModelProto:
    tags = {IdentityKey(_carrier(tensor)): home.tag for tensor, home in model.flow.stores.homes.items()}
    made = ModelProto(ir_version=model.proto.ir_version, opset_import=model.proto.opset_import)
    _copy_graph(model.proto.graph, made.graph, tags)
    for function in model.proto.functions:
        own = made.functions.add()
        own.CopyFrom(function)
        del own.node[:]
        for node in function.node:
            _copy_node(node, own.node.add(), tags)
    return made


def _copy_graph(graph: GraphProto, made: GraphProto, tags: Tags) -> None:
    made.name = graph.name
    made.input.extend(graph.input)
    made.output.extend(graph.output)
    made.value_info.extend(graph.value_info)
    made.sparse_initializer.extend(graph.sparse_initializer)
    for tensor in graph.initializer:
        _copy_tensor(tensor, made.initializer.add(), tags)
    for node in graph.node:
        _copy_node(node, made.node.add(), tags)


def _carrier(tensor: StoredTensor) -> TensorProto | AttributeProto:
    """What is in the graph of a tensor: of a list of floats the attribute."""
    attribute = tensor.attribute if isinstance(tensor, FloatsAttribute) else None
    return tensor.proto if attribute is None else attribute


def _copy_node(node: NodeProto, made: NodeProto, tags: Tags) -> None:
    if not any(one.HasField("t") or IdentityKey(one) in tags or any(graphs_in(one)) for one in node.attribute):
        made.CopyFrom(node)
        return
    made.name, made.op_type, made.domain = node.name, node.op_type, node.domain
    made.input.extend(node.input)
    made.output.extend(node.output)
    for attribute in node.attribute:
        if IdentityKey(attribute) in tags:  # a list of floats becomes a tensor, which the walk can follow
            made.attribute.add(name="value", type=AttributeProto.TENSOR).t.CopyFrom(
                TensorProto(
                    dims=[len(attribute.floats)], data_type=TensorProto.FLOAT, doc_string=tags[IdentityKey(attribute)]
                )
            )
            continue
        own, bodies = made.attribute.add(name=attribute.name, type=attribute.type), [*graphs_in(attribute)]
        if attribute.HasField("t"):
            _copy_tensor(attribute.t, own.t, tags)
        elif not bodies:
            own.CopyFrom(attribute)
        for body in bodies:
            _copy_graph(body, own.g if attribute.HasField("g") else own.graphs.add(), tags)


def _copy_tensor(tensor: TensorProto, made: TensorProto, tags: Tags) -> None:
    if int(np.prod(tensor.dims, dtype=np.int64)) <= LARGEST:
        made.CopyFrom(tensor)
    else:
        made.name, made.data_type = tensor.name, tensor.data_type
        made.dims.extend(tensor.dims)
    made.doc_string = tags.get(IdentityKey(tensor), "")


__all__ = ["bare_copy"]
