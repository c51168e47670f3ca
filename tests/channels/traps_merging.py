"""Channels of several writers that meet, one channel with several readers, and what stands outside of the graph."""

from __future__ import annotations

import numpy as np

from tests.channels.net import Net, Trap, generator
from tests.channels.traps import trap


def _stem(channels: int = 16, size: int = 6, **more: object) -> tuple[Net, str]:
    net = Net(**more)  # type: ignore[arg-type]
    return net, net.conv(net.image(8, size), "first", 8, channels, k=3)


def _two(left: int, right: int) -> tuple[Net, str, str]:
    net = Net()
    x = net.image(8)
    return net, net.relu(net.conv(x, "left", 8, left)), net.conv(x, "right", 8, right)


# -- concatenation


@trap
def concat_aligned() -> Trap:
    net, left, right = _two(16, 8)
    return net.trap(net.conv(net.concat(left, right), "last", 24, 6), move="last", stay="left right")


@trap
def concat_unaligned() -> Trap:
    """The groups of four straddle the segments, which must not mix."""
    net, left, right = _two(6, 13)
    return net.trap(net.conv(net.concat(left, right), "last", 19, 6), move="last", stay="left right")


@trap
def concat_of_one_tensor_twice() -> Trap:
    net, h = _stem(8)
    return net.trap(net.conv(net.concat(h, net("Tanh", h)), "last", 16, 6), move="last", stay="first")


@trap
def concat_with_own_negative() -> Trap:
    """CReLU: the same channel in both halves, and a scale for each half."""
    net, h = _stem(8)
    h = net.relu(net.concat(h, net("Neg", h)))
    h = net("Mul", h, net.weight("scale", 16, 1, 1))
    return net.trap(net.conv(h, "last", 16, 6), move="last", stay="first")


@trap
def concat_with_constant() -> Trap:
    """Coordinates as two more channels."""
    net, h = _stem(16)
    places = net.weight("places", 2, 2, 6, 6)
    return net.trap(net.conv(net.concat(places, h), "last", 18, 6), move="last", stay="first")


@trap
def concat_with_input() -> Trap:
    """Two of the reader's columns belong to an input of the model."""
    net, h = _stem(14)
    side = net.input("side", 2, 2, 6, 6)
    return net.trap(net.conv(net.concat(side, h), "last", 16, 6), move="last", stay="first")


@trap
def concat_of_pixels() -> Trap:
    """Joined along the width: both writers have the channels of the reader."""
    net, left, right = _two(16, 16)
    return net.trap(net.conv(net.concat(left, right, axis=3), "last", 16, 6), move="last", stay="left right")


@trap
def concat_on_both_axes() -> Trap:
    """The same writer along channels and along pixels."""
    net, left, right = _two(8, 8)
    wide = net.concat(net.concat(left, right), net.concat(right, left), axis=3)
    return net.trap(net.conv(wide, "last", 16, 6), move="last", stay="left right")


@trap
def densenet() -> Trap:
    net, h = _stem(8)
    for step, channels in enumerate((8, 14, 20)):
        new = net.relu(net.conv(net.relu(net.batch_norm(h, f"bn{step}", channels)), f"grow{step}", channels, 6, k=3))
        h = net.concat(h, new)
    return net.trap(net.conv(h, "last", 26, 6), move="grow0 grow1 grow2 last", stay="first")


@trap
def concat_then_split_elsewhere() -> Trap:
    """10 + 6 joined, cut into 4 + 12: segments of 4, 6 and 6."""
    net, left, right = _two(10, 6)
    head, tail = net.split(net.concat(left, right), 4, 12)
    outputs = net.conv(head, "reads_4", 4, 5), net.conv(tail, "reads_12", 12, 6)
    return net.trap(*outputs, move="reads_12", stay="left right")


# -- sums


@trap
def residual_adds() -> Trap:
    net, h = _stem()
    for step in range(2):
        inner = net.relu(net.conv(net.relu(h), f"in{step}", 16, 12, k=3))
        h = net("Add", h, net.conv(inner, f"out{step}", 12, 16, k=3))
    return net.trap(net.conv(h, "last", 16, 6), move="in0 in1 out0 out1 last", stay="first")


@trap
def sum_of_many() -> Trap:
    """Sum, Max and Mean take any number of operands; one of them is a stored vector."""
    net, left, right = _two(16, 16)
    h = net("Sum", left, right, net.weight("vector", 1, 16, 1, 1))
    h = net("Max", h, net("Mean", left, h))
    return net.trap(net.conv(h, "last", 16, 6), move="last", stay="left right")


@trap
def sum_with_one_channel() -> Trap:
    """A map of one channel is added to all."""
    net, left, right = _two(16, 1)
    return net.trap(net.conv(net("Add", left, right), "last", 16, 6), move="last", stay="left right")


@trap
def sum_along_the_width() -> Trap:
    """A vector of 16 numbers, 16 channels, and 16 pixels in a row: broadcasting goes to the row."""
    net, h = _stem(16, 16)
    h = net("Add", h, net.weight("of_columns", 16))
    return net.trap(net.conv(h, "last", 16, 6), move="last", stay="first")


@trap
def outer_sum() -> Trap:
    """(N, C, 1) + (N, 1, C): the channel on two axes, both flattened into one."""
    net, h = _stem(8)
    pooled = net("Flatten", net("GlobalAveragePool", h))
    rows, columns = net("Unsqueeze", pooled, net.ints(2)), net("Unsqueeze", pooled, net.ints(1))
    square = net("Tanh", net("Add", rows, columns))
    return net.trap(net.gemm(net("Flatten", square), "last", 64, 6), stay="first")


@trap
def gram_matrix() -> Trap:
    """Bilinear pooling: channels against channels, flattened."""
    net, h = _stem(8)
    flat = net.reshape(h, 2, 8, 36)
    gram = net("MatMul", flat, net.transpose(flat, 0, 2, 1))
    return net.trap(net.gemm(net("Flatten", gram), "last", 64, 6), stay="first")


@trap
def sum_with_input() -> Trap:
    """The stream is added to what comes from outside: nothing of it can move."""
    net, h = _stem()
    h = net("Add", h, net.input("side", 2, 16, 6, 6))
    inner = net.relu(net.conv(h, "in", 16, 12))
    h = net("Add", h, net.conv(inner, "out", 12, 16))
    return net.trap(net.conv(h, "last", 16, 6), move="out", stay="first in last")


# -- groups


@trap
def grouped_conv() -> Trap:
    """Channels may be reordered inside each group; whole groups change no column's neighbours."""
    net, h = _stem()
    h = net.relu(net.conv(h, "grouped", 16, 24, k=3, group=2))
    return net.trap(net.conv(h, "last", 24, 6), move="grouped last", stay="first")


@trap
def grouped_conv_of_other_groups() -> Trap:
    """Two groups, then three: the outputs of one are cut otherwise by the next."""
    net, h = _stem()
    h = net.relu(net.conv(h, "by_2", 16, 24, group=2))
    h = net.relu(net.conv(h, "by_3", 24, 18, group=3))
    return net.trap(net.conv(h, "last", 18, 6), move="by_2 by_3 last", stay="first")


@trap
def grouped_conv_in_a_residual() -> Trap:
    """ResNeXt: the sum ties what leaves the groups to what enters them."""
    net, h = _stem()
    h = net("Add", h, net.relu(net.conv(h, "grouped", 16, 16, k=3, group=2)))
    return net.trap(net.conv(h, "last", 16, 6), move="grouped last", stay="first")


@trap
def depthwise() -> Trap:
    net, h = _stem()
    h = net.relu(net.conv(h, "depthwise", 16, 16, k=3, group=16))
    return net.trap(net.conv(h, "last", 16, 6), move="last", stay="first")


@trap
def depthwise_multiplier_2() -> Trap:
    """Each channel becomes two; pairs follow, and inside a pair the order is free."""
    net, h = _stem()
    h = net.relu(net.conv(h, "depthwise", 16, 32, k=3, group=16))
    return net.trap(net.conv(h, "last", 32, 6), move="last", stay="first")


@trap
def depthwise_that_is_grouped() -> Trap:
    """One filter for each group of four channels."""
    net, h = _stem()
    h = net.relu(net.conv(h, "fourfold", 16, 4, group=4))
    return net.trap(net.conv(h, "last", 4, 6), stay="first")


@trap
def conv_transpose() -> Trap:
    net, h = _stem()
    h = net.relu(net.conv_transpose(h, "up", 16, 12))
    return net.trap(net.conv(h, "last", 12, 6), move="up last", stay="first")


@trap
def conv_transpose_grouped() -> Trap:
    net, h = _stem()
    h = net.relu(net.conv_transpose(h, "up", 16, 24, group=2))
    return net.trap(net.conv(h, "last", 24, 6), move="up last", stay="first")


@trap
def conv_transpose_depthwise() -> Trap:
    net, h = _stem()
    h = net.conv_transpose(h, "up", 16, 16, group=16)
    return net.trap(net.conv(h, "last", 16, 6), move="last", stay="first")


@trap
def conv_1d_and_3d() -> Trap:
    net = Net()
    h = net("Conv", net.input("x", 2, 8, 12), net.weight("first", 16, 8, 3, axis=1))
    h = net("Conv", net.relu(h), net.weight("one", 16, 16, 1, axis=1))
    h = net.reshape(net.relu(h), 0, 0, 1, 2, 5)
    h = net("Conv", h, net.weight("three", 12, 16, 1, 2, 3, axis=1))
    h = net("GlobalMaxPool", h)
    return net.trap(net.gemm(net("Flatten", h), "last", 12, 6), move="one three last", stay="first")


# -- what stands outside


@trap
def input_with_channels() -> Trap:
    """The only reader of the input, and a stored vector on it."""
    net = Net()
    h = net("Mul", net.image(16), net.weight("scale", 16, 1, 1))
    return net.trap(net.conv(h, "last", 16, 6), stay="last")


@trap
def output_with_channels() -> Trap:
    """The features are an output: nothing in their order may change, though a weight reads them."""
    net, h = _stem()
    h = net.relu(h)
    middle = net.conv(h, "middle", 16, 16)
    return net.trap(middle, net.conv(middle, "last", 16, 6), move="middle", stay="first last")


@trap
def output_in_the_middle() -> Trap:
    """Only one half of the channels is an output; the other is free."""
    net, h = _stem()
    left, right = net.split(h, 8, 8)
    return net.trap(left, net.conv(right, "reads_right", 8, 6), net.conv(left, "reads_left", 8, 6),
                    move="reads_right", stay="first reads_left")  # fmt: skip


@trap
def output_without_order() -> Trap:
    """The sum over the channels is an output; their order does not show in it."""
    net, h = _stem()
    total = net("ReduceSum", h, net.ints(1), keepdims=0)
    return net.trap(total, net.conv(h, "last", 16, 6), move="last", stay="first")


@trap
def output_that_is_an_initializer() -> Trap:
    """A stored tensor that is handed out: its numbers must stay where they are."""
    net, h = _stem()
    y = net.conv(h, "last", 16, 6)
    return net.trap(y, net("Identity", "last_b"), net("Identity", "last"), stay="first last")


@trap
def two_readers() -> Trap:
    """One order for both readers."""
    net, h = _stem()
    y = net.gemm(net("Flatten", net("GlobalAveragePool", h)), "dense", 16, 6)
    return net.trap(net.conv(h, "last", 16, 6), y, move="last dense", stay="first")


@trap
def scatter_into_channels() -> Trap:
    """Four channels are written over by constant indices; the places and the numbers are stored."""
    net, h = _stem(16)
    channels_last = net.transpose(h, 1, 0, 2, 3)
    places = net.store("places", np.array([[2], [7], [8], [13]], np.int64))
    written = net("ScatterND", channels_last, places, net.weight("written", 4, 2, 6, 6))
    h = net.transpose(written, 1, 0, 2, 3)
    return net.trap(net.conv(h, "last", 16, 6), stay="first")


@trap
def scatter_elements_along_channels() -> Trap:
    net, h = _stem(16)
    index = net.store("index", generator("index").integers(0, 16, (2, 1, 6, 6)))
    h = net("ScatterElements", h, index, net.weight("written", 2, 1, 6, 6), axis=1)
    return net.trap(net.conv(h, "last", 16, 6), stay="first last")


@trap
def channels_compared_with_their_number() -> Trap:
    """A Range over the channels: the number of a channel is part of the result."""
    net, h = _stem(16)
    numbers = net("Range", net.store("zero", np.array(0.0, np.float32)), net.number(16.0), net.number(1.0))
    h = net("Mul", h, net.reshape(numbers, 1, 16, 1, 1))
    return net.trap(net.conv(h, "last", 16, 6), stay="first last")


@trap
def channels_against_a_one_hot() -> Trap:
    """The mask is made from an input when the model runs."""
    net, h = _stem(16)
    chosen = net.feed("chosen", np.array([3, 9], np.int64))
    values = net.store("values", np.array([0.1, 1.0], np.float32))
    hot = net("OneHot", chosen, net.store("depth", np.array(16, np.int64)), values)
    h = net("Mul", h, net.reshape(hot, 2, 16, 1, 1))
    return net.trap(net.conv(h, "last", 16, 6), stay="first last")


@trap
def where_with_stored_mask() -> Trap:
    """The mask of booleans has an entry for each channel and moves along."""
    net, h = _stem(16)
    mask = net.store("mask", generator("mask").integers(0, 2, (16, 1, 1)).astype(bool))
    h = net("Where", mask, h, net.weight("other", 1, 16, 1, 1))
    return net.trap(net.conv(h, "last", 16, 6), move="last", stay="first")


@trap
def where_with_mask_of_pixels() -> Trap:
    """The mask and the channels have the same number of entries, on other axes."""
    net, h = _stem(6)
    mask = net.store("mask", generator("mask").integers(0, 2, (6,)).astype(bool))
    h = net("Where", mask, h, net.number(0.5))
    return net.trap(net.conv(h, "last", 6, 9), move="last", stay="first")


@trap
def where_with_mask_from_the_channels() -> Trap:
    """Greater, Not and Where along the channels themselves."""
    net, h = _stem(16)
    limit = net.weight("limit", 16, 1, 1)
    h = net("Where", net("Not", net("Greater", h, limit)), h, net("Abs", h))
    return net.trap(net.conv(h, "last", 16, 6), move="last", stay="first")


@trap
def nonzero_of_channels() -> Trap:
    """The places of what is positive are an output."""
    net, h = _stem(16)
    places = net("NonZero", net("GlobalMaxPool", net.relu(h)))
    return net.trap(places, net.conv(h, "last", 16, 6), stay="first last")
