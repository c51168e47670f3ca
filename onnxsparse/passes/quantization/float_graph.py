"""A float model made ready to be quantized: constants as initializers, and an opset that has scales along an axis.

The copy computes the same; what was changed in it is said in notes.
"""

from __future__ import annotations

from onnx import ModelProto, version_converter

from onnxsparse.graph.model import Model

OPSET = 13
"""The first one whose QuantizeLinear and DequantizeLinear have an axis."""


def float_graph(model: Model) -> tuple[ModelProto, list[str]]:
    """A copy of a model in the form that is quantized, and what was done for that."""
    proto, notes = model.copy_proto(), list[str]()
    opset = next((one.version for one in proto.opset_import if one.domain in ("", "ai.onnx")), 1)
    if opset < OPSET:
        proto = version_converter.convert_version(proto, OPSET)
        notes.append(f"the opset was raised from {opset} to {OPSET}, which quantization per channel needs")
    _constants_as_initializers(proto)
    return proto, notes


def _constants_as_initializers(proto: ModelProto) -> None:
    for node in [node for node in proto.graph.node if node.op_type == "Constant"]:
        value = next((one for one in node.attribute if one.name == "value"), None)
        if value is not None:
            tensor = proto.graph.initializer.add()
            tensor.CopyFrom(value.t)
            tensor.name = node.output[0]
            proto.graph.node.remove(node)
