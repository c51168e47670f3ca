"""Writing QuantizeLinear and DequantizeLinear into a float graph: integer weights, 32-bit biases, rounded values.

1. An integer weight keeps the name of the tensor that it was; what its readers see has a name of its own. Where another
   reader still needs floats, the float tensor keeps its name.
2. Every pruned place is exactly the zero point, because zero is a step of every grid.
3. Each value has one pair of nodes, however many read it.
4. A table that says so is dequantized behind its Gather, so that a run touches no rows but those that it looks up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper
from onnx.helper import make_attribute, make_node

from onnxsparse.errors import ModelError
from onnxsparse.graph.edit import FreshNames, all_names, reads
from onnxsparse.graph.storage import INT4, UINT4, packed
from onnxsparse.math.quantization import SMALLEST_SCALE, Grid, QParams, of_bias, ranges, widened_for_bias
from onnxsparse.math.values import Array
from onnxsparse.planning.quantization import Quantization, QuantizedValue, QuantizedWeight, Reader

BIAS_STEPS = 1 << 20
"""So many steps has the bias of an output whose weights are all zero."""
WIDENED = 2.0
"""A scale that is shared grows no more for a bias: it would cost the others more than a bit."""
Params = Mapping[str, QParams]
"""Scale and zero point of every quantized value and weight, by name."""


def write_qdq(proto: ModelProto, quantization: Quantization, params: Params) -> None:
    """Change a float graph, in place, into one that is rounded; weights have the numbers that the graph has."""
    _Writer(proto, quantization, fitted(proto, quantization, params)).write()


def fitted(proto: ModelProto, quantization: Quantization, params: Params) -> dict[str, QParams]:
    """The same for values that are like others, too, and with scales of weights at which every bias fits.

    A bias has the scale of the products: that of the inputs times that of the weight. Where the weight along an index
    is zero altogether, its scale is free and the bias decides it alone. A scale that several outputs share, or
    several layers, does not grow for the bias of one (a class that is switched off): such a bias stays float.
    """
    found, tensors = quantization.for_all(params), {tensor.name: tensor for tensor in proto.graph.initializer}
    names = [weight.name for weight in quantization.weights]
    for weight in quantization.weights:
        own, inputs = found.get(weight.name), found.get(weight.input)
        if own is None or inputs is None or not weight.bias or weight.block:
            continue
        bias = numpy_helper.to_array(tensors[weight.bias]).reshape(-1)
        if bias.size % own.scale.size == 0:
            widest = np.abs(bias).reshape(-1, own.scale.size).max(axis=0).astype(np.float64)
            with np.errstate(over="ignore"):
                own = _free(own, numpy_helper.to_array(tensors[weight.name]), widest / inputs.scale.reshape(()))
                wider = widened_for_bias(own, inputs, widest)
            shared = wider.scale.size == 1 or names.count(weight.name) > 1
            costly = shared and bool((wider.scale > WIDENED * own.scale).any())
            fits = np.isfinite(of_bias(inputs, wider).scale).all()
            found[weight.name] = wider if fits and not costly else own
    return found


def _free(params: QParams, numbers: Array, bias: Array) -> QParams:
    """Scales by the bias, in steps of the inputs, where a weight is zero altogether."""
    low, high = ranges(numbers, params.axis)
    return params.with_scale(np.where((low == 0) & (high == 0) & (bias > 0), bias / BIAS_STEPS, params.scale))


_LOOKED_UP = ("quantized", "steps", "scales", "scale")


class _Writer:
    def __init__(self, proto: ModelProto, quantization: Quantization, params: Params) -> None:
        self._graph, self._params, self._quantization = proto.graph, params, quantization
        self._fresh = FreshNames(all_names(proto))
        self._stored = {tensor.name: tensor for tensor in proto.graph.initializer}
        self._by_output = {name: node for node in proto.graph.node for name in node.output if name}
        self._reads = Counter(name for node in proto.graph.node for name in reads(node))
        self._reads.update(value.name for value in proto.graph.output)
        self._behind: dict[str, list[NodeProto]] = {}
        self._first: list[NodeProto] = []

    def write(self) -> None:
        for weight in self._quantization.weights:
            if weight.bias and weight.input in self._params:
                self._bias(weight)
        looked_up = {weight.name for weight in self._quantization.weights if weight.looked_up}
        for name, readers in self._weights().items():
            params, numbers = self._params[name], numpy_helper.to_array(self._stored[name])
            write = self._as_looked_up if name in looked_up else self._as_integers
            write(name, params, params.quantize(numbers), readers)
        for value in self._quantization.values:
            if value.readers:
                self._value(value)
        self._place()

    # -- weights

    def _weights(self) -> dict[str, tuple[Reader, ...]]:
        """The readers of every quantized tensor."""
        found: dict[str, tuple[Reader, ...]] = {}
        for weight in self._quantization.weights:
            found[weight.name] = (*found.get(weight.name, ()), *weight.readers)
        return found

    def _bias(self, weight: QuantizedWeight) -> None:
        """In 32 bits; one that several layers add is written for each of their scales."""
        numbers = numpy_helper.to_array(self._stored[weight.bias])
        params = of_bias(self._params[weight.input], self._params[weight.name])
        if not params.scale.size or numbers.size % params.scale.size or numbers.size != max(numbers.shape, default=1):
            return
        if 1 < params.scale.size < numbers.size:  # groups of a transposed convolution share scales
            params = replace(
                params,
                scale=np.tile(params.scale, numbers.size // params.scale.size),
                zero_point=np.zeros(numbers.size, np.int32),
            )
        params = replace(params, axis=int(np.argmax(numbers.shape)) if params.scale.size > 1 else None)
        if not _holds(params, numbers):
            return
        readers = self._readers_of_bias(weight)
        if weight.float_bias:
            self._point(readers, weight.bias, self._keep(_tensor(params.fake(numbers), weight.bias), readers))
        else:
            self._as_integers(weight.bias, params, params.quantize(numbers), readers)

    def _readers_of_bias(self, weight: QuantizedWeight) -> tuple[Reader, ...]:
        """The layers that add it, or the nodes behind them."""
        found = []
        for output in dict.fromkeys(output for output, _ in weight.readers):
            layer = self._by_output[output]
            found += [(output, slot) for slot in _slots(layer, weight.bias) if slot > 1]
            for node in self._graph.node if len(layer.input) < 3 else ():
                if layer.output[0] in node.input:
                    found += [(node.output[0], slot) for slot in _slots(node, weight.bias)]
        return tuple(found)

    def _as_integers(self, name: str, params: QParams, integers: Array, readers: tuple[Reader, ...]) -> None:
        kept = self._keep(integer_tensor(integers, params.grid, name), readers)
        made = self._fresh(f"{name}_dequantized")
        self._first.append(self._node("DequantizeLinear", [kept, *self._grid_of(name, params)], made, params))
        self._point(readers, name, made)

    def _as_looked_up(self, name: str, params: QParams, integers: Array, readers: tuple[Reader, ...]) -> None:
        """Rows times their scales, which are looked up, too: DequantizeLinear has no scale for each looked-up row."""
        self._point(readers, name, self._keep(integer_tensor(integers, params.grid, name), readers))
        scale = self._constant(f"{name}_scale", params.scale)
        axes = "" if params.scale.size == 1 else self._constant(f"{name}_axes", np.arange(-1, -integers.ndim, -1))
        for output in dict.fromkeys(output for output, _ in readers):
            node = self._by_output[output]
            rows, steps, scales, own = (self._fresh(f"{output}_{word}") for word in _LOOKED_UP)
            node.output[0] = rows
            own = own if axes else scale
            of_rows = [
                self._made("Gather", [scale, node.input[1]], scales),
                self._made("Unsqueeze", [scales, axes], own),
            ]
            self._behind[rows] = [
                self._made("Cast", [rows], steps, to=TensorProto.FLOAT),
                *(of_rows if axes else ()),
                self._made("Mul", [steps, own], output),
            ]

    def _keep(self, tensor: TensorProto, readers: tuple[Reader, ...]) -> str:
        """Store new numbers of a tensor for some readers, under its name if nothing else reads the old ones."""
        name = tensor.name
        self._reads[name] -= len(readers)
        if self._reads[name]:
            tensor.name = self._fresh(f"{name}_quantized")
            self._graph.initializer.append(tensor)
        else:
            self._stored[name].CopyFrom(tensor)
        return tensor.name

    # -- values

    def _value(self, value: QuantizedValue) -> None:
        params = self._params[value.like or value.name]
        scales = self._grid_of(value.name, params)
        rounded, made = self._fresh(f"{value.name}_quantized"), self._fresh(f"{value.name}_dequantized")
        pair = [
            self._node("QuantizeLinear", [value.name, *scales], rounded, params),
            self._node("DequantizeLinear", [rounded, *scales], made, params),
        ]
        self._behind[value.name] = pair
        self._point(value.readers, value.name, made)

    def _grid_of(self, name: str, params: QParams) -> list[str]:
        zero_point = params.zero_point.astype(params.grid.dtype)
        one = params.scale.size == 1 and not params.block  # an array of one number would want an axis
        scale, zero_point = (params.scale.reshape(()), zero_point.reshape(())) if one else (params.scale, zero_point)
        if params.block and not zero_point.any():  # as many as scales, and nothing that is not known without them
            return [self._constant(f"{name}_scale", scale)]
        named = self._fresh(f"{name}_zero_point")
        self._graph.initializer.append(integer_tensor(zero_point, params.grid, named))
        return [self._constant(f"{name}_scale", scale), named]

    def _constant(self, name: str, array: Array) -> str:
        found = self._fresh(name)
        self._graph.initializer.append(_tensor(array, found))
        return found

    def _made(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> NodeProto:
        return make_node(operator, inputs, [output], self._fresh(f"{output}_node"), **attributes)

    def _node(self, operator: str, inputs: list[str], output: str, params: QParams) -> NodeProto:
        node = self._made(operator, inputs, output)
        if params.scale.size > 1 or params.block:
            node.attribute.append(make_attribute("axis", params.axis))
        if params.block:
            node.attribute.append(make_attribute("block_size", params.block))
        return node

    def _point(self, readers: tuple[Reader, ...], name: str, made: str) -> None:
        for output, slot in readers:
            node = self._by_output[output]
            if node.input[slot] != name:
                raise ModelError(f"input {slot} of '{output}' is '{node.input[slot]}' and not '{name}'")
            node.input[slot] = made

    # -- the order of the nodes

    def _place(self) -> None:
        """Behind what makes a value; those of inputs and stored tensors come first."""
        made = {name for node in self._graph.node for name in node.output}
        placed = [node for name, pair in self._behind.items() if name not in made for node in pair]
        placed = [*self._first, *placed]
        waiting = list(self._graph.node)[::-1]
        while waiting:
            placed.append(waiting.pop())
            waiting += [node for name in placed[-1].output for node in self._behind.get(name, ())][::-1]
        copies = [NodeProto.FromString(node.SerializeToString()) for node in placed]
        del self._graph.node[:]
        self._graph.node.extend(copies)


def _tensor(array: Array, name: str) -> TensorProto:
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def integer_tensor(array: Array, grid: Grid, name: str) -> TensorProto:
    """Integers in the type of a grid, two in a byte where they have 4 bits: numpy has no such type."""
    if grid.bits > 4:
        return _tensor(array, name)
    return TensorProto(
        name=name, data_type=INT4 if grid.signed else UINT4, dims=array.shape, raw_data=packed(array).tobytes()
    )


def _holds(params: QParams, bias: Array) -> bool:
    """Whether a bias fits into 32 bits; where it does not it stays float."""
    scale = params.spread(bias)[0].astype(np.float64)
    usable = np.isfinite(scale).all() and (scale >= SMALLEST_SCALE).all()
    return bool(usable and (np.abs(bias) <= scale * params.grid.high).all())


def _slots(node: NodeProto, name: str) -> list[int]:
    """The inputs of a node that read a value."""
    return [slot for slot, one in enumerate(node.input) if one == name]


def stored(proto: ModelProto, name: str) -> Array:
    """The numbers of an initializer."""
    tensor: TensorProto = next(one for one in proto.graph.initializer if one.name == name)
    return numpy_helper.to_array(tensor)
