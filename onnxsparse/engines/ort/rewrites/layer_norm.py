"""Normalization of each position: the engine wants three outputs and a bias, and knows only the plain form."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, attributes
from onnxsparse.engines.ort.rewrites.shorthand import given, result, root_mean_square, standardized
from onnxsparse.engines.ort.writer import Writer

_FIRST = 17  # the opset in which ONNX has LayerNormalization


class LayerNormalization(Rewrite):
    """All outputs declared, a bias of zeros where there is none; small operators before opset 17."""

    operators = ("LayerNormalization",)
    needless = True  # ONNX's checker, which the engine asks, does not know it before opset 17

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        if writer.opset >= _FIRST and not view.flows(node):
            return None
        if any(name in view.gradients for name in node.output[1:]):
            return "a gradient would have to flow through its statistics"
        whole = len(node.output) == 3 and all(node.output) and given(node, 2) is not None
        if whole and writer.opset >= _FIRST:
            return None
        shape = view.shapes.get(node.input[0])
        if shape is None or (writer.opset < _FIRST and any(name in view.read for name in node.output[1:])):
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
    if writer.opset < _FIRST:
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
