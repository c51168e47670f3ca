"""Weight-only quantization: stored matrices in 8 or 4 bits behind a DequantizeLinear, and everything else in float.

It needs no samples: a scale is by the range of the weight, for each output, or for each block of neighbours along the
inputs. Layers with no more inputs than one block have one scale for each output instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from onnx import ModelProto, NodeProto, numpy_helper

from onnxsparse.errors import OptionError, brief
from onnxsparse.graph.attributes import Attributes
from onnxsparse.math.quantization import SMALLEST_SCALE, Grid, QParams, of_weight
from onnxsparse.math.values import Array
from onnxsparse.passes.quantization.float_graph import raise_opset
from onnxsparse.passes.quantization.placement import quantization_of
from onnxsparse.passes.quantization.values import key
from onnxsparse.planning.quantization import LayerScheme, Quantization, QuantizedWeight, Scheme

GRIDS = {8: Grid(8, narrow=True), 4: Grid(4)}
ASYMMETRIC = {8: Grid(8, signed=False, symmetric=False), 4: Grid(4, signed=False, symmetric=False)}
BLOCK = 32
"""Neighbours with one scale in 4 bits, where nothing else is asked for."""
BLOCKS = (16, 32, 64, 128, 256)
"""Those that the kernels of onnxruntime have."""
OPSET = 21
"""The first one with 4-bit integers, and with a scale for each block."""
SHRINK = np.linspace(1.0, 0.7, 13)
"""Parts of the range that are tried for a scale of 4 bits: clipping a few numbers costs less than coarse steps."""


def layer_scheme(bits: int = 8, block: int | None = None, symmetric: bool = True) -> LayerScheme:
    """The scheme of `w8` and `w4`: int8 with a scale for each output, int4 in blocks of 32."""
    if bits not in GRIDS:
        raise OptionError(f"weights have 8 or 4 bits, not {bits}")
    if block not in (None, *BLOCKS):
        raise OptionError(f"--block is one of {', '.join(map(str, BLOCKS))}, not {brief(block)}")
    usual = BLOCK if bits == 4 else 0
    return LayerScheme((GRIDS if symmetric else ASYMMETRIC)[bits], inputs=None, block=block or usual)


def weights_of(proto: ModelProto, scheme: Scheme) -> Quantization:
    """What is rounded of a float graph when activations are not."""
    found = quantization_of(proto, scheme)
    nodes = {key(node): node for node in proto.graph.node}
    weights = [_as_table(one) if _looked_up(one, nodes) else one for one in found.weights]
    return replace(found, weights=tuple(weights))


def _looked_up(one: QuantizedWeight, nodes: Mapping[str, NodeProto]) -> bool:
    """Whether only rows of it are read."""
    readers = [(nodes[output], slot) for output, slot in one.readers]
    return all(
        node.op_type == "Gather" and not slot and not Attributes(node, {}).integer("axis") for node, slot in readers
    )


def _as_table(one: QuantizedWeight) -> QuantizedWeight:
    """In 8 bits: Gather takes no fewer, and a table that is dequantized before it is so as a whole in every run."""
    return replace(one, grid=GRIDS[8], axis=None if one.axis is None else 0, block=0, looked_up=True)


def raised(proto: ModelProto, quantization: Quantization) -> list[str]:
    """Make the operator set of a graph one that has what is to be written, in place; what was done."""
    if not any(one.block or one.grid.bits < 8 for one in quantization.weights):
        return []
    return raise_opset(proto, OPSET, "4-bit integers and blocks of scales need")


# -- scales


def params_of(proto: ModelProto, quantization: Quantization) -> dict[str, QParams]:
    """Scale and zero point of every weight, by its range, or by its least squared error in few bits."""
    stored = {tensor.name: tensor for tensor in proto.graph.initializer}
    return {one.name: scales_of(numpy_helper.to_array(stored[one.name]), one) for one in quantization.weights}


def vanishing(proto: ModelProto, params: Mapping[str, QParams]) -> list[str]:
    """A note on numbers that are so small that they have no scale which kernels would not flush to zero."""
    small = {name: one for name, one in params.items() if (one.scale <= SMALLEST_SCALE).any()}
    arrays = {one.name: numpy_helper.to_array(one) for one in proto.graph.initializer if one.name in small}
    lost = {name: int(((array != 0) & (params[name].fake(array) == 0)).sum()) for name, array in arrays.items()}
    names = [f"'{name}'" for name, count in lost.items() if count]
    if not names:
        return []
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return [f"{sum(lost.values())} numbers near 1e-38, in {', '.join(names[:3])}{more}, have no scale and are zero now"]


def scales_of(numbers: Array, weight: QuantizedWeight) -> QParams:
    whole = of_weight(numbers, weight.grid, weight.axis, weight.block)
    return whole if weight.grid.bits >= 8 else _least_error(numbers, whole)


def _least_error(numbers: Array, whole: QParams) -> QParams:
    """Of a few scales the one that leaves the least squared error, for every scale by itself."""
    best, least = whole.scale, _errors(numbers, whole)
    for part in SHRINK[1:]:
        tried = whole.with_scale(whole.scale * np.float32(part))
        errors = _errors(numbers, tried)
        best, least = np.where(errors < least, tried.scale, best), np.minimum(errors, least)
    return whole.with_scale(best)


def _errors(numbers: Array, params: QParams) -> Array:
    """The sum of the squared errors of the numbers that share a scale, in the shape of the scales."""
    squares = np.square(params.fake(numbers).astype(np.float64) - numbers)
    if params.axis is None:
        return np.asarray(squares.sum()).reshape(params.scale.shape)
    if params.block:
        return np.asarray(np.add.reduceat(squares, np.arange(0, numbers.shape[params.axis], params.block), params.axis))
    return np.asarray(squares.sum(axis=tuple(at for at in range(numbers.ndim) if at != params.axis % numbers.ndim)))
