"""A float model made ready to be quantized: constants as initializers, and an opset that has scales along an axis.

The copy computes the same; what was changed in it is said in notes.
"""

from __future__ import annotations

from onnx import ModelProto, version_converter

from onnxsparse.graph.model import Model

_IR_VERSIONS = {21: 10}
"""The first version of the file format that has the element types of an opset."""

OPSET = 13
"""The first one whose QuantizeLinear and DequantizeLinear have an axis."""


def float_graph(model: Model) -> tuple[ModelProto, list[str]]:
    """A copy of a model in the form that is quantized, and what was done for that."""
    proto = model.copy_proto()
    notes = raise_opset(proto, OPSET, "quantization per channel needs")
    _constants_as_initializers(proto)
    return proto, notes


def raise_opset(proto: ModelProto, opset: int, needed: str) -> list[str]:
    """Make the opset of a graph at least this one, in place; what was done, and what for."""
    have = next((one.version for one in proto.opset_import if one.domain in ("", "ai.onnx")), 1)
    if have >= opset:
        return []
    proto.CopyFrom(version_converter.convert_version(proto, opset))
    proto.ir_version = max(proto.ir_version, _IR_VERSIONS.get(opset, 0))
    return [f"the opset was raised from {have} to {opset}, which {needed}"]


def _constants_as_initializers(proto: ModelProto) -> None:
    for node in [node for node in proto.graph.node if node.op_type == "Constant"]:
        value = next((one for one in node.attribute if one.name == "value"), None)
        if value is not None:
            tensor = proto.graph.initializer.add()
            tensor.CopyFrom(value.t)
            tensor.name = node.output[0]
            proto.graph.node.remove(node)
