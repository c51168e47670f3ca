"""Convolutions for the training graph: explicit pads, fused activations, transposed convolutions as plain ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, gather, given, reshape, window
from onnxsparse.graph.attributes import attributes
from onnxsparse.graph.edit import Writer

# -- Convolutions: explicit pads (the engine's gradient ignores `auto_pad`), and fused activations taken out.

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


# -- Transposed convolutions, whose gradient has no kernel, as plain ones followed by a shuffle of channels.
#
# 1. With stride s, y[o] sums x[i] w[j] over i s + j = o. With j = q s + r, output o = t s + r takes x[t - q] w[q s +
#    r]: for each of the s phases r, a plain convolution of the whole x with every s-th number of w, turned round.
# 2. The phases are computed at once, as s times as many output channels, and then shuffled into place. Nothing is
#    multiplied with inserted zeros, but for a kernel filled up to a multiple of s.
# 3. A dilated kernel is one with zeros inside. Pads cut off the ends; where the output goes on beyond them, zeros
#    follow.


@dataclass(frozen=True)
class _Form:
    """The sizes of one transposed convolution."""

    input: tuple[int, ...]
    kernel: tuple[int, ...]
    outputs: int
    group: int
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    cut: tuple[int, ...]
    """Places dropped at the start of each axis."""
    result: tuple[int, ...]

    @property
    def extents(self) -> list[int]:
        return [(size - 1) * dilation + 1 for size, dilation in zip(self.kernel, self.dilations)]

    @property
    def taps(self) -> list[int]:
        """Numbers of the kernel that each phase has."""
        return [math.ceil(extent / stride) for extent, stride in zip(self.extents, self.strides)]

    @property
    def steps(self) -> list[int]:
        """Results of each phase."""
        return [size + taps - 1 for size, taps in zip(self.input[2:], self.taps)]


class ConvTranspose(Rewrite):
    """Any stride, kernel, group, dilation and pads."""

    operators = ("ConvTranspose",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        shapes = [view.shapes.get(name) for name in (*node.input[:2], node.output[0])]
        if shapes[0] is None or shapes[1] is None or shapes[2] is None:
            return "its shapes are not known"
        form = _form(node, shapes[0], shapes[1], shapes[2])
        weight = _phases(writer, node.input[1], form)
        pads = [taps - 1 for taps in form.taps] * 2
        value = writer.node("Conv", node.input[0], weight, kernel_shape=form.taps, pads=pads, group=form.group)
        value = _placed(writer, value, form)
        bias = given(node, 2)
        if bias:
            column = reshape(writer, bias, (form.outputs, *[1] * len(form.kernel)))
            writer.node("Add", value, column, to=node.output[0])
        else:
            writer.node("Identity", value, to=node.output[0])
        return None


def _form(node: NodeProto, x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...]) -> _Form:
    given = attributes(node)
    ones, group = [1] * len(w[2:]), given.get("group", 1)
    strides, dilations = given.get("strides", ones), given.get("dilations", ones)
    mode, extra = given.get("auto_pad", "NOTSET"), given.get("output_padding", [0] * len(ones))
    cut = given.get("pads", [0] * 2 * len(ones))[: len(ones)] if mode == "NOTSET" else [0] * len(ones)
    if "output_shape" in given or mode.startswith("SAME"):
        full = [
            stride * (size - 1) + more + (kernel - 1) * dilation + 1
            for stride, size, more, kernel, dilation in zip(strides, x[2:], extra, w[2:], dilations)
        ]
        totals = [max(size - wanted, 0) for size, wanted in zip(full, y[2:])]
        cut = [total - total // 2 if mode != "SAME_UPPER" else total // 2 for total in totals]
    return _Form(x, w[2:], y[1], group, tuple(strides), tuple(dilations), tuple(cut), y)


def _phases(writer: Writer, weight: str, form: _Form) -> str:
    """The weight (in, out/group, *kernel) as (out * phases, in/group, *taps), turned round."""
    rank, group, outputs = len(form.kernel), form.group, form.outputs // form.group
    weight = _spread(writer, weight, form)
    split = [size for pair in zip(form.taps, form.strides) for size in pair]
    weight = reshape(writer, weight, (group, form.input[1] // group, outputs, *split))
    for axis, taps in enumerate(form.taps):
        if taps > 1:
            weight = gather(writer, weight, np.arange(taps)[::-1], 3 + 2 * axis)
    phases, taps_at = [4 + 2 * axis for axis in range(rank)], [3 + 2 * axis for axis in range(rank)]
    weight = writer.node("Transpose", weight, perm=[0, 2, *phases, 1, *taps_at])
    return reshape(writer, weight, (form.outputs * math.prod(form.strides), form.input[1] // group, *form.taps))


def _spread(writer: Writer, weight: str, form: _Form) -> str:
    """Zeros between the numbers of a dilated kernel, and behind it up to a multiple of the stride."""
    shape = [form.input[1], form.outputs // form.group, *form.kernel]
    for axis, dilation in enumerate(form.dilations, 2):
        if dilation > 1:
            apart = reshape(writer, weight, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
            pads = [0] * len(shape) + [0] * (axis + 1) + [dilation - 1] + [0] * (len(shape) - axis - 1)
            wide = _padded(writer, apart, [0] * (len(shape) + 1), pads[len(shape) :])
            shape[axis] *= dilation
            weight = reshape(writer, wide, shape)
    goal = [taps * stride for taps, stride in zip(form.taps, form.strides)]
    return _padded(writer, weight, [0] * len(shape), [0, 0, *(want - has for want, has in zip(goal, shape[2:]))])


def _placed(writer: Writer, value: str, form: _Form) -> str:
    """(n, out * phases, *steps) as (n, out, *result)."""
    rank, batch = len(form.kernel), form.input[0]
    if math.prod(form.strides) > 1:
        value = reshape(writer, value, (batch, form.outputs, *form.strides, *form.steps))
        order = [place for axis in range(rank) for place in (2 + rank + axis, 2 + axis)]
        value = writer.node("Transpose", value, perm=[0, 1, *order])
    sizes = [steps * stride for steps, stride in zip(form.steps, form.strides)]
    value = reshape(writer, value, (batch, form.outputs, *sizes)) if math.prod(form.strides) > 1 else value
    more = [want + cut - has for want, cut, has in zip(form.result[2:], form.cut, sizes)]
    return _padded(writer, value, [0, 0, *(-cut for cut in form.cut)], [0, 0, *more])


def _padded(writer: Writer, value: str, before: Sequence[int], after: Sequence[int]) -> str:
    if not any(before) and not any(after):
        return value
    return writer.node("Pad", value, writer.constant([*before, *after], "pads", np.int64))
