"""A float model made ready to be quantized: constants as initializers, one layer for each product and its scaling.

1. The copy computes the same, to the rounding of its floats, and what was changed in it is said in notes.
2. Local functions are inlined, Constant nodes and Identity of stored tensors become initializers, and initializers are
   no inputs of the graph. Names stay.
3. Transpose, Reshape, Squeeze, Unsqueeze, Flatten and Cast of a stored float tensor that nothing else reads are done.
4. Operator sets below 13 are converted: QuantizeLinear and DequantizeLinear have an axis from there on.
5. Transpose says the order of its axes: onnxruntime-training 1.19 dies where one between pairs leaves that out.
6. BatchNormalization and constants per channel go into the layer before them: see `folding`.
What it does not do: look into the bodies of If, Loop and Scan, or convert the model's other types to float32.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper, version_converter
from onnx.helper import make_attribute, make_tensor_value_info

from onnxsparse.engines.ort.versions import FIRST_OPSET, upgraded
from onnxsparse.errors import ModelError
from onnxsparse.graph.attributes import Attributes
from onnxsparse.graph.edit import FLOATS, called, containers, keep, reads, remove_nodes, rename_reads
from onnxsparse.graph.initializers import constants_as_initializers, inlined, without_identities
from onnxsparse.graph.model import Model
from onnxsparse.math.values import Array
from onnxsparse.passes.quantization.folding import fold_scaling
from onnxsparse.passes.quantization.values import OWN, SMALL, VIEWS, types_of

FIRST_IR = 7
"""That of opset 13; from 4 on initializers need not be inputs."""
QUANTIZED = ("QLinear", "QGemm", "QAttention", "QuantizeLinear", "DequantizeLinear", "DynamicQuantize", "QOrdered")
INTEGER = ("Integer", "IntegerToFloat", "NBits", "MatMulBnb4", "MatMulFpQ4")
LEAST_INPUTS = {
    "BatchNormalization": 5, "Conv": 2, "ConvTranspose": 2, "Gemm": 2, "MatMul": 2, "Mul": 2, "Div": 2, "Add": 2,
    "Sub": 2, "QuantizeLinear": 2, "DequantizeLinear": 2, "FakeQuant": 3, "Round": 1, "Identity": 1, "Clip": 1,
    "Max": 1, "Min": 1,
}  # fmt: skip
_IR_VERSIONS = {21: 10}
"""The first version of the file format that has the element types of an opset."""


def float_graph(model: Model) -> tuple[ModelProto, list[str]]:
    """A copy of a model in the form that is quantized, and what was done for that."""
    _demand_float(model.proto)
    proto, notes = plain_graph(model)
    _fold_views(proto)
    notes += fold_scaling(proto)
    _write_orders(proto)
    made = {name for node in proto.graph.node for name in node.output}
    keep(proto.graph.value_info, [value for value in proto.graph.value_info if value.name in made])
    return proto, notes


def plain_graph(model: Model) -> tuple[ModelProto, list[str]]:
    """A copy without functions and Constant nodes, in an operator set that quantizes per channel; and notes on that."""
    proto, notes = model.copy_proto(), list[str]()
    _demand_inputs(proto)
    if proto.functions:
        notes.append(f"{_many(len(proto.functions), 'local function was', 'local functions were')} inlined")
        proto = _without_large(proto, inlined)
    proto = _raised(proto, notes)
    graph = proto.graph
    constants_as_initializers(graph)
    stored = {tensor.name for tensor in graph.initializer}
    while without_identities(graph, stored):
        pass
    keep(graph.input, [value for value in graph.input if value.name not in stored])
    proto.ir_version = max(proto.ir_version, FIRST_IR)
    return proto, notes


def _demand_float(proto: ModelProto) -> None:
    for node in (node for container in containers(proto) for node in container.node):
        if node.op_type.startswith(QUANTIZED) or node.op_type.endswith(INTEGER):
            raise ModelError(
                f"the model is quantized already ({called(node)}); quantize the float model that it was made of, or "
                "take the scales of one with QuantizeLinear and DequantizeLinear over with `quantize --scales`; for an "
                "export of quantization-aware training there is tools/model_quantize_qat_export.py"
            )


def _demand_inputs(proto: ModelProto) -> None:
    """What is looked at here has as many inputs as its operator needs, and an output."""
    for node in proto.graph.node:
        least = LEAST_INPUTS.get(node.op_type, 0) if node.domain in (*OWN, "com.microsoft") else 0
        if sum(map(bool, node.input[:least])) < least or (least and not node.output):
            raise ModelError(f"{called(node)} lacks inputs or outputs that its operator needs")


def _raised(proto: ModelProto, notes: list[str]) -> ModelProto:
    """The model in an operator set that can quantize per channel."""
    opset = _opset(proto)
    if opset >= FIRST_OPSET:
        return proto
    notes.append(_told(opset, FIRST_OPSET, "quantization per channel needs"))
    raised = _without_large(proto, lambda one: upgraded(one, opset))
    keep(raised.metadata_props, proto.metadata_props)  # the converter drops them, and what they record
    return raised


def raise_opset(proto: ModelProto, opset: int, needed: str) -> list[str]:
    """Make the operator set of a graph at least this one, in place; what was done, and what for."""
    have = _opset(proto)
    if have >= opset:
        return []
    raised = _without_large(proto, lambda one: version_converter.convert_version(one, opset))
    keep(raised.metadata_props, proto.metadata_props)
    raised.ir_version = max(raised.ir_version, proto.ir_version, _IR_VERSIONS.get(opset, 0))
    proto.CopyFrom(raised)
    return [_told(have, opset, needed)]


def _opset(proto: ModelProto) -> int:
    return next((one.version for one in proto.opset_import if one.domain in OWN), 1)


def _told(have: int, opset: int, needed: str) -> str:
    return f"the opset was raised from {have} to {opset}, which {needed}"


def _without_large(proto: ModelProto, change: Callable[[ModelProto], ModelProto]) -> ModelProto:
    """What onnx's C++ parts make of a model, which take 2 GB at most: large tensors wait outside, as inputs."""
    graph, given = proto.graph, {value.name for value in proto.graph.input}
    large = [TensorProto.FromString(one.SerializeToString()) for one in graph.initializer if one.ByteSize() > SMALL]
    keep(graph.initializer, [one for one in graph.initializer if one.ByteSize() <= SMALL])
    added = [one for one in large if one.name not in given]
    graph.input.extend(make_tensor_value_info(one.name, one.data_type, list(one.dims)) for one in added)
    made = change(proto)
    gone = {one.name for one in added}
    keep(made.graph.input, [value for value in made.graph.input if value.name not in gone])
    made.graph.initializer.extend(large)
    return made


def _fold_views(proto: ModelProto) -> None:
    """Views of stored tensors, as exporters write them before a layer: the tensor is stored as it is read."""
    graph, stored = proto.graph, {tensor.name: tensor for tensor in proto.graph.initializer}
    counts = Counter(name for node in graph.node for name in reads(node))
    counts.update(value.name for value in graph.output)
    outputs = {value.name for value in graph.output}
    gone, names = list[NodeProto](), dict[str, str]()
    for node in graph.node:
        source = names.get(node.input[0], node.input[0]) if node.input else ""
        tensor = stored.get(source)
        if tensor is None or counts[node.input[0]] != 1 or set(node.output) & outputs:
            continue
        seen = _view(node, tensor, stored)
        if seen is not None:
            tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(seen).reshape(seen.shape), source))
            names[node.output[0]] = source
            gone.append(node)
    remove_nodes(graph, gone)
    rename_reads(graph.node, names)


def _write_orders(proto: ModelProto) -> None:
    """Write out the order of the axes, which is the reverse, where a Transpose does not say it."""
    nodes = [node for node in proto.graph.node if node.op_type == "Transpose" and node.domain in OWN]
    nodes = [node for node in nodes if not node.attribute]
    ranks = {tensor.name: len(tensor.dims) for tensor in proto.graph.initializer}
    if nodes:
        found = types_of(proto)
        ranks.update((name, len(kind.shape.dim)) for name, kind in found.items() if kind.HasField("shape"))
    for node in nodes:
        if node.input[0] in ranks:
            node.attribute.append(make_attribute("perm", [*range(ranks[node.input[0]])][::-1]))


def _view(node: NodeProto, tensor: TensorProto, stored: Mapping[str, TensorProto]) -> Array | None:
    """What a node makes of a stored tensor of floats; None where it is no view, or not to be told."""
    others = [stored.get(name) for name in node.input[1:]]
    if node.op_type not in VIEWS or node.domain not in OWN or tensor.data_type not in FLOATS or None in others:
        return None
    array, found = numpy_helper.to_array(tensor), Attributes(node, {})
    sizes = numpy_helper.to_array(others[0]).tolist() if others and others[0] is not None else None
    if node.op_type == "Cast":
        return array.astype(np.float32) if found.integer("to") == TensorProto.FLOAT else None
    if node.op_type == "Transpose":
        return array.transpose(found.integers("perm"))
    if node.op_type == "Flatten":
        axis = found.integer("axis", 1)
        return array.reshape(int(np.prod(array.shape[:axis])), -1) if array.size else None
    if node.op_type == "Reshape":
        if not array.size or found.integer("allowzero", 0) or not isinstance(sizes, list):
            return None
        return array.reshape([array.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)])
    axes = None if sizes is None else tuple(sizes)
    return np.squeeze(array, axes) if node.op_type == "Squeeze" else np.expand_dims(array, axes or ())


def _many(count: int, one: str, more: str) -> str:
    return f"1 {one}" if count == 1 else f"{count} {more}"
