"""Where values and weights of a float graph are rounded: what each operator lets be integers, and a device's rules."""

from __future__ import annotations

from collections import defaultdict

from onnx import ModelProto, NodeProto, TensorProto

from onnxsparse.graph.attributes import Attributes
from onnxsparse.graph.weights import Weight
from onnxsparse.planning.quantization import LayerScheme, Quantization, QuantizedValue, QuantizedWeight, Reader, Scheme

PRODUCTS = {"Conv": 2, "ConvTranspose": 2, "Gemm": 2, "MatMul": None}
"""Operators whose first two inputs are multiplied, and the number of the input that is added."""


def quantization_of(proto: ModelProto, scheme: Scheme) -> Quantization:
    """What is rounded in a float graph by a scheme."""
    return _Placement(proto, scheme).made()


class _Placement:
    def __init__(self, proto: ModelProto, scheme: Scheme) -> None:
        self._scheme = scheme
        self._nodes = list(proto.graph.node)
        self._stored = {tensor.name: tensor for tensor in proto.graph.initializer}
        self._readers: dict[str, list[Reader]] = defaultdict(list)
        self._grids: dict[str, LayerScheme] = {}
        self._weights: dict[str, QuantizedWeight] = {}
        self._left: dict[str, str] = {}

    def made(self) -> Quantization:
        for node in self._nodes:
            if node.op_type in PRODUCTS and node.domain in ("", "ai.onnx"):
                self._product(node, self._scheme.layers)
        values = []
        for name, readers in self._readers.items():
            grid = self._grids[name].inputs
            assert grid is not None
            values.append(QuantizedValue(name, grid, tuple(readers)))
        return Quantization(tuple(values), tuple(self._weights.values()), self._left)

    def _product(self, node: NodeProto, layer: LayerScheme) -> None:
        for slot in (0, 1):
            name = node.input[slot]
            reader = (node.output[0], slot)
            if name in self._stored:
                self._weight(node, slot, layer)
            elif layer.inputs is not None:
                self._readers[name].append(reader)
                self._grids[name] = layer

    def _weight(self, node: NodeProto, slot: int, layer: LayerScheme) -> None:
        tensor, at = self._stored[node.input[slot]], PRODUCTS[node.op_type]
        if layer.weights is None or tensor.data_type != TensorProto.FLOAT or tensor.name in self._weights:
            return
        bias = node.input[at] if at is not None and len(node.input) > at and node.input[at] in self._stored else ""
        self._weights[tensor.name] = QuantizedWeight(
            tensor.name, layer.weights, _axis(node, slot, len(tensor.dims)) if layer.per_channel else None,
            ((node.output[0], slot),), node.input[1 - slot], bias,
        )  # fmt: skip


def _axis(node: NodeProto, slot: int, rank: int) -> int | None:
    """The axis of a weight along which the outputs lie."""
    if node.op_type in ("Conv", "ConvTranspose"):
        return 0 if node.op_type == "Conv" else 1
    if node.op_type == "Gemm":
        return 0 if Attributes(node, {}).integer("transB", 0) else 1
    return rank - 1 if slot == 1 and rank > 1 else None


__all__ = ["Weight", "quantization_of"]
