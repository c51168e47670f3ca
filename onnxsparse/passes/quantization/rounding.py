"""Rounding of weights by what it does to a layer's outputs (GPTQ, Frantar et al. 2022), with the pruned places held at zero.

Weights are rounded column after column; the error of a column is made up for by those that are not rounded yet, as
the Gram matrix H = X^T X of the layer's inputs says: with the Cholesky factor U of the inverse of H,

    W[:, later] -= (W[:, j] - q[:, j]) / U[j, j] * U[j, later]

1. A pruned place is a weight whose only step is zero: what reaches it is its error, and goes on to the columns behind
   it (as in SparseGPT).
2. Inputs come from the model as it is rounded so far.
3. Scales stay, but for rows where the result lies outside of the grid: they grow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from onnxsparse.calibration.collecting import Stepwise
from onnxsparse.calibration.reductions import Reduction, reduction_of
from onnxsparse.calibration.statistics import Gram
from onnxsparse.graph.edit import copied
from onnxsparse.math.quantization import QParams
from onnxsparse.math.values import Array
from onnxsparse.passes.quantization.qdq import fitted, integer_tensor, write_qdq
from onnxsparse.planning.quantization import Quantization, QuantizedWeight

DAMPING = 0.01
"""Of the mean of the diagonal, added to it: directions that the samples hardly have are not made use of."""
WIDEST = 5000
"""Inputs of a layer up to which its Gram matrix is inverted; wider layers are rounded to the nearest step."""
BLOCK = 128
"""Columns that are rounded before their errors are added up for all those behind them."""


def round_weights(
    proto: ModelProto,
    quantization: Quantization,
    params: Mapping[str, QParams],
    feeds: Iterable[Mapping[str, Array]],
) -> dict[str, QParams]:
    """Change the weights of a float graph, in place, to numbers of their grids, and give all scales."""
    rounded, found = copied(proto), fitted(proto, quantization, params)
    write_qdq(rounded, quantization, params)
    run = Stepwise(rounded, feeds)
    stored = {tensor.name: tensor for tensor in proto.graph.initializer}
    for layer in _layers(proto, rounded, quantization):
        weight = numpy_helper.to_array(stored[layer.weight.name])
        gram = Gram(layer.reduction)
        for inputs in run.run_to(layer.inputs):
            gram.add(inputs)
        integers = rounded_by(weight, found[layer.weight.name], layer.reduction, gram)
        stored[layer.weight.name].CopyFrom(
            numpy_helper.from_array(found[layer.weight.name].dequantize(integers), layer.weight.name)
        )
        layer.stored.CopyFrom(integer_tensor(integers, layer.weight.grid, layer.stored.name))
    return found


@dataclass(frozen=True)
class _Layer:
    """A layer of the rounded graph: its weight, its inputs there, and its integers."""

    weight: QuantizedWeight
    reduction: Reduction
    inputs: str
    stored: TensorProto


def _layers(proto: ModelProto, rounded: ModelProto, quantization: Quantization) -> list[_Layer]:
    """The layers whose weights have one reader, in the order of the graph."""
    weights = {weight.readers[0]: weight for weight in quantization.weights if len(weight.readers) == 1}
    stored = {tensor.name: tensor for tensor in rounded.graph.initializer}
    dims = {tensor.name: list(tensor.dims) for tensor in proto.graph.initializer}
    makers = {name: node for node in rounded.graph.node for name in node.output}
    found = []
    for node in rounded.graph.node:
        for slot in (0, 1):
            weight = weights.get((node.output[0] if node.output else "", slot))
            if weight is None or len(node.input) < 2:
                continue
            reduction = reduction_of(node, slot, dims[weight.name])
            if reduction is not None and _inputs(weight, reduction, dims[weight.name]) <= WIDEST:
                integers = stored[makers[node.input[slot]].input[0]]
                found.append(_Layer(weight, reduction, node.input[1 - slot], integers))
    return found


def _inputs(weight: QuantizedWeight, reduction: Reduction, dims: list[int]) -> int:
    return int(np.prod(dims)) // dims[weight.axis or 0] if weight.axis is not None else int(np.prod(dims)) // dims[0]


def rounded_by(weight: Array, params: QParams, reduction: Reduction, gram: Gram) -> Array:
    """The integers of one weight."""
    columns = reduction.matrix(weight).astype(np.float64)
    scales = reduction.matrix(np.broadcast_to(params._over(params.scale, weight), weight.shape)).astype(np.float64)
    points = reduction.matrix(np.broadcast_to(params._over(params.zero_point, weight), weight.shape))
    kept = columns != 0
    order, factor = _factored(gram.products)
    work = np.take_along_axis(columns, order[:, None, :], 2)
    scales, points, kept = (np.take_along_axis(one, order[:, None, :], 2) for one in (scales, points, kept))
    low, high = params.grid.low, params.grid.high
    steps = np.zeros(work.shape)
    size = work.shape[2]
    for start in range(0, size, BLOCK):
        stop = min(start + BLOCK, size)
        errors = np.zeros((*work.shape[:2], stop - start))
        for at in range(start, stop):
            scale = scales[:, :, at]
            step = np.clip(np.rint(work[:, :, at] / scale) + points[:, :, at], low, high) - points[:, :, at]
            steps[:, :, at] = np.where(kept[:, :, at], step, 0)
            error = (work[:, :, at] - steps[:, :, at] * scale) / factor[:, at, at, None]
            errors[:, :, at - start] = error
            work[:, :, at + 1 : stop] -= error[:, :, None] * factor[:, None, at, at + 1 : stop]
        work[:, :, stop:] -= errors @ factor[:, start:stop, stop:]
    back = np.argsort(order, axis=1)
    integers = np.take_along_axis(steps + points, back[:, None, :], 2)
    return reduction.restored(integers).astype(params.grid.dtype)


def _factored(products: Array) -> tuple[Array, Array]:
    """An order of the columns, the most important first, and the Cholesky factor (upper) of the damped inverse."""
    damped = products.copy()
    size = damped.shape[-1]
    diagonal = np.einsum("gkk->gk", damped)
    mean = diagonal.mean(axis=1, keepdims=True)
    diagonal += DAMPING * np.where(mean > 0, mean, 1.0)
    order = np.argsort(-diagonal, axis=1, kind="stable")
    turned = np.take_along_axis(np.take_along_axis(damped, order[:, :, None], 1), order[:, None, :], 2)
    factor = np.linalg.cholesky(np.linalg.inv(turned)).transpose(0, 2, 1)
    assert factor.shape[-1] == size
    return order, factor
