"""Statistics of BatchNormalization that a calibration re-estimated, as the scale and bias of the node.

Statistics stand still in a training, so a start would lose what calibration made of them. The same function with the
stored mean and variance, where mean' and variance' are the re-estimated ones, is

    scale' =  scale * sqrt((variance + eps) / (variance' + eps))
    bias'  =  bias + scale * (mean - mean') / sqrt(variance' + eps)

1. Where the statistics train (`--train-bn`), they stay what calibration found.
2. Left as they are: nodes whose scale or bias does not train, or is read by another node, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
from onnx import NodeProto

from onnxsparse.calibration.batch_norms import EPSILON
from onnxsparse.graph.attributes import Attributes
from onnxsparse.graph.biases_and_scales import containers
from onnxsparse.graph.model import Model
from onnxsparse.math.values import Array
from onnxsparse.planning.stored_params import StoredParam, vector_param


def with_statistics(model: Model, numbers: Mapping[str, Array], trained: Mapping[str, StoredParam]) -> dict[str, Array]:
    """The numbers of what trains, by tag, with those of statistics moved into scales and biases."""
    homes = model.flow.stores.homes.items()
    stored = {tensor.name: vector_param(tensor, home.tag) for tensor, home in homes if not home.scope}
    found = {tag: array.astype(np.float32) for tag, array in numbers.items() if tag in trained}
    for node in _norms(model):
        params = [stored[name] for name in node.input[1:5] if name in stored]
        if len(params) == 4 and all(one.tag in trained for one in params[:2]):
            found.update(_moved(node, params, numbers, trained))
    return found


def _norms(model: Model) -> Iterator[NodeProto]:
    """Those whose scale and bias nothing else reads."""
    readers = Counter(name for container in containers(model) for node in container.node for name in node.input)
    for node in model.proto.graph.node:
        if node.op_type == "BatchNormalization" and all(readers[name] == 1 for name in node.input[1:3]):
            yield node


def _moved(
    node: NodeProto, params: list[StoredParam], numbers: Mapping[str, Array], trained: Mapping[str, StoredParam]
) -> dict[str, Array]:
    """The new scale and bias of one node, by tag; nothing where its statistics are as they were, or train."""
    if not any(one.tag in numbers and one.tag not in trained for one in params[2:]):
        return {}
    scale, bias, mean, variance = (np.asarray(numbers.get(one.tag, one.numbers()), np.float64) for one in params)
    old_mean, old_variance = (one.numbers().astype(np.float64) for one in params[2:])
    epsilon = Attributes(node, {}).number("epsilon", EPSILON)
    spread = np.sqrt(variance + epsilon)
    moved = scale * np.sqrt(old_variance + epsilon) / spread, bias + scale * (old_mean - mean) / spread
    return {one.tag: array.astype(np.float32) for one, array in zip(params, moved)}


__all__ = ["with_statistics"]
