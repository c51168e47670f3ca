"""Folding normalizations into scales: BatchNormalization behind a product with integers becomes part of its scales.

    f * (q * s) + g  =  q * (f * s) + g          for every output channel; integers stay, only signs may turn

1. Between the product and the normalization Div, Mul, Add and Sub by constants of a channel are folded along: training
   divides by the factor of the normalization what it has multiplied the weight with before it was rounded.
2. A channel with the factor 0 has no integers but the zero point.
3. What stays: a normalization behind a weight that other nodes read, of which the scales go along another axis, or
   whose integers cannot turn their sign (-128).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, MutableMapping
from dataclasses import dataclass, replace

import numpy as np
from onnx import ModelProto, NodeProto, numpy_helper

from onnxsparse.graph.attributes import Attributes
from onnxsparse.graph.edit import FreshNames, Unread, all_names, reads, remove_nodes
from onnxsparse.math.quantization import SMALLEST_SCALE, QParams
from onnxsparse.math.values import Array
from onnxsparse.passes.quantization.fake_quantizers import KnownValues


@dataclass(frozen=True)
class _Affine:
    """What happens to every channel of a product: a factor, and what is added."""

    factor: Array
    added: Array

    def then(self, factor: Array, added: Array) -> _Affine:
        return _Affine(self.factor * factor, self.added * factor + added)


def fold_normalizations(
    proto: ModelProto, params: MutableMapping[str, QParams], weights: Collection[str], left: MutableMapping[str, str]
) -> list[str]:
    """Fold what can be, changing numbers, scales and biases; returns the normalizations by their outputs."""
    return _Folding(proto, params, weights, left).fold()


class _Folding:
    def __init__(
        self,
        proto: ModelProto,
        params: MutableMapping[str, QParams],
        weights: Collection[str],
        left: MutableMapping[str, str],
    ) -> None:
        self._proto, self._graph, self._params, self._weights, self._left = proto, proto.graph, params, weights, left
        opset = next((one.version for one in proto.opset_import if one.domain in ("", "ai.onnx")), 1)
        self._known = KnownValues(proto.graph, opset)
        self._stored = {tensor.name: tensor for tensor in proto.graph.initializer}
        self._fresh = FreshNames(all_names(proto))
        self._count = Counter(name for node in proto.graph.node for name in reads(node))
        self._count.update(entry.name for entry in proto.graph.output)
        self._reader = {name: node for node in proto.graph.node for name in node.input if name}

    def fold(self) -> list[str]:
        folded, gone = list[str](), list[NodeProto]()
        for node in self._graph.node:
            if node.op_type in ("Conv", "ConvTranspose", "Gemm") and node.input[1] in self._weights:
                chain, affine = self._behind(node)
                why = self._fold(node, affine) if chain else ""
                if chain and why:
                    self._left[chain[-1].output[0]] = f"the normalization stays: {why}"
                elif chain:
                    node.output[0] = chain[-1].output[0]
                    folded.append(node.output[0])
                    gone += chain
        names = [name for node in gone for name in node.input]
        remove_nodes(self._graph, gone)
        Unread(self._proto).remove(names)
        return folded

    def _behind(self, node: NodeProto) -> tuple[list[NodeProto], _Affine]:
        """The nodes up to the last normalization behind a product, and what they do together."""
        rank, count = len(self._stored[node.input[1]].dims), self._channels(node)
        affine = _Affine(np.ones(count), np.zeros(count))
        chain, found, at = list[NodeProto](), (list[NodeProto](), affine), node.output[0]
        while self._count[at] == 1 and at in self._reader:
            after = self._reader[at]
            step = self._step(after, at, rank, count)
            if step is None:
                break
            chain.append(after)
            affine = affine.then(*step)
            at = after.output[0]
            if after.op_type == "BatchNormalization":
                found = [*chain], affine
        return found

    def _channels(self, node: NodeProto) -> int:
        dims = self._stored[node.input[1]].dims
        groups = Attributes(node, {}).integer("group", 1) if node.op_type == "ConvTranspose" else 1
        return int(dims[_out_axis(node)]) * groups

    def _step(self, node: NodeProto, value: str, rank: int, count: int) -> tuple[Array, Array] | None:
        """The factor and what is added by one node."""
        if node.domain not in ("", "ai.onnx"):
            return None
        if node.op_type == "BatchNormalization" and node.input[0] == value:
            return self._normalization(node, count)
        if node.op_type not in ("Div", "Mul", "Add", "Sub") or len(node.input) != 2:
            return None
        constant = self._known.numbers(node.input[1 if node.input[0] == value else 0])
        numbers = None if constant is None else _of_channels(constant, rank, count)
        if numbers is None or (node.op_type in ("Div", "Sub") and node.input[0] != value):
            return None
        if node.op_type in ("Add", "Sub"):
            return np.ones(count), numbers if node.op_type == "Add" else -numbers
        with np.errstate(divide="ignore"):
            return (numbers if node.op_type == "Mul" else 1 / numbers), np.zeros(count)

    def _normalization(self, node: NodeProto, count: int) -> tuple[Array, Array] | None:
        found = [self._known.numbers(name) for name in node.input[1:5]]
        attributes = Attributes(node, {})
        if attributes.integer("training_mode", 0) or len([name for name in node.output if name]) > 1:
            return None
        given = [one.astype(np.float64) for one in found if one is not None and one.shape == (count,)]
        if len(given) < 4:
            return None
        scale, bias, mean, variance = given
        factor = scale / np.sqrt(variance + attributes.number("epsilon", 1e-5))
        return factor, bias - mean * factor

    def _fold(self, node: NodeProto, affine: _Affine) -> str:
        """Fold into one product; returns why not."""
        name, axis = node.input[1], _out_axis(node)
        params, attributes = self._params[name], Attributes(node, {})
        if self._count[name] > 1:
            return "other nodes read its weight, too"
        if node.op_type == "ConvTranspose" and attributes.integer("group", 1) > 1:
            return "the scales of a grouped ConvTranspose do not go along its outputs"
        if node.op_type == "Gemm" and (attributes.number("alpha", 1.0), attributes.number("beta", 1.0)) != (1.0, 1.0):
            return "alpha and beta of its Gemm are not 1"
        if params.block or params.axis not in (None, axis) or not np.isfinite(affine.factor).all():
            return "the scales of its weight do not go along the outputs, or its factors are no numbers"
        bias = self._bias(node, len(affine.factor))
        if bias is None:
            return "its bias is known only at run time"
        numbers = numpy_helper.to_array(self._stored[name])
        turned = _turned(params, params.quantize(numbers), affine.factor, axis)
        if turned is None:
            return "a negative factor would turn an integer that has no other sign (-128)"
        integers, self._params[name] = turned
        self._store(name, turned[1].dequantize(integers))
        made = self._fresh(f"{name}_bias")
        self._graph.initializer.append(
            numpy_helper.from_array((bias * affine.factor + affine.added).astype(np.float32), made)
        )
        freed = [one for one in node.input[2:] if one]
        del node.input[2:]
        node.input.append(made)
        self._count.subtract(freed)
        Unread(self._proto).remove(freed)
        return ""

    def _bias(self, node: NodeProto, count: int) -> Array | None:
        if len(node.input) < 3 or not node.input[2]:
            return np.zeros(count)
        found = self._known.numbers(node.input[2])
        return None if found is None else np.broadcast_to(found.astype(np.float64).reshape(-1), (count,))

    def _store(self, name: str, numbers: Array) -> None:
        self._stored[name].CopyFrom(numpy_helper.from_array(np.ascontiguousarray(numbers, np.float32), name))


def _out_axis(node: NodeProto) -> int:
    if node.op_type == "Gemm":
        return 0 if Attributes(node, {}).integer("transB", 0) else 1
    return 0 if node.op_type == "Conv" else 1


def _of_channels(constant: Array, rank: int, count: int) -> Array | None:
    """A constant that is combined with a product, for every channel; None where it is not the same all over one."""
    if constant.ndim > rank or constant.dtype.kind != "f":
        return None
    shape = (1,) * (rank - constant.ndim) + constant.shape
    if any(size > 1 for axis, size in enumerate(shape) if axis != 1) or shape[1] not in (1, count):
        return None
    return np.broadcast_to(constant.reshape(-1).astype(np.float64), (count,))


def _turned(params: QParams, integers: Array, factor: Array, axis: int) -> tuple[Array, QParams] | None:
    """Integers and their scales times a factor of each output."""
    wide = np.moveaxis(integers.astype(np.int32), axis, 0)
    scale = np.broadcast_to(params.scale.astype(np.float64), factor.shape) * np.abs(factor)
    zero = np.broadcast_to(params.zero_point, factor.shape).astype(np.int32)
    gone = scale < SMALLEST_SCALE
    sign = np.where(factor < 0, -1, 1)
    along = (-1, *(1,) * (wide.ndim - 1))
    zero = np.where(gone, 0, zero * sign)
    wide = np.where(gone.reshape(along), 0, wide * sign.reshape(along))
    if (
        min(wide.min(initial=0), zero.min()) < params.grid.low
        or max(wide.max(initial=0), zero.max()) > params.grid.high
    ):
        return None
    mean = scale[~gone].mean() if not gone.all() else 1.0
    folded = replace(params, scale=np.where(gone, mean, scale).astype(np.float32), zero_point=zero, axis=axis)
    return np.moveaxis(wide, 0, axis).astype(integers.dtype), folded
