"""Dynamic quantization: integer products whose inputs are rounded at run time, by the range that each run has.

    x -> DynamicQuantizeLinear -> MatMulInteger(weight) -> Cast -> Mul(scale of x * scales of the weight) -> + bias

It needs no samples, and suits transformers on CPUs: onnxruntime makes one DynamicQuantizeMatMul of these nodes, or one
MatMulIntegerToFloat where several layers read the same rounded value. A weight keeps the name and the shape that it
has; one that is stored turned around goes through a Transpose, which a runtime computes once.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper
from onnx.helper import make_node

from onnxsparse.graph.attributes import Attributes
from onnxsparse.graph.edit import FreshNames, all_names, called
from onnxsparse.math.quantization import Grid
from onnxsparse.math.values import Array
from onnxsparse.passes.quantization.layers import RECURRENT
from onnxsparse.passes.quantization.qdq import Params, write_qdq
from onnxsparse.passes.quantization.values import key
from onnxsparse.passes.quantization.weight_only import Refine, Rounded, params_of, weights_of
from onnxsparse.planning.quantization import Quantization, QuantizedWeight, Scheme

PRODUCTS = {"MatMul": "MatMulInteger", "Gemm": "MatMulInteger", "Conv": "ConvInteger"}
CONVOLUTIONS = Grid(signed=False)
"""ConvInteger of onnxruntime 1.19 has no signed weights: these are uint8 around 128."""


def dynamic(proto: ModelProto, scheme: Scheme, convolutions: bool = False, refine: Refine | None = None) -> Rounded:
    """Round the products of a float graph, and its tables, in place."""
    quantization = dynamic_weights(proto, scheme, convolutions)
    params = params_of(proto, quantization)
    if refine is not None:
        refine(proto, quantization, params)
    write_dynamic(proto, quantization, params)
    return Rounded(quantization, params)


def dynamic_weights(proto: ModelProto, scheme: Scheme, convolutions: bool = False) -> Quantization:
    """What is rounded when the ranges of activations are those of each run."""
    alone = weights_of(proto, replace(scheme, layers=replace(scheme.layers, inputs=None, outputs=None, block=0)))
    nodes, found = {key(node): node for node in proto.graph.node}, list[QuantizedWeight]()
    left = dict(alone.left)
    ranks = {tensor.name: len(tensor.dims) for tensor in proto.graph.initializer}
    for one in alone.weights:
        reasons = {
            output: "" if one.looked_up else _reason(nodes[output], slot, convolutions) for output, slot in one.readers
        }
        left.update({output: reason for output, reason in reasons.items() if reason})
        readers = tuple(reader for reader in one.readers if not reasons[reader[0]])
        if readers:
            found.append(_quantized(replace(one, readers=readers), nodes[readers[0][0]].op_type, ranks[one.name]))
    return Quantization((), tuple(found), left)


def _reason(node: NodeProto, slot: int, convolutions: bool) -> str:
    """Why a layer stays in float; '' where it is rounded."""
    attributes = Attributes(node, {})
    if node.op_type in RECURRENT:
        return f"ONNX has no {node.op_type} on integers, only one runtime has"
    if node.op_type not in PRODUCTS:
        return f"ONNX has no {node.op_type} on integers"
    if node.op_type == "Conv" and not convolutions:
        return "a convolution would look for the range of its input in every run, which costs more than integers gain"
    if slot != 1:
        return "its weight is the left operand"
    if node.op_type == "Gemm" and (attributes.integer("transA") or attributes.number("alpha", 1.0) != 1.0):
        return "its input is turned around or scaled"
    if node.op_type == "Gemm" and len(node.input) > 2 and attributes.number("beta", 1.0) != 1.0:
        return "its bias is scaled"
    return ""


def _quantized(one: QuantizedWeight, op: str, rank: int) -> QuantizedWeight:
    if op == "Conv":
        return replace(one, grid=CONVOLUTIONS)
    # onnxruntime (1.19 to 1.31) takes the scales of the first matrix for all when it fuses a product with several.
    return one if rank == 2 else replace(one, axis=None)


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
        self._inputs: dict[str, tuple[str, str, str]] = {}
        self._made: list[NodeProto] = []

    def write(self, weights: list[QuantizedWeight]) -> None:
        names = {one.name: self._integers(one) for one in weights}
        layers = {reader: one for one in weights for reader, _ in one.readers}
        for node in list(self._graph.node):
            one = layers.get(node.output[0])
            if one is None:
                self._made.append(node)
            else:
                self._product(node, one, names[one.name])
        nodes = [NodeProto.FromString(node.SerializeToString()) for node in self._made]
        del self._graph.node[:]
        self._graph.node.extend(nodes)

    def _integers(self, one: QuantizedWeight) -> str:
        """The tensor of integers: that of the weight, or one beside it where others still read floats."""
        numbers = numpy_helper.to_array(self._stored[one.name])
        mine = {reader for reader, _ in one.readers}
        shared = any(one.name in node.input and node.output[0] not in mine for node in self._graph.node)
        shared |= any(one.name == output.name for output in self._graph.output)
        name = self._fresh(f"{one.name}_quantized") if shared else one.name
        tensor = self._graph.initializer.add() if shared else self._stored[one.name]
        tensor.CopyFrom(numpy_helper.from_array(self._params[one.name].quantize(numbers), name))
        return name

    def _product(self, node: NodeProto, one: QuantizedWeight, weight: str) -> None:
        attributes = Attributes(node, {})
        if node.op_type == "Gemm" and attributes.integer("transB"):
            weight = self._node("Transpose", [weight], f"{weight}_transposed", perm=[1, 0])
        rounded, scale, zero = self._rounded(node.input[0])
        inputs = [rounded, weight, zero]
        if node.op_type == "Conv":
            inputs.append(self._constant(np.uint8(128), f"{one.name}_zero_point"))
        sums = self._node(PRODUCTS[node.op_type], inputs, f"{node.output[0]}_int32", called_as=called(node))
        if node.op_type == "Conv":
            self._made[-1].attribute.extend(node.attribute)
        factor = self._node("Mul", [scale, self._scale(node, one)], f"{node.output[0]}_scale")
        numbers = self._node("Cast", [sums], f"{node.output[0]}_float", to=TensorProto.FLOAT)
        bias = node.input[2] if len(node.input) > 2 else ""
        product = f"{node.output[0]}_product" if bias else node.output[0]
        product = self._node("Mul", [numbers, factor], product, exact=not bias)
        if bias:
            self._node("Add", [product, self._bias(node, bias)], node.output[0], exact=True)

    def _rounded(self, value: str) -> tuple[str, str, str]:
        """The rounded input, its scale and its zero point; once for all layers that read it."""
        if value not in self._inputs:
            names = (
                self._fresh(f"{value}_quantized"),
                self._fresh(f"{value}_scale"),
                self._fresh(f"{value}_zero_point"),
            )
            self._made.append(make_node("DynamicQuantizeLinear", [value], names, self._fresh(f"{value}_quantize")))
            self._inputs[value] = names
        return self._inputs[value]

    def _scale(self, node: NodeProto, one: QuantizedWeight) -> str:
        scale = self._params[one.name].scale
        spatial = len(self._stored[one.name].dims) - 2 if node.op_type == "Conv" else 0
        return self._constant(scale.reshape(scale.shape + (1,) * spatial), f"{one.name}_scale")

    def _bias(self, node: NodeProto, bias: str) -> str:
        """A convolution's bias lies along its channels."""
        if node.op_type != "Conv":
            return bias
        taps = len(self._stored[node.input[1]].dims) - 2 if node.input[1] in self._stored else 2
        shape = self._constant(np.array([1, -1, *[1] * taps], np.int64), f"{bias}_shape")
        return self._node("Reshape", [bias, shape], f"{bias}_reshaped")

    def _constant(self, value: Array, name: str) -> str:
        found = self._fresh(name)
        self._graph.initializer.append(numpy_helper.from_array(np.asarray(value), found))
        return found

    def _node(
        self,
        operator: str,
        inputs: list[str],
        output: str,
        exact: bool = False,
        called_as: str = "",
        **attributes: object,
    ) -> str:
        found = output if exact else self._fresh(output)
        name = self._fresh(f"{called_as or found}_quant" if called_as else f"{found}_node")
        self._made.append(make_node(operator, inputs, [found], name, **attributes))
        return found
