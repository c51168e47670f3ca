"""Scaling per channel folded into the layer before it: BatchNormalization, and Mul, Div, Add and Sub with constants.

    (W x + b) * s + t  =  (W * s) x + (b * s + t)        s, t: one number for each output

1. Only where nothing else reads what the layer gives, or its weight, and the constants lie along its outputs. The layer
   then gives what the scaling gave, under that name; its tensors keep theirs.
2. Zeros of a weight stay zeros, because each is multiplied with a finite number.
3. A MatMul of matrices with something added is a Gemm afterwards, which has a bias.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from onnxsparse.graph.attributes import Attributes
from onnxsparse.graph.edit import FreshNames, Unread, all_names, keep, reads, remove_nodes
from onnxsparse.math.values import Array
from onnxsparse.passes.quantization.values import OWN, types_of

LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
ARITHMETIC = ("Mul", "Div", "Add", "Sub")


@dataclass(frozen=True)
class _Scaling:
    """What a node does to each channel, in double precision."""

    scale: Array
    shift: Array


def fold_scaling(proto: ModelProto, only: Collection[str] | None = None) -> list[str]:
    """Change a graph in place, or `only` layers with these weights; what was folded, in words."""
    return _Folding(proto, only).fold()


class _Folding:
    def __init__(self, proto: ModelProto, only: Collection[str] | None) -> None:
        self._proto, self._graph, self._only = proto, proto.graph, only
        self._stored = {tensor.name: tensor for tensor in proto.graph.initializer}
        self._fresh = FreshNames(all_names(proto))
        self._reads = Counter(name for node in proto.graph.node for name in reads(node))
        self._outputs = {value.name for value in proto.graph.output}
        self._reads.update(self._outputs)
        self._made: dict[str, NodeProto] = {}
        self._folded: list[NodeProto] = []

    @cached_property
    def _ranks(self) -> dict[str, int]:
        found = types_of(self._proto)
        return {name: len(kind.shape.dim) for name, kind in found.items() if kind.HasField("shape")}

    def fold(self) -> list[str]:
        for node in self._graph.node:
            if not self._into_layer(node):
                self._made.update((name, node) for name in node.output)
        counts = Counter(node.op_type == "BatchNormalization" for node in self._folded)
        unread = [name for node in self._folded for name in node.input if name in self._stored]
        remove_nodes(self._graph, self._folded)
        Unread(self._proto).remove(unread)
        return [
            *_note(counts[True], "BatchNormalization was", "BatchNormalizations were"),
            *_note(
                counts[False], "operation with constants per channel was", "operations with constants per channel were"
            ),
        ]

    def _into_layer(self, node: NodeProto) -> bool:
        """Fold a node into the layer before it; whether that was done."""
        slot = self._computed(node)
        layer = self._made.get(node.input[slot]) if slot is not None else None
        if layer is None or layer.op_type not in LAYERS or layer.domain not in OWN or not self._alone(layer):
            return False
        outputs = self._outputs_of(layer)
        scaling = self._scaling(node, layer, slot or 0, outputs)
        if scaling is None or not self._fits(layer, scaling):
            return False
        self._scale(layer, scaling, outputs)
        layer.output[0] = node.output[0]
        self._made[node.output[0]] = layer
        self._folded.append(node)
        return True

    def _computed(self, node: NodeProto) -> int | None:
        """The input that flows through a node which scales it."""
        if node.domain not in OWN or not node.input:
            return None
        if node.op_type == "BatchNormalization":
            return 0
        if node.op_type not in ARITHMETIC:
            return None
        slots = [slot for slot, name in enumerate(node.input) if name not in self._stored]
        turned = node.op_type in ("Div", "Sub") and slots != [0]
        return None if turned or len(slots) != 1 else slots[0]

    def _alone(self, layer: NodeProto) -> bool:
        """Whether only the next node reads a layer, and only the layer its weight."""
        weight = self._stored.get(layer.input[1])
        if weight is None or weight.data_type != TensorProto.FLOAT or layer.input[0] in self._stored:
            return False
        if self._only is not None and weight.name not in self._only:
            return False
        bias = layer.input[2] if len(layer.input) > 2 else ""
        known = not bias or (bias in self._stored and self._stored[bias].data_type == TensorProto.FLOAT)
        return known and len(weight.dims) >= 2 and self._reads[weight.name] == 1 == self._reads[layer.output[0]]

    def _outputs_of(self, layer: NodeProto) -> int:
        dims, found = self._stored[layer.input[1]].dims, Attributes(layer, {})
        if layer.op_type == "Conv":
            return int(dims[0])
        if layer.op_type == "ConvTranspose":
            return int(dims[1]) * found.integer("group", 1)
        return int(dims[0] if layer.op_type == "Gemm" and found.integer("transB", 0) else dims[-1])

    # -- what a node does

    def _scaling(self, node: NodeProto, layer: NodeProto, slot: int, outputs: int) -> _Scaling | None:
        convolves = layer.op_type in ("Conv", "ConvTranspose")
        rank = len(self._stored[layer.input[1]].dims) if convolves else 2 if layer.op_type == "Gemm" else 0
        rank = rank or self._ranks.get(layer.output[0], 0)
        channel = 1 if convolves else rank - 1
        if node.op_type == "BatchNormalization":
            return self._normalization(node, outputs) if channel == 1 else None
        constant = self._stored[node.input[1 - slot]]
        numbers = _per_channel(constant, rank, channel, outputs)
        if numbers is None:
            return None
        with np.errstate(divide="ignore"):
            factor = {"Mul": numbers, "Div": 1 / numbers}.get(node.op_type, np.ones(outputs))
        return _Scaling(factor, {"Add": numbers, "Sub": -numbers}.get(node.op_type, np.zeros(outputs)))

    def _normalization(self, node: NodeProto, outputs: int) -> _Scaling | None:
        found = Attributes(node, {})
        extra = [name for name in node.output[1:] if name]
        if extra or found.integer("training_mode", 0) or any(name not in self._stored for name in node.input[1:]):
            return None
        scale, shift, mean, variance = (_doubles(self._stored[name]) for name in node.input[1:5])
        if any(one.shape != (outputs,) for one in (scale, shift, mean, variance)):
            return None
        with np.errstate(invalid="ignore", divide="ignore"):
            factor = scale / np.sqrt(variance + np.float32(found.number("epsilon", 1e-5)))
        return _Scaling(factor, shift - mean * factor)

    def _fits(self, layer: NodeProto, scaling: _Scaling) -> bool:
        if not np.isfinite(scaling.scale).all() or not np.isfinite(scaling.shift).all():
            return False
        if layer.op_type == "MatMul" and scaling.shift.any():
            return self._ranks.get(layer.input[0]) == 2 == len(self._stored[layer.input[1]].dims)
        return layer.op_type != "Gemm" or self._bias(layer, len(scaling.scale)) is not None

    # -- what the layer becomes

    def _bias(self, layer: NodeProto, outputs: int) -> Array | None:
        """What a layer adds to each output now; None where it adds a matrix."""
        if len(layer.input) < 3 or not layer.input[2]:
            return np.zeros(outputs)
        numbers = _doubles(self._stored[layer.input[2]]) * Attributes(layer, {}).number("beta", 1.0)
        plain = numbers.size == 1 or numbers.shape[-1:] == (outputs,) == (numbers.size,)
        return np.broadcast_to(numbers.reshape(-1), (outputs,)) if plain else None

    def _scale(self, layer: NodeProto, scaling: _Scaling, outputs: int) -> None:
        weight = self._stored[layer.input[1]]
        numbers = numpy_helper.to_array(weight)
        axes = _grouped(layer, numbers.shape)
        factors = scaling.scale.reshape([size if owner else 1 for size, owner in axes])
        scaled = numbers.reshape([size for size, _ in axes]) * factors
        weight.CopyFrom(numpy_helper.from_array(scaled.reshape(numbers.shape).astype(np.float32), weight.name))
        old = self._bias(layer, outputs)
        assert old is not None
        bias = old * scaling.scale + scaling.shift
        if bias.any() or (len(layer.input) > 2 and layer.input[2]):
            self._set_bias(layer, bias.astype(np.float32))

    def _set_bias(self, layer: NodeProto, bias: Array) -> None:
        if layer.op_type == "MatMul":
            layer.op_type = "Gemm"
        name = layer.input[2] if len(layer.input) > 2 else ""
        if not name or self._reads[name] > 1:
            self._reads[name] -= 1
            name = self._fresh(f"{name}_scaled" if name else f"{layer.input[1]}_bias")
            self._stored[name] = self._graph.initializer.add()
            self._reads[name] = 1
        self._stored[name].CopyFrom(numpy_helper.from_array(bias, name))
        inputs = [*layer.input[:2], name]
        del layer.input[:]
        layer.input.extend(inputs)
        keep(layer.attribute, [one for one in layer.attribute if one.name != "beta"])


def _grouped(layer: NodeProto, shape: tuple[int, ...]) -> list[tuple[int, bool]]:
    """The sizes of a weight, cut so that outputs are axes of their own, and which those are."""
    found = Attributes(layer, {})
    if layer.op_type == "ConvTranspose":
        group = found.integer("group", 1)
        rest = [(size, False) for size in shape[2:]]
        return [(group, True), (shape[0] // group, False), (shape[1], True), *rest]
    turned = layer.op_type == "Conv" or (layer.op_type == "Gemm" and found.integer("transB", 0))
    out = 0 if turned else len(shape) - 1
    return [(size, axis == out) for axis, size in enumerate(shape)]


def _per_channel(constant: TensorProto, rank: int, channel: int, outputs: int) -> Array | None:
    """A constant as one number for each output; None where it is none."""
    dims = list(constant.dims)
    if constant.data_type != TensorProto.FLOAT or not rank or len(dims) > rank:
        return None
    dims = [1] * (rank - len(dims)) + dims
    if any(size != 1 for axis, size in enumerate(dims) if axis != channel) or dims[channel] not in (1, outputs):
        return None
    return np.broadcast_to(_doubles(constant).reshape(-1), (outputs,))


def _doubles(tensor: TensorProto) -> Array:
    numbers: Array = numpy_helper.to_array(tensor).astype(np.float64)
    return numbers


def _note(count: int, one: str, more: str) -> list[str]:
    return [f"{count} {one if count == 1 else more} folded into the layer before"] if count else []
