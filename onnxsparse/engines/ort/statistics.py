"""Batch normalization that trains: the statistics of each batch in training, the running ones in measuring.

    m = running + u (batch - running)      for the mean, and for the variance

1. u is a frozen number, 1 in a training step and 0 in a measurement: one graph serves both.
2. The batch's statistics are outputs of the graph; the running ones follow them in numpy, by the node's own momentum.
3. Without this, the rewrite of the operator takes the running statistics as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from onnx import ModelProto, NodeProto

from onnxsparse.engines.ort import value_shapes
from onnxsparse.engines.ort.rewrites.rewrite import View, attributes
from onnxsparse.engines.ort.rewrites.shorthand import reshape
from onnxsparse.engines.ort.writer import Writer


@dataclass
class Statistics:
    """The switch, and by the initializer of each running statistic: the output that it follows, and its momentum."""

    switch: str = ""
    follows: dict[str, tuple[str, float]] = field(default_factory=dict)


def train_statistics(model: ModelProto, trained: set[str]) -> Statistics:
    """Rewrite every BatchNormalization whose mean and variance are among the trained tensors, in place."""
    value_shapes.infer(model)
    view, found = View.of(model, trained), Statistics()
    writer = Writer(model.graph, view.opset)
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        writer.nodes = []
        if node.op_type == "BatchNormalization" and set(node.input[3:5]) <= trained and node.input[0] in view.shapes:
            found.switch = found.switch or writer.constant(0.0, "batch_statistics")
            _write(node, view.shapes[node.input[0]], writer, found)
        nodes += writer.nodes or [node]
    kept = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return found


def _write(node: NodeProto, shape: tuple[int, ...], writer: Writer, found: Statistics) -> None:
    x, scale, bias, mean, variance = node.input
    options = attributes(node)
    epsilon = writer.constant(float(options.get("epsilon", 1e-5)), "epsilon")
    channels = (shape[1] if len(shape) > 1 else 1, *[1] * (len(shape) - 2))
    axes = [axis for axis in range(len(shape)) if axis != 1]
    batch_mean = _mean(writer, x, axes)
    apart = writer.node("Sub", x, reshape(writer, batch_mean, channels))
    batch_variance = _mean(writer, writer.node("Mul", apart, writer.node("Identity", apart)), axes)
    for running, current in ((mean, batch_mean), (variance, batch_variance)):
        found.follows[running] = (current, float(options.get("momentum", 0.9)))
    used = [_blend(writer, *pair, found.switch) for pair in ((mean, batch_mean), (variance, batch_variance))]
    slope = writer.node("Div", scale, writer.node("Sqrt", writer.node("Add", used[1], epsilon)))
    offset = writer.node("Sub", bias, writer.node("Mul", used[0], slope))
    scaled = writer.node("Mul", x, reshape(writer, slope, channels))
    writer.node("Add", scaled, reshape(writer, offset, channels), to=node.output[0])


def _mean(writer: Writer, name: str, axes: list[int]) -> str:
    """The mean over all axes but the channels."""
    if writer.opset >= 18:
        return writer.node("ReduceMean", name, writer.constant(axes, "axes"), keepdims=0)
    return writer.node("ReduceMean", name, axes=axes, keepdims=0)


def _blend(writer: Writer, running: str, current: str, switch: str) -> str:
    return writer.node("Add", running, writer.node("Mul", switch, writer.node("Sub", current, running)))
