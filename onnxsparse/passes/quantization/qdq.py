"""Writing QuantizeLinear and DequantizeLinear into a float graph: integer weights, 32-bit biases, rounded values.

1. An integer weight keeps the name of the tensor that it was; what its readers see has a name of its own. Where another
   reader still needs floats, the float tensor keeps its name.
2. Every pruned place is exactly the zero point, because zero is a step of every grid.
3. Each value has one pair of nodes, however many read it.
4. A lookup table is dequantized behind its Gather, so that a run touches no rows but those that it looks up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper
from onnx.helper import make_attribute, make_node

from onnxsparse.errors import ModelError
from onnxsparse.graph.attributes import Attributes
from onnxsparse.graph.edit import FreshNames, all_names, reads
from onnxsparse.graph.storage import INT4, UINT4, packed
from onnxsparse.math.quantization import Grid, QParams, of_bias
from onnxsparse.math.values import Array
from onnxsparse.planning.quantization import Quantization, QuantizedValue, QuantizedWeight, Reader

Params = Mapping[str, QParams]
"""Scale and zero point of every quantized value and weight, by name."""


def write_qdq(proto: ModelProto, quantization: Quantization, params: Params) -> None:
    """Change a float graph, in place, into one that is rounded; weights have the numbers that the graph has."""
    _Writer(proto, params).write(quantization)

_LOOKED_UP = ("quantized", "steps", "scales", "scale")


class _Writer:
    def __init__(self, proto: ModelProto, params: Params) -> None:
        self._graph, self._params = proto.graph, params
        self._fresh = FreshNames(all_names(proto))
        self._stored = {tensor.name: tensor for tensor in proto.graph.initializer}
        self._by_output = {name: node for node in proto.graph.node for name in node.output if name}
        self._behind: dict[str, list[NodeProto]] = {}
        self._first: list[NodeProto] = []

    def write(self, quantization: Quantization) -> None:
        biases = set[str]()
        for weight in quantization.weights:
            if weight.bias and weight.input in self._params and weight.bias not in biases:
                biases.add(weight.bias)
                self._bias(weight)
        for weight in quantization.weights:
            self._weight(weight)
        for value in quantization.values:
            self._value(value)
        self._place()

    # -- weights

    def _weight(self, weight: QuantizedWeight) -> None:
        params, numbers = self._params[weight.name], numpy_helper.to_array(self._stored[weight.name])
        looked_up = params.axis in (0, None) and not params.block and not params.zero_point.any()
        looked_up &= all(slot == 0 and _is_lookup(self._by_output[one]) for one, slot in weight.readers)
        write = self._as_looked_up if looked_up else self._as_integers
        write(weight.name, params, params.quantize(numbers), weight.readers)

    def _bias(self, weight: QuantizedWeight) -> None:
        """In 32 bits where only this layer reads it."""
        readers = [(node.output[0], slot) for node in self._graph.node for slot in _slots(node, weight.bias)]
        own = {output for output, _ in weight.readers}
        if any(output not in own for output, _ in readers):
            return
        numbers = numpy_helper.to_array(self._stored[weight.bias])
        if numbers.ndim != 1:
            return
        params = of_bias(self._params[weight.input], self._params[weight.name])
        if params.scale.size not in (1, numbers.size):
            return
        self._as_integers(weight.bias, params, params.quantize(numbers), tuple(readers))

    def _as_integers(self, name: str, params: QParams, integers: Array, readers: tuple[Reader, ...]) -> None:
        kept = self._kept(name, params, integers, readers)
        made = self._fresh(f"{name}_dequantized")
        self._first.append(self._node("DequantizeLinear", [kept, *self._grid_of(name, params)], made, params))
        self._point(readers, name, made)

    def _as_looked_up(self, name: str, params: QParams, integers: Array, readers: tuple[Reader, ...]) -> None:
        """Rows times their scales, which are looked up, too: DequantizeLinear has no scale for each looked-up row."""
        kept = self._kept(name, params, integers, readers)
        self._point(readers, name, kept)
        scale = self._constant(f"{name}_scale", params.scale)
        axes = "" if params.scale.size == 1 else self._constant(f"{name}_axes", np.arange(-1, -integers.ndim, -1))
        for output, _ in readers:
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

    def _kept(self, name: str, params: QParams, integers: Array, readers: tuple[Reader, ...]) -> str:
        """The tensor of integers: the weight itself, or one beside it where others still read floats."""
        others = sum(len(_slots(node, name)) for node in self._graph.node) - len(readers)
        others += sum(name == output.name for output in self._graph.output)
        kept = name if not others else self._fresh(f"{name}_quantized")
        tensor = self._stored[name] if not others else self._graph.initializer.add()
        tensor.CopyFrom(_integers(integers, params.grid, kept))
        return kept

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
        scale = self._constant(f"{name}_scale", params.scale)
        if params.block and not params.zero_point.any():
            return [scale]
        zero_point = self._fresh(f"{name}_zero_point")
        numbers = params.zero_point.astype(params.grid.dtype)
        self._graph.initializer.append(_integers(numbers, params.grid, zero_point))
        return [scale, zero_point]

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


def _is_lookup(node: NodeProto) -> bool:
    """Of rows."""
    return node.op_type == "Gather" and not Attributes(node, {}).integer("axis")


def _tensor(array: Array, name: str) -> TensorProto:
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def _integers(array: Array, grid: Grid, name: str) -> TensorProto:
    """Integers in the type of a grid, two in a byte where they have 4 bits: numpy has no such type."""
    if grid.bits > 4:
        return _tensor(array, name)
    return TensorProto(
        name=name, data_type=INT4 if grid.signed else UINT4, dims=array.shape, raw_data=packed(array).tobytes()
    )


def _slots(node: NodeProto, name: str) -> list[int]:
    """The inputs of a node that read a value; -1 for one inside of a body."""
    found = [slot for slot, one in enumerate(node.input) if one == name]
    return found + [-1] * (reads(node).count(name) - len(found))


def stored(proto: ModelProto, name: str) -> Array:
    """The numbers of an initializer."""
    tensor: TensorProto = next(one for one in proto.graph.initializer if one.name == name)
    return numpy_helper.to_array(tensor)
