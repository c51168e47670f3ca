"""Normalizations for the training graph: batch, layer, group, instance, local response, embeddings."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from onnx import ModelProto, NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import (
    Rewrite,
    View,
    given,
    part,
    reduce,
    reshape,
    result,
    root_mean_square,
    standardized,
)
from onnxsparse.engines.ort.shapes import infer_shapes
from onnxsparse.graph.attributes import attributes
from onnxsparse.graph.edit import Writer

# -- Normalization of each position: the engine wants three outputs and a bias, and knows only the plain form.

_FIRST_OPSET = 17  # the opset in which ONNX has LayerNormalization


class LayerNormalization(Rewrite):
    """All outputs declared, a bias of zeros where there is none; small operators before opset 17."""

    operators = ("LayerNormalization",)
    needless = True  # ONNX's checker, which the engine asks, does not know it before opset 17

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        if writer.opset >= _FIRST_OPSET and not view.flows(node):
            return None
        if any(name in view.gradients for name in node.output[1:]):
            return "a gradient would have to flow through its statistics"
        whole = len(node.output) == 3 and all(node.output) and given(node, 2) is not None
        if whole and writer.opset >= _FIRST_OPSET:
            return None
        shape = view.shapes.get(node.input[0])
        if shape is None or (writer.opset < _FIRST_OPSET and any(name in view.read for name in node.output[1:])):
            return "its shape is not known, or its statistics are read"
        axis = attributes(node).get("axis", -1) % len(shape)
        epsilon = attributes(node).get("epsilon", 1e-5)
        normalize(writer, node.input[0], node.input[1], given(node, 2), shape, axis, epsilon, list(node.output))
        return None


class SimplifiedLayerNormalization(Rewrite):
    """x / sqrt(mean(x * x) + epsilon) * scale."""

    operators = ("SimplifiedLayerNormalization",)
    needless = True  # ONNX's checker, which the engine asks, does not know it

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        shape = view.shapes.get(node.input[0])
        if shape is None or result(node, 1) in view.read:
            return "its shape is not known, or its statistics are read"
        axis = attributes(node).get("axis", -1) % len(shape)
        simplified(writer, node.input[0], node.input[1], range(axis, len(shape)), _epsilon(node, 1e-5), node.output[0])
        return None


class SkipLayerNormalization(Rewrite):
    """The sum of two branches and a bias, then a normalization."""

    operators = ("com.microsoft:SkipLayerNormalization", "com.microsoft:SkipSimplifiedLayerNormalization")

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        shape = view.shapes.get(node.input[0])
        if shape is None or any(name in view.read for name in node.output[1:3] if name):
            return "its shape is not known, or its statistics are read"
        plain = node.op_type == "SkipLayerNormalization"
        bias = given(node, 4 if plain else 3)
        total = writer.node("Add", node.input[0], node.input[1])
        total = writer.node("Add", total, bias) if bias else total
        if result(node, 3):
            writer.node("Identity", total, to=node.output[3])
        last, epsilon = len(shape) - 1, _epsilon(node, 1e-12)
        if plain:
            normalize(writer, total, node.input[2], given(node, 3), shape, last, epsilon, [node.output[0]])
        else:
            simplified(writer, total, node.input[2], [last], epsilon, node.output[0])
        return None


def normalize(
    writer: Writer,
    value: str,
    scale: str,
    bias: str | None,
    shape: tuple[int, ...],
    axis: int,
    epsilon: float,
    outputs: list[str],
) -> None:
    """LayerNormalization in the form that the engine is right about."""
    if writer.opset < _FIRST_OPSET:
        scaled = writer.node("Mul", standardized(writer, value, range(axis, len(shape)), epsilon), scale)
        writer.node(*(("Add", scaled, bias) if bias else ("Identity", scaled)), to=outputs[0])
        return
    bias = bias or writer.constant(np.zeros(shape[axis:], np.float32), "zeros")
    named = [name or writer.fresh("statistic") for name in (*outputs, "", "")[:3]]
    writer.many("LayerNormalization", value, scale, bias, to=named, axis=axis, epsilon=epsilon)


def simplified(writer: Writer, value: str, scale: str, axes: range | list[int], epsilon: float, to: str) -> None:
    """Normalization by the root mean square alone."""
    normal = writer.node("Div", value, root_mean_square(writer, value, axes, epsilon))
    writer.node("Mul", normal, scale, to=to)


def _epsilon(node: NodeProto, default: float) -> float:
    return float(attributes(node).get("epsilon", default))


# -- The sum of word, position and segment embeddings, normalized.


class EmbedLayerNormalization(Rewrite):
    """Look-ups, their sum, and a LayerNormalization."""

    operators = ("com.microsoft:EmbedLayerNormalization",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        ids, shape = view.shapes.get(node.input[0]), view.shapes.get(node.output[0])
        if ids is None or shape is None:
            return "its shapes are not known"
        if result(node, 1) in view.read:
            _count_kept(node, ids[0], writer)
        words, positions = node.input[2], node.input[3]
        total = writer.node("Gather", words, node.input[0], axis=0)
        chosen = given(node, 8)
        place = writer.node("Gather", positions, chosen, axis=0) if chosen else part(writer, positions, 0, ids[1], 0)
        total = writer.node("Add", total, place)
        segments, kinds = given(node, 4), given(node, 1)
        if segments and kinds:
            total = writer.node("Add", total, writer.node("Gather", segments, kinds, axis=0))
        if result(node, 2):
            writer.node("Identity", total, to=node.output[2])
        epsilon = attributes(node).get("epsilon", 1e-12)
        normalize(writer, total, node.input[5], node.input[6], shape, len(shape) - 1, epsilon, [node.output[0]])
        return None


def _count_kept(node: NodeProto, batch: int, writer: Writer) -> None:
    """The second output: how many places of each sample the mask keeps."""
    mask = given(node, 7)
    if mask:
        axes = writer.constant([1], "axes", np.int64)
        writer.node("ReduceSum", mask, axes, to=node.output[1], keepdims=0)
    else:
        writer.node("Identity", writer.constant(np.zeros(batch), "none", np.int32), to=node.output[1])


# -- Batch normalization with frozen statistics; the engine would silently take those of the batch.
#
# y = x * s + (bias - mean * s) with s = scale / sqrt(variance + epsilon). Scale and bias stay the tensors they are.


class BatchNormalization(Rewrite):
    """As in inference, whatever `training_mode` says."""

    operators = ("BatchNormalization",)
    needless = True

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        if any(name in view.read for name in node.output[1:] if name):
            return "its statistics are read"
        shape = view.shapes.get(node.input[0])
        if shape is None:
            return "its shape is not known"
        x, scale, bias, mean, variance = node.input
        epsilon = writer.constant(attributes(node).get("epsilon", 1e-5), "epsilon")
        deviation = writer.node("Sqrt", writer.node("Add", variance, epsilon))
        slope = writer.node("Div", scale, deviation)
        offset = writer.node("Sub", bias, writer.node("Mul", mean, slope))
        channels = (shape[1] if len(shape) > 1 else 1, *[1] * (len(shape) - 2))
        scaled = writer.node("Mul", x, reshape(writer, slope, channels))
        writer.node("Add", scaled, reshape(writer, offset, channels), to=node.output[0])
        return None


# -- Normalization over positions (and groups of channels), written with means.


class InstanceNormalization(Rewrite):
    """Each channel of each sample by itself."""

    operators = ("InstanceNormalization",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        shape = view.shapes.get(node.input[0])
        if shape is None:
            return "its shape is not known"
        epsilon = attributes(node).get("epsilon", 1e-5)
        normal = standardized(writer, node.input[0], range(2, len(shape)), epsilon)
        _scaled(writer, normal, node, (shape[1], *[1] * (len(shape) - 2)))
        return None


class GroupNormalization(Rewrite):
    """Groups of channels; scale and bias belong to groups before opset 21, to channels since."""

    operators = ("GroupNormalization",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        shape, sizes = view.shapes.get(node.input[0]), view.shapes.get(node.input[1])
        if shape is None or sizes is None:
            return "its shape is not known"
        groups, epsilon = attributes(node)["num_groups"], attributes(node).get("epsilon", 1e-5)
        grouped = (shape[0], groups, shape[1] // groups, *shape[2:])
        normal = standardized(writer, reshape(writer, node.input[0], grouped), range(2, len(grouped)), epsilon)
        inner = (groups, sizes[0] // groups, *[1] * (len(shape) - 2))
        scaled = writer.fresh("scaled")
        _scaled(writer, normal, node, inner, scaled)
        reshape(writer, scaled, shape, to=node.output[0])
        return None


def _scaled(writer: Writer, normal: str, node: NodeProto, shape: tuple[int, ...], to: str | None = None) -> None:
    product = writer.node("Mul", normal, reshape(writer, node.input[1], shape))
    writer.node("Add", product, reshape(writer, node.input[2], shape), to=to or node.output[0])


# -- Normalization by neighbouring channels, by the length of a vector, and to mean 0 and variance 1.

_TINY = 1e-24  # keeps the gradient of a vector of zeros finite


class LRN(Rewrite):
    """x / (bias + alpha * mean of the squares of `size` channels) ** beta; the mean is a pool along the channels."""

    operators = ("LRN",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        shape = view.shapes.get(node.input[0])
        if shape is None:
            return "its shape is not known"
        given = attributes(node)
        size, flat = given["size"], (shape[0], 1, shape[1], math.prod(shape[2:]))
        squares = reshape(writer, writer.node("Mul", node.input[0], node.input[0]), flat)
        pads = [(size - 1) // 2, 0, size // 2, 0]
        mean = writer.node("AveragePool", squares, kernel_shape=[size, 1], pads=pads, count_include_pad=1)
        share = writer.node("Mul", mean, writer.constant(given.get("alpha", 1e-4), "alpha"))
        total = writer.node("Add", reshape(writer, share, shape), writer.constant(given.get("bias", 1.0), "bias"))
        powers = writer.node("Pow", total, writer.constant(given.get("beta", 0.75), "beta"))
        writer.node("Div", node.input[0], powers, to=node.output[0])
        return None


class LpNormalization(Rewrite):
    """A vector divided by its length; zeros stay zeros."""

    operators = ("LpNormalization",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        shape = view.shapes.get(node.input[0])
        if shape is None:
            return "its shape is not known"
        axes = [attributes(node).get("axis", -1) % len(shape)]
        x, tiny = node.input[0], writer.constant(_TINY, "tiny")
        if attributes(node).get("p", 2) == 1:
            length = writer.node("Add", reduce(writer, "ReduceSum", writer.node("Abs", x), axes), tiny)
        else:
            total = reduce(writer, "ReduceSum", writer.node("Mul", x, x), axes)
            length = writer.node("Sqrt", writer.node("Add", total, tiny))
        writer.node("Div", x, length, to=node.output[0])
        return None


class MeanVarianceNormalization(Rewrite):
    """Over the given axes, without scale and bias."""

    operators = ("MeanVarianceNormalization",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        axes = attributes(node).get("axes", [0, 2, 3])
        writer.node("Identity", standardized(writer, node.input[0], axes, _TINY), to=node.output[0])
        return None


# -- Batch normalization that trains: the statistics of each batch in training, the running ones in measuring.
#
#     m = running + u (batch - running)      for the mean, and for the variance
#
# 1. u is a frozen number, 1 in a training step and 0 in a measurement: one graph serves both.
# 2. The batch's statistics are outputs of the graph; the running ones follow them in numpy, by the node's own momentum.
# 3. Without this, the rewrite of the operator takes the running statistics as they are.


@dataclass
class Statistics:
    """The switch, and by the initializer of each running statistic: the output that it follows, and its momentum."""

    switch: str = ""
    follows: dict[str, tuple[str, float]] = field(default_factory=dict)


def train_statistics(model: ModelProto, trained: set[str]) -> Statistics:
    """Rewrite every BatchNormalization whose mean and variance are among the trained tensors, in place."""
    infer_shapes(model)
    view, found = View.of(model, trained), Statistics()
    writer = Writer(model.graph, view.opset)

    def write(node: NodeProto) -> None:
        if node.op_type == "BatchNormalization" and set(node.input[3:5]) <= trained and node.input[0] in view.shapes:
            found.switch = found.switch or writer.constant(0.0, "batch_statistics")
            _write_trained(node, view.shapes[node.input[0]], writer, found)

    writer.replace(write)
    return found


def _write_trained(node: NodeProto, shape: tuple[int, ...], writer: Writer, found: Statistics) -> None:
    x, scale, bias, mean, variance = node.input
    options = attributes(node)
    epsilon = writer.constant(float(options.get("epsilon", 1e-5)), "epsilon")
    channels = (shape[1] if len(shape) > 1 else 1, *[1] * (len(shape) - 2))
    axes = [axis for axis in range(len(shape)) if axis != 1]
    batch_mean = _channel_mean(writer, x, axes)
    apart = writer.node("Sub", x, reshape(writer, batch_mean, channels))
    batch_variance = _channel_mean(writer, writer.node("Mul", apart, writer.node("Identity", apart)), axes)
    for running, current in ((mean, batch_mean), (variance, batch_variance)):
        found.follows[running] = (current, float(options.get("momentum", 0.9)))
    used = [_blend(writer, *pair, found.switch) for pair in ((mean, batch_mean), (variance, batch_variance))]
    slope = writer.node("Div", scale, writer.node("Sqrt", writer.node("Add", used[1], epsilon)))
    offset = writer.node("Sub", bias, writer.node("Mul", used[0], slope))
    scaled = writer.node("Mul", x, reshape(writer, slope, channels))
    writer.node("Add", scaled, reshape(writer, offset, channels), to=node.output[0])


def _channel_mean(writer: Writer, name: str, axes: list[int]) -> str:
    """The mean over all axes but the channels."""
    if writer.opset >= 18:
        return writer.node("ReduceMean", name, writer.constant(axes, "axes"), keepdims=0)
    return writer.node("ReduceMean", name, axes=axes, keepdims=0)


def _blend(writer: Writer, running: str, current: str, switch: str) -> str:
    return writer.node("Add", running, writer.node("Mul", switch, writer.node("Sub", current, running)))
