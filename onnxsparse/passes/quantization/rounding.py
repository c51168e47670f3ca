"""Rounding weights by what it does to a layer's outputs (GPTQ, Frantar et al. 2022), with pruned places held at zero.

Weights are rounded column after column; the error of a column is made up for by those that are not rounded yet, as
the Gram matrix H = X^T X of the layer's inputs says: with the Cholesky factor U of the inverse of H,

    W[:, later] -= (W[:, j] - q[:, j]) / U[j, j] * U[j, later]

1. A pruned place is a weight whose only step is zero: what reaches it is its error, and goes on to the columns behind
   it (as in SparseGPT).
2. Inputs come from the model as it is rounded so far. Scales stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper

from onnxsparse.calibration.collecting import Stepwise
from onnxsparse.calibration.reductions import Reduction, reduction_of
from onnxsparse.calibration.statistics import Gram
from onnxsparse.graph.edit import copied
from onnxsparse.graph.model import Model
from onnxsparse.math.quantization import QParams
from onnxsparse.math.values import Array
from onnxsparse.passes.quantization.qdq import fitted, integer_tensor, write_qdq
from onnxsparse.planning.quantization import Quantization, QuantizedWeight

DAMPING = 0.01
"""Of the mean of the diagonal, added to it: directions that the samples hardly have are not made use of."""
WIDEST = 4608
"""Inputs of a layer up to which its Gram matrix is inverted, as in a ResNet-50; wider ones go to the next step."""
BLOCK = 128
"""Columns that are rounded before their errors are added up for all those behind them."""


def round_weights(
    proto: ModelProto,
    quantization: Quantization,
    params: Mapping[str, QParams],
    feeds: Iterable[Mapping[str, Array]],
    damping: float = DAMPING,
) -> dict[str, QParams]:
    """Change the weights of a float graph, in place, to numbers of their grids, and give the scales of those."""
    rounded, found = copied(proto), fitted(proto, quantization, params)
    write_qdq(rounded, quantization, found)
    run = Stepwise(rounded, feeds)
    stored = {tensor.name: tensor for tensor in proto.graph.initializer}
    for layer in _layers(proto, rounded, quantization):
        gram, own = Gram(), found[layer.weight.name]
        for inputs in run.run_to(layer.inputs):
            gram.add(layer.reduction.rows({layer.reduction.inputs[0]: inputs}, most=Gram.MOST))
        tensor = stored[layer.weight.name]
        integers = integers_by_gram(numpy_helper.to_array(tensor), own, layer.reduction, gram, damping)
        tensor.CopyFrom(numpy_helper.from_array(own.dequantize(integers), tensor.name))
        layer.stored.CopyFrom(integer_tensor(integers, own.grid, layer.stored.name))
    return found


@dataclass(frozen=True)
class _Layer:
    """A layer of the rounded graph: its weight, its inputs there, and its integers."""

    weight: QuantizedWeight
    reduction: Reduction
    inputs: str
    stored: TensorProto


def _layers(proto: ModelProto, rounded: ModelProto, quantization: Quantization) -> Iterator[_Layer]:
    """The layers whose weights have one reader, in the order of the graph."""
    names = [weight.name for weight in quantization.weights]
    weights = {
        one.readers[0]: one for one in quantization.weights if len(one.readers) == 1 and names.count(one.name) == 1
    }
    stored = {tensor.name: tensor for tensor in rounded.graph.initializer}
    reductions = _reductions(proto)
    makers = {name: node for node in rounded.graph.node for name in node.output}
    for node in rounded.graph.node:
        for slot in range(min(2, len(node.input))):
            weight, reduction = weights.get((node.output[0], slot)), reductions.get((node.output[0], slot))
            if weight is None or reduction is None or node.input[1 - slot] in stored:
                continue
            if reduction.width <= WIDEST:
                integers = stored[makers[node.input[slot]].input[0]]
                yield _Layer(weight, reduction, node.input[1 - slot], integers)


def _reductions(proto: ModelProto) -> dict[tuple[str, int], Reduction]:
    """What layers of one input sum up, by their first output and the input that is their weight."""
    uses = [use for weight in Model.over(proto).flow.weights for use in weight.uses if not use.scope]
    found = {(use.source.output[0], use.slot): reduction_of([use]) for use in uses if use.family != "Recurrent"}
    known = {place: reduction for place, reduction in found.items() if isinstance(reduction, Reduction)}
    return {place: reduction for place, reduction in known.items() if len(reduction.inputs) == 1}


# -- one weight


def integers_by_gram(
    weight: Array, params: QParams, reduction: Reduction, gram: Gram, damping: float = DAMPING
) -> Array:
    """The integers of a weight, rounded one column after the other; zeros get the zero point."""
    if not np.isfinite(gram.products).all():
        return params.quantize(weight)
    order, factor = _factored(gram.products, damping)
    blocks = np.stack(reduction.outputs)

    def sorted_columns(numbers: Array) -> Array:
        return np.take_along_axis(reduction.matrix(numbers)[blocks], order[:, None, :], 2)

    scales, points = (sorted_columns(one) for one in params.spread(weight))
    numbers = sorted_columns(weight)
    low, high = (np.where(numbers != 0, one - points, 0) for one in (params.grid.low, params.grid.high))
    steps = _steps(numbers.astype(np.float64), scales.astype(np.float64), low, high, factor)
    integers = np.empty((blocks.size, reduction.width))
    integers[blocks] = np.take_along_axis(steps + points, np.argsort(order, axis=1)[:, None, :], 2)
    return reduction.restored(integers)[0].reshape(weight.shape).astype(params.grid.dtype)


def _steps(work: Array, scales: Array, low: Array, high: Array, factor: Array) -> Array:
    """Whole numbers of steps from zero, between two bounds each; `work` is used up."""
    steps, size = np.zeros(work.shape), work.shape[2]
    for start in range(0, size, BLOCK):
        stop = min(start + BLOCK, size)
        errors = np.zeros((*work.shape[:2], stop - start))
        for at in range(start, stop):
            steps[:, :, at] = np.clip(np.rint(work[:, :, at] / scales[:, :, at]), low[:, :, at], high[:, :, at])
            error = (work[:, :, at] - steps[:, :, at] * scales[:, :, at]) / factor[:, at, at, None]
            work[:, :, at + 1 : stop] -= error[:, :, None] * factor[:, None, at, at + 1 : stop]
            errors[:, :, at - start] = error
        work[:, :, stop:] -= errors @ factor[:, start:stop, stop:]
    return steps


def _factored(products: Array, damping: float) -> tuple[Array, Array]:
    """An order of the columns, the largest inputs first, and in it the upper Cholesky factor of the damped inverse."""
    damped = products.copy()
    diagonal = np.einsum("gkk->gk", damped)
    mean = diagonal.mean(axis=1, keepdims=True)
    diagonal += damping * np.where(mean > 0, mean, 1.0)
    order = np.argsort(-diagonal, axis=1, kind="stable")
    turned = np.take_along_axis(np.take_along_axis(damped, order[:, :, None], 1), order[:, None, :], 2)
    return order, np.linalg.cholesky(np.linalg.inv(turned)).transpose(0, 2, 1)
