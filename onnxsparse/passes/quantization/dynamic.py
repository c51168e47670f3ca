"""Dynamic quantization: integer products whose inputs are rounded at run time, by the range that each run has.

    x -> DynamicQuantizeLinear -> MatMulInteger(weight) -> Cast -> Mul(scale of x * scales of the weight) -> + bias

It needs no samples, and suits transformers on CPUs: onnxruntime makes one DynamicQuantizeMatMul of these nodes, or one
MatMulIntegerToFloat where several layers read the same rounded value. A weight keeps the name and the shape that it
has; one that is stored turned around goes through a Transpose, which a runtime computes once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from onnx import ModelProto, NodeProto, TensorProto, numpy_helper
from onnx.helper import make_node

from onnxsparse.graph.attributes import Attributes
from onnxsparse.graph.edit import FreshNames, all_names, reads
from onnxsparse.math.values import Array
from onnxsparse.passes.quantization.layers import RECURRENT
from onnxsparse.passes.quantization.qdq import Params, write_qdq
from onnxsparse.passes.quantization.values import key
from onnxsparse.passes.quantization.weight_only import weights_of
from onnxsparse.planning.quantization import Quantization, QuantizedWeight, Scheme

PRODUCTS = ("MatMul", "Gemm")


def dynamic_weights(proto: ModelProto, scheme: Scheme) -> Quantization:
    """What is rounded when the ranges of activations are those of each run."""
    alone = weights_of(proto, replace(scheme, layers=replace(scheme.layers, inputs=None, outputs=None, block=0)))
    nodes, found = {key(node): node for node in proto.graph.node}, list[QuantizedWeight]()
    left = dict(alone.left)
    ranks = {tensor.name: len(tensor.dims) for tensor in proto.graph.initializer}
    for one in alone.weights:
        reasons = {output: "" if one.looked_up else _reason(nodes[output], slot) for output, slot in one.readers}
        left.update({output: reason for output, reason in reasons.items() if reason})
        readers = tuple(reader for reader in one.readers if not reasons[reader[0]])
        if readers:
            # onnxruntime (1.19 to 1.31) takes the scales of the first of several matrices for all when it fuses.
            axis = one.axis if one.looked_up or ranks[one.name] == 2 else None
            found.append(replace(one, readers=readers, axis=axis))
    return Quantization((), tuple(found), left)


def _reason(node: NodeProto, slot: int) -> str:
    """Why a layer stays in float; '' where it is rounded."""
    attributes = Attributes(node, {})
    if node.op_type in RECURRENT:
        return f"ONNX has no {node.op_type} on integers, only one runtime has"
    if node.op_type == "Conv":
        return "a convolution would look for the range of its input in every run, which costs more than integers gain"
    if node.op_type not in PRODUCTS:
        return f"ONNX has no {node.op_type} on integers"
    if slot != 1:
        return "its weight is the left operand"
    if node.op_type == "Gemm" and (attributes.integer("transA") or attributes.number("alpha", 1.0) != 1.0):
        return "its input is turned around or scaled"
    if node.op_type == "Gemm" and len(node.input) > 2 and attributes.number("beta", 1.0) != 1.0:
        return "its bias is scaled"
    return ""


def write_dynamic(proto: ModelProto, quantization: Quantization, params: Params) -> None:
    """Change a float graph, in place, into one that rounds its activations by the range of each run."""
    _Writer(proto, params).write([one for one in quantization.weights if not one.looked_up])
    write_qdq(proto, Quantization((), tuple(one for one in quantization.weights if one.looked_up)), params)


# -- the nodes


class _Writer:
    def __init__(self, proto: ModelProto, params: Params) -> None:
        self._graph, self._params = proto.graph, params
        self._fresh = FreshNames(all_names(proto))
        self._stored = {tensor.name: tensor for tensor in proto.graph.initializer}
        self._rounded: dict[str, tuple[str, str, str]] = {}
        self._nodes: list[NodeProto] = []

    def write(self, weights: list[QuantizedWeight]) -> None:
        layers = {output: one.name for one in weights for output, _ in one.readers}
        times = Counter(one.name for one in weights for _ in one.readers)
        scales = {one.name: self._constant(self._params[one.name].scale, f"{one.name}_scale") for one in weights}
        integers = {name: self._integers(name, count) for name, count in times.items()}
        for node in self._graph.node:
            if key(node) in layers:
                name = layers[key(node)]
                self._product(node, integers[name], scales[name])
            else:
                self._nodes.append(node)
        nodes = [NodeProto.FromString(node.SerializeToString()) for node in self._nodes]
        del self._graph.node[:]
        self._graph.node.extend(nodes)

    def _integers(self, name: str, times: int) -> str:
        """The tensor of integers, read so many times: that of the weight, or one beside it where others read floats."""
        numbers = numpy_helper.to_array(self._stored[name])
        shared = sum(reads(node).count(name) for node in self._graph.node) > times
        shared |= any(name == output.name for output in self._graph.output)
        made = self._fresh(f"{name}_quantized") if shared else name
        tensor = self._graph.initializer.add() if shared else self._stored[name]
        tensor.CopyFrom(numpy_helper.from_array(self._params[name].quantize(numbers), made))
        return made

    def _product(self, node: NodeProto, weight: str, scale: str) -> None:
        made = node.output[0]
        rounded, own, zero = self._rounded_input(node.input[0])
        if node.op_type == "Gemm" and Attributes(node, {}).integer("transB"):
            weight = self._add("Transpose", [weight], f"{weight}_transposed", perm=[1, 0])
        sums = self._add("MatMulInteger", [rounded, weight, zero], f"{made}_int32")
        factor = self._add("Mul", [own, scale], f"{made}_scale")
        numbers = self._add("Cast", [sums], f"{made}_float", to=TensorProto.FLOAT)
        product = self._add("Mul", [numbers, factor], f"{made}_product")
        if len(node.input) > 2 and node.input[2]:
            self._add("Add", [product, node.input[2]], made)
        self._nodes[-1].output[0] = made

    def _rounded_input(self, value: str) -> tuple[str, str, str]:
        """The integers, their scale and their zero point: once for all layers that read a value."""
        if value not in self._rounded:
            integers, scale, zero = (self._fresh(f"{value}_{word}") for word in ("quantized", "scale", "zero_point"))
            made = self._fresh(f"{value}_quantize")
            self._nodes.append(make_node("DynamicQuantizeLinear", [value], [integers, scale, zero], made))
            self._rounded[value] = (integers, scale, zero)
        return self._rounded[value]

    def _constant(self, value: Array, name: str) -> str:
        found = self._fresh(name)
        self._graph.initializer.append(numpy_helper.from_array(value, found))
        return found

    def _add(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> str:
        found = self._fresh(output)
        self._nodes.append(make_node(operator, inputs, [found], self._fresh(f"{found}_node"), **attributes))
        return found
