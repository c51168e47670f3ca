"""Convolutions: explicit pads (the engine's gradient ignores `auto_pad`), and fused activations taken out."""

from __future__ import annotations

from typing import Any

from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, attributes
from onnxsparse.engines.ort.rewrites.shorthand import given, window
from onnxsparse.engines.ort.writer import Writer

_ACTIVATIONS = {"Relu": (), "Tanh": (), "Sigmoid": (), "LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}


class Conv(Rewrite):
    """`auto_pad` becomes `pads`."""

    operators = ("Conv",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        if attributes(node).get("auto_pad", "NOTSET") == "NOTSET":
            return None
        return _explicit(node, view, writer, node.output[0])


class FusedConv(Rewrite):
    """Conv, then the second addend, then the activation."""

    operators = ("com.microsoft:FusedConv",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        activation = attributes(node).get("activation", "")
        if activation not in (*_ACTIVATIONS, "", "Clip"):
            return f"its activation {activation} is not known"
        value = writer.fresh("convolved")
        refusal = _explicit(node, view, writer, value)
        added = given(node, 3)
        if added:
            value = writer.node("Add", value, added)
        _activate(writer, value, activation, attributes(node).get("activation_params", []), node.output[0])
        return refusal


def _explicit(node: NodeProto, view: View, writer: Writer, to: str) -> str | None:
    shapes = [view.shapes.get(name) for name in node.input[:2]]
    if shapes[0] is None or shapes[1] is None:
        return "its shapes are not known"
    kernel = list(shapes[1][2:])
    strides, dilations, pads = window(node, shapes[0], kernel)
    group = attributes(node).get("group", 1)
    inputs = [name for name in node.input[:3] if name]
    written = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads, "group": group}
    writer.node("Conv", *inputs, to=to, **written)
    return None


def _activate(writer: Writer, value: str, activation: str, numbers: list[float], to: str) -> None:
    if activation == "Clip":
        low, high = (writer.constant(float(number), "limit") for number in numbers)
        writer.node("Clip", value, low, high, to=to)
    else:
        named: dict[str, Any] = dict(zip(_ACTIVATIONS.get(activation, ()), numbers))
        writer.node(activation or "Identity", value, to=to, **named)
