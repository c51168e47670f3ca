"""Round trips to whole numbers without the rounding, in a throw-away copy that gradients have to pass through.

    DequantizeLinear(QuantizeLinear(x)) = (round(x / s) + z, kept within what the type holds, - z) s
                                        ~ x kept within (low - z) s and (high - z) s

1. No gradient gets past the rounding; it does past the clipping, and where the rounding lets nothing through, neither
   does that.
2. Both nodes have the same scale and the same zero point, and these are stored. Scales along an axis need a stored x.
3. Types of 8 and 16 bits. What reads the whole numbers themselves keeps them.
4. Stored whole numbers that are only dequantised become stored floats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, numpy_helper
from onnx.helper import tensor_dtype_to_np_dtype

from onnxsparse.graph.attributes import attributes
from onnxsparse.graph.edit import Writer, keep, scopes
from onnxsparse.graph.initializers import stored_of
from onnxsparse.math.values import Array

_WHOLE = (TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16)


QUANTIZED = (
    "ConvInteger",
    "ConvIntegerToFloat",
    "DequantizeLinear",
    "DynamicQuantizeLSTM",
    "DynamicQuantizeLinear",
    "DynamicQuantizeMatMul",
    "GatherBlockQuantized",
    "MatMulBnb4",
    "MatMulFpQ4",
    "MatMulInteger",
    "MatMulInteger16",
    "MatMulIntegerToFloat",
    "MatMulNBits",
    "QAttention",
    "QEmbedLayerNormalization",
    "QGemm",
    "QMoE",
    "QuantizeLinear",
)
"""Operators that compute with whole numbers in place of floats, beside those whose names begin with QLinear."""


class _Bounds(NamedTuple):
    low: Array
    high: Array


def computes_with_integers(node: NodeProto) -> bool:
    """Whether whole numbers stand for floats at a node: no gradient gets past it."""
    return node.op_type in QUANTIZED or node.op_type.startswith("QLinear")


def clip_round_trips(main: GraphProto, opset: int) -> int:
    """Clip in place of every pair that is understood, in a graph and its bodies; returns how many there were."""
    stored = dict(stored_everywhere(main))
    return sum(_clipped(graph, stored, opset) for graph in scopes(main))


def stored_everywhere(main: GraphProto) -> Iterator[tuple[str, TensorProto]]:
    """What is stored in a graph and its bodies, by name."""
    for graph in scopes(main):
        yield from ((tensor.name, tensor) for tensor in graph.initializer)
        for node in graph.node:
            tensor = stored_of(node) if node.op_type == "Constant" else None
            if tensor is not None:
                yield node.output[0], tensor


def _clipped(graph: GraphProto, stored: Mapping[str, TensorProto], opset: int) -> int:
    makers = {node.output[0]: node for node in graph.node if node.op_type == "QuantizeLinear"}
    writer, nodes, count = Writer(graph, opset), list[NodeProto](), 0
    for node in graph.node:
        first = makers.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
        bounds = None if first is None else _bounds(first, node, stored)
        if first is None or bounds is None:
            nodes.append(node)
            continue
        low, high = (writer.constant(bound, "bound", bound.dtype) for bound in bounds)
        writer.nodes = []
        writer.node("Min", writer.node("Max", first.input[0], low), high, to=node.output[0])
        nodes += writer.nodes
        count += 1
    if count:
        read = {name for node in nodes for name in node.input} | {value.name for value in graph.output}
        keep(graph.node, [node for node in nodes if node.op_type != "QuantizeLinear" or node.output[0] in read])
    return count


def _bounds(first: NodeProto, second: NodeProto, stored: Mapping[str, TensorProto]) -> _Bounds | None:
    """The range of a pair, as it is broadcast to x; None where the pair is not understood."""
    numbers = [[stored.get(name) for name in node.input[1:] if name] for node in (first, second)]
    if any(one is None for pair in numbers for one in pair) or not numbers[0]:
        return None
    (scale, *zero), (again, *zero_again) = ([numpy_helper.to_array(one) for one in pair if one] for pair in numbers)
    kind = _quantized_type(first, stored)
    same = np.array_equal(scale, again) and np.array_equal(_zero_point(zero), _zero_point(zero_again))
    if kind is None or not same:
        return None
    limits = np.iinfo(tensor_dtype_to_np_dtype(kind))
    low, high = (
        (limit - _zero_point(zero).astype(np.float64)) * scale.astype(np.float64) for limit in (limits.min, limits.max)
    )
    shape = _along(first, scale, stored)
    return None if shape is None else _Bounds(*(bound.astype(scale.dtype).reshape(shape) for bound in (low, high)))


def _zero_point(zero: list[Array]) -> Array:
    """The zero point, which is 0 where there is none."""
    return zero[0] if zero else np.zeros((), np.uint8)


def _quantized_type(first: NodeProto, stored: Mapping[str, TensorProto]) -> int | None:
    given = attributes(first)
    if given.get("block_size") or len(first.input) > 3:
        return None
    zero = first.input[2] if len(first.input) > 2 else ""
    kind = stored[zero].data_type if zero else given.get("output_dtype") or TensorProto.UINT8
    return kind if kind in _WHOLE else None


def _along(first: NodeProto, scale: Array, stored: Mapping[str, TensorProto]) -> tuple[int, ...] | None:
    if scale.size == 1:
        return ()
    tensor = stored.get(first.input[0])
    if tensor is None:
        return None
    axis = next((attribute.i for attribute in first.attribute if attribute.name == "axis"), 1)
    rank = len(tensor.dims)
    if scale.ndim != 1 or not -rank <= axis < rank:
        return None
    return tuple(scale.size if place == axis % rank else 1 for place in range(rank))


# -- stored whole numbers


def dequantize_stored(main: GraphProto) -> None:
    """Stored floats in place of every DequantizeLinear of stored numbers, in a graph and its bodies."""
    stored = dict(stored_everywhere(main))
    for graph in scopes(main):
        kept = [node for node in graph.node if not _dequantized(node, stored, graph)]
        if len(kept) < len(graph.node):
            keep(graph.node, kept)


def _dequantized(node: NodeProto, stored: Mapping[str, TensorProto], graph: GraphProto) -> bool:
    """Whether a node is one of those; its result is an initializer of the graph then."""
    given = attributes(node)
    inputs = [stored.get(name) for name in node.input if name]
    if node.op_type != "DequantizeLinear" or given.get("block_size") or None in inputs:
        return False
    if inputs[0] is None or inputs[0].data_type not in (*_WHOLE, TensorProto.INT32):
        return False
    whole, scale, *zero = (numpy_helper.to_array(one) for one in inputs if one is not None)
    dims = _broadcast(scale, whole.ndim, given.get("axis", 1))
    centered = whole.astype(np.float64) - _zero_point(zero).astype(np.float64).reshape(dims if zero else ())
    made = (centered * scale.astype(np.float64).reshape(dims)).astype(scale.dtype)
    graph.initializer.append(numpy_helper.from_array(made, node.output[0]))
    return True


def _broadcast(scale: Array, rank: int, axis: int) -> tuple[int, ...]:
    """The shape of a scale beside what it scales."""
    return () if scale.size == 1 else tuple(scale.size if place == axis % rank else 1 for place in range(rank))
