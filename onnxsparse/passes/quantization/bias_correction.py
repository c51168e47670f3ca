"""Bias correction: the mean that rounding adds to each channel of a layer is taken off its bias, layer after layer.

The quantized model runs piece by piece: a layer is corrected with its inputs as the corrected layers before it leave
them, and the next layers see what it gives afterwards. Only biases that are there are changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from onnxsparse.calibration.collecting import Stepwise, collect
from onnxsparse.calibration.statistics import Moments
from onnxsparse.graph.edit import copied, reads
from onnxsparse.math.quantization import QParams
from onnxsparse.math.values import Array
from onnxsparse.passes.quantization.qdq import write_qdq
from onnxsparse.planning.quantization import Quantization


def correct_biases(
    proto: ModelProto,
    quantization: Quantization,
    params: Mapping[str, QParams],
    feeds: Iterable[Mapping[str, Array]],
    exact: ModelProto | None = None,
) -> int:
    """Change the biases of a float graph, in place, by what its quantized form is off on samples, and say how many.

    `exact` is the graph with the weights that are aimed at, where those of `proto` are rounded already.
    """
    feeds, places = list(feeds), _biased(proto, quantization)
    if not places:
        return 0
    wanted = collect(exact or proto, places, feeds, lambda name: Moments(places[name][1]))
    rounded = copied(proto)
    write_qdq(rounded, quantization, params)
    run = Stepwise(rounded, feeds)
    for output, (bias, axis) in places.items():
        values = run.run_to(output)
        seen = Moments(axis)
        for value in values:
            seen.add(value)
        before = numpy_helper.to_array(bias)
        with np.errstate(over="ignore", invalid="ignore"):
            missing = (wanted[output].mean - seen.mean).astype(np.float32)
            missing[~np.isfinite(before + missing)] = 0  # where the float model overflows, or has a mask
            for value in values:  # in place: there is one for each batch, and they are large
                value += missing.reshape(_sizes(value, axis))
        bias.CopyFrom(numpy_helper.from_array(before + missing, bias.name))
    return len(places)


def _sizes(value: Array, axis: int) -> list[int]:
    return [-1 if one == axis % value.ndim else 1 for one in range(value.ndim)]


def _biased(proto: ModelProto, quantization: Quantization) -> dict[str, tuple[TensorProto, int]]:
    """The outputs of layers with a stored bias of their own, in the order of the graph, the bias, and its axis."""
    stored = {tensor.name: tensor for tensor in proto.graph.initializer}
    own = {output: weight.name for weight in quantization.weights for output, _ in weight.readers}
    found = {}
    for node in proto.graph.node:
        if node.output and node.output[0] in own and node.op_type in ("Conv", "Gemm", "MatMul"):
            adder, name = _added(proto, node)
            tensor = stored.get(name)
            if tensor is not None and len(tensor.dims) == 1 and _read_once(proto, name):
                found[adder.output[0]] = (tensor, 1 if node.op_type == "Conv" else -1)
    return found


def _added(proto: ModelProto, node: NodeProto) -> tuple[NodeProto, str]:
    """The node that adds the bias, and the bias: behind a MatMul that is an Add."""
    if node.op_type != "MatMul":
        return node, node.input[2] if len(node.input) > 2 else ""
    readers = [one for one in proto.graph.node if node.output[0] in reads(one)]
    if len(readers) != 1 or readers[0].op_type != "Add":
        return node, ""
    return readers[0], next((name for name in readers[0].input if name != node.output[0]), "")


def _read_once(proto: ModelProto, name: str) -> bool:
    return sum(reads(node).count(name) for node in proto.graph.node) == 1
