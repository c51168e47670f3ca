"""Weight-only quantization: stored matrices in 8 or 4 bits behind a DequantizeLinear, and everything else in float.

It needs no samples: a scale is the range of the weight, per output or per block of neighbours along its inputs. Where
`LayerScheme.block` asks for blocks, layers with no more inputs than one block have one scale for each output instead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper

from onnxsparse.errors import OptionError
from onnxsparse.graph.edit import reads
from onnxsparse.graph.model import Model
from onnxsparse.graph.weights import Use, Weight
from onnxsparse.math.quantization import Grid, QParams, of_weight
from onnxsparse.math.values import Array
from onnxsparse.passes.quantization.float_graph import raise_opset
from onnxsparse.passes.quantization.qdq import write_qdq
from onnxsparse.planning.quantization import LayerScheme, Quantization, QuantizedWeight, Reader

GRIDS = {8: Grid(8, narrow=True), 4: Grid(4, narrow=True)}
ASYMMETRIC = {8: Grid(8, signed=False, symmetric=False), 4: Grid(4, signed=False, symmetric=False)}
BLOCK = 32
"""Neighbours with one scale in 4 bits, where nothing else is asked for."""
BLOCKS = (16, 32, 64, 128, 256)
"""What the kernels of onnxruntime have."""
OPSET = 21
"""The first one with 4-bit integers, and with a scale for each block."""
SHRINK = np.linspace(1.0, 0.7, 13)
"""Parts of the range that are tried for a scale of 4 bits: clipping a few numbers costs less than coarse steps."""
TABLE = "Embedding"

Refine = Callable[[ModelProto, Quantization, dict[str, QParams]], None]
"""Chooses better numbers on the grids, such as by the layer's inputs, and writes them into the graph's tensors."""


@dataclass(frozen=True)
class Rounded:
    """What was rounded, at what scales, what was left in float and why, and what else was done to the graph."""

    quantization: Quantization
    params: dict[str, QParams]
    notes: tuple[str, ...] = ()


def layer_scheme(bits: int = 8, block: int | None = None, symmetric: bool = True) -> LayerScheme:
    """The scheme of `w8` and `w4`: int8 per output, int4 in blocks of 32."""
    if bits not in GRIDS:
        raise OptionError(f"weights have 8 or 4 bits, not {bits}")
    block = (BLOCK if bits == 4 else 0) if block is None else block
    if block and block not in BLOCKS:
        raise OptionError(f"--block is one of {', '.join(map(str, BLOCKS))}, not {block}")
    return LayerScheme((GRIDS if symmetric else ASYMMETRIC)[bits], inputs=None, block=block)


def weight_only(proto: ModelProto, layer: LayerScheme, tables: bool = True, refine: Refine | None = None) -> Rounded:
    """Round the weights of a float graph, in place; `tables`: those that are looked up, too."""
    quantization, notes = weights_of(proto, layer, tables), []
    if quantization.weights and (layer.block or layer.weights is None or layer.weights.bits < 8):
        notes = raise_opset(proto, OPSET, f"{'blocks of scales' if layer.block else '4-bit integers'} need")
    params = params_of(proto, quantization)
    if refine is not None:
        refine(proto, quantization, params)
    write_qdq(proto, quantization, params)
    return Rounded(quantization, params, tuple(notes))


# -- which weights


def weights_of(proto: ModelProto, layer: LayerScheme, tables: bool = True) -> Quantization:
    """What is rounded of a float graph when activations are not."""
    readers = _readers(proto)
    found, left = list[QuantizedWeight](), dict[str, str]()
    for weight in Model.over(proto).weights:
        reason = _reason(weight, readers, tables)
        if reason:
            left.update({use.source.output[0]: reason for use in weight.uses})
        else:
            found.append(_quantized(weight, layer, tuple(readers[weight.tensor.name])))
    return Quantization((), tuple(found), left)


def _readers(proto: ModelProto) -> dict[str, list[Reader]]:
    """Who reads each value; input -1 for a body of a node."""
    found: dict[str, list[Reader]] = defaultdict(list)
    for node in proto.graph.node:
        for slot, name in enumerate(node.input):
            found[name].append((node.output[0], slot))
        for name in reads(node)[len(node.input) :]:
            found[name].append((node.output[0], -1))
    return found


def _reason(weight: Weight, readers: dict[str, list[Reader]], tables: bool) -> str:
    """Why a weight stays as it is; '' where it is rounded."""
    if weight.refusal or not weight.uses:
        return weight.refusal or "no layer reads it as a weight"
    if weight.tensor.kind != "float32":
        return f"it is stored as {weight.tensor.kind}, and only float32 is rounded"
    if weight.scope or any(slot < 0 for _, slot in readers[weight.tensor.name]):
        return "it is read inside of a body"
    if any(use.masks for use in weight.uses):
        return "a mask stands before it; fold the masks first"
    if any(use.crossed for use in weight.uses) and len({use.matrix_key() for use in weight.uses}) > 1:
        return "its layers read it along different axes"
    if not tables and all(use.family == TABLE for use in weight.uses):
        return "it is a lookup table"
    return ""


def _quantized(weight: Weight, layer: LayerScheme, readers: tuple[Reader, ...]) -> QuantizedWeight:
    assert layer.weights is not None
    use = next((use for use in weight.uses if use.family != TABLE), weight.uses[0])
    axis, block = _outputs(use), 0
    along = _inputs(use)
    if layer.block and along is not None and weight.shape[along] > layer.block:
        axis, block = along, layer.block
    return QuantizedWeight(
        weight.tensor.name, layer.weights, axis if layer.per_channel or block else None, readers, block=block
    )


def _outputs(use: Use) -> int | None:
    """The stored axis of the outputs; of a grouped convolution's that of the groups, which is the same one."""
    _, out, _, _ = use.runs
    axes = use.stored_axes(out)
    if len(axes) != 1 or (use.family == "Recurrent" and not out):
        return None
    return axes[0]


def _inputs(use: Use) -> int | None:
    """The stored axis along which blocks lie: the one of the inputs that is fastest in memory."""
    axes = use.stored_axes(use.runs[2])
    return axes[-1] if axes else None


# -- scales


def params_of(proto: ModelProto, quantization: Quantization) -> dict[str, QParams]:
    """Scale and zero point of every weight, by its range, or by its least squared error in few bits."""
    stored = {tensor.name: tensor for tensor in proto.graph.initializer}
    return {one.name: scales_of(_numbers(stored[one.name]), one) for one in quantization.weights}


def _numbers(tensor: TensorProto) -> Array:
    return numpy_helper.to_array(tensor)


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
    squares = np.square(params.fake(numbers) - numbers)
    if params.axis is None:
        return np.asarray(squares.sum()).reshape(params.scale.shape)
    if params.block:
        return np.asarray(np.add.reduceat(squares, np.arange(0, numbers.shape[params.axis], params.block), params.axis))
    return np.asarray(squares.sum(axis=tuple(at for at in range(numbers.ndim) if at != params.axis % numbers.ndim)))
