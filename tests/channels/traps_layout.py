"""Channels that are reordered, cut, copied or laid out along another axis; each index can still be followed.

What is asked of the analysis: where every index of an axis has one source, that axis can be permuted, in blocks or as
it likes, because the reader's columns are stored and can follow.
"""

from __future__ import annotations

import sys

import numpy as np

from tests.channels.net import Net, Trap
from tests.channels.traps import trap


def _stem(channels: int = 16, size: int = 6, **more: object) -> tuple[Net, str]:
    """The first weight reads the graph's input, whose order is the caller's: it stays."""
    net = Net(**more)  # type: ignore[arg-type]
    return net, net.conv(net.image(8, size), "first", 8, channels, k=3)


@trap
def channel_shuffle() -> Trap:
    net, h = _stem()
    h = net.reshape(net.transpose(net.reshape(h, 2, 2, 8, 6, 6), 0, 2, 1, 3, 4), 2, 16, 6, 6)
    return net.trap(net.conv(h, "last", 16, 6), move="last", stay="first")


@trap
def channel_shuffle_before_groups() -> Trap:
    """The reader's groups mix both groups of the writer: the order inside each is free."""
    net = Net()
    h = net.conv(net.image(8), "first", 8, 32, group=2)
    h = net.reshape(net.transpose(net.reshape(h, 2, 2, 16, 6, 6), 0, 2, 1, 3, 4), 2, 32, 6, 6)
    h = net.relu(net.conv(h, "grouped", 32, 16, group=2))
    return net.trap(net.conv(h, "last", 16, 6), move="grouped last", stay="first")


@trap
def channel_shuffle_of_any_batch() -> Trap:
    """The shapes are computed from the input, as older exporters write it."""
    net = Net()
    x = net.feed("x", np.random.default_rng(3).standard_normal((2, 8, 6, 6)).astype(np.float32), ["N", 8, "H", "W"])
    h = net.conv(x, "first", 8, 16)
    shape = net("Shape", h)
    n, height, width = (net("Gather", shape, net.ints(axis), axis=0) for axis in (0, 2, 3))
    five = net("Concat", n, net.ints(2), net.ints(8), height, width, axis=0)
    h = net.transpose(net("Reshape", h, five), 0, 2, 1, 3, 4)
    h = net("Reshape", h, net("Concat", n, net.ints(-1), height, width, axis=0))
    return net.trap(net.conv(h, "last", 16, 6), move="last", stay="first")


@trap
def chunk_and_swap() -> Trap:
    net, h = _stem()
    left, right = net.split(h, 8, 8)
    return net.trap(net.conv(net.concat(right, left), "last", 16, 6), move="last", stay="first")


@trap
def chunk_and_swap_added() -> Trap:
    """Channel i and channel i + 8 are added both ways: they have to stay eight apart."""
    net, h = _stem()
    left, right = net.split(h, 8, 8)
    h = net("Add", h, net.concat(right, left))
    return net.trap(net.conv(h, "last", 16, 6), move="last", stay="first")


@trap
def chunk_and_swap_by_slices() -> Trap:
    """Slices that overlap no other, with an end beyond the axis and a negative start."""
    net, h = _stem()
    swapped = net.concat(net.slice(h, -6, sys.maxsize), net.slice(h, 0, 10))
    return net.trap(net.conv(swapped, "last", 16, 6), move="last", stay="first")


@trap
def split_of_unequal_parts() -> Trap:
    net, h = _stem()
    small, large = net.split(h, 5, 11)
    outputs = net.conv(small, "reads_5", 5, 6), net.conv(net.relu(large), "reads_11", 11, 6)
    return net.trap(*outputs, move="reads_5 reads_11", stay="first")


@trap
def split_part_unchanged() -> Trap:
    """ShuffleNet and CSP blocks: one half passes, the other is worked on; then both are joined."""
    net, h = _stem()
    left, right = net.split(h, 8, 8)
    right = net.relu(net.conv(right, "half", 8, 8, k=3))
    return net.trap(net.conv(net.concat(left, right), "last", 16, 6), move="half last", stay="first")


@trap
def split_by_attribute() -> Trap:
    """Opset 11: sizes of a Split, axes of Squeeze, bounds of a Pad and a Clip are attributes."""
    net = Net(opset=10, ir=5)
    h = net.conv(net.image(8), "first", 8, 16)
    h = net("Clip", h, min=0.0, max=6.0)
    left, right = net.many("Split", 2, h, axis=1, split=[6, 10])
    left = net("Slice", net("Pad", left, pads=[0, 1, 0, 0, 0, 0, 0, 0]), net.ints(1), net.ints(7), net.ints(1))
    pooled = net("Squeeze", net("GlobalAveragePool", right), axes=[2, 3])
    y = net("Gemm", pooled, net.weight("pooled", 10, 5, axis=0), net.weight("pooled_b", 5))
    return net.trap(net.conv(left, "last", 6, 5), y, move="last pooled", stay="first")


@trap
def slice_every_other_channel() -> Trap:
    net, h = _stem()
    even, odd = net.slice(h, 0, 16, step=2), net.slice(h, 1, 16, step=2)
    outputs = net.conv(even, "reads_even", 8, 6), net.conv(odd, "reads_odd", 8, 6)
    return net.trap(*outputs, move="reads_even reads_odd", stay="first")


@trap
def slice_that_drops_channels() -> Trap:
    """The last four channels have no reader: they can go nowhere that a reader looks."""
    net, h = _stem(20)
    return net.trap(net.conv(net.slice(h, 0, -4), "last", 16, 6), move="last", stay="first")


@trap
def gather_of_reversed_channels() -> Trap:
    net, h = _stem()
    turned = net("Gather", h, net.ints(*range(15, -1, -1)), axis=1)
    return net.trap(net.conv(turned, "last", 16, 6), move="last", stay="first")


@trap
def gather_of_some_channels_twice() -> Trap:
    """Negative indices, some channels twice, some never."""
    net, h = _stem()
    taken = net("Gather", h, net.ints(0, 0, 3, 3, -1, 5, 6, 7, -8, 9, 10, 0), axis=1)
    outputs = net.conv(taken, "last", 12, 6), net.conv(h, "other", 16, 6)
    return net.trap(*outputs, stay="first")


@trap
def gather_of_indices_from_outside() -> Trap:
    """Which channels are read is known when the model runs: their order is the caller's."""
    net, h = _stem()
    index = net.feed("index", np.array([3, 1, 4, 15, 9, 2, 6, 5], np.int64))
    taken = net("Gather", h, index, axis=1)
    return net.trap(net.conv(taken, "last", 8, 6), stay="first last")


@trap
def gather_elements_from_outside() -> Trap:
    net, h = _stem()
    index = net.feed("index", np.random.default_rng(0).integers(0, 16, (2, 8, 6, 6)))
    taken = net("GatherElements", h, index, axis=1)
    return net.trap(net.conv(taken, "last", 8, 6), stay="first")


@trap
def sum_with_flipped_channels() -> Trap:
    """Channel i and channel 15 - i are one class: pairs may be reordered."""
    net, h = _stem()
    h = net("Add", h, net.slice(h, -1, -sys.maxsize, step=-1))
    return net.trap(net.conv(h, "last", 16, 6), move="last", stay="first")


@trap
def roll_by_slice_and_concat() -> Trap:
    net, h = _stem()
    rolled = net.concat(net.slice(h, 3, 16), net.slice(h, 0, 3))
    return net.trap(net.conv(rolled, "last", 16, 6), move="last", stay="first")


@trap
def sum_with_rolled_channels() -> Trap:
    """Each channel is added to its neighbour: only rotations are left, which no search is asked to find."""
    net, h = _stem()
    h = net("Add", h, net.concat(net.slice(h, 1, 16), net.slice(h, 0, 1)))
    return net.trap(net.conv(h, "last", 16, 6), stay="first")


@trap
def sum_with_two_cycles() -> Trap:
    """Channel 0, 1, 3 and 2, 5, 4 are each added to the next: two classes alike, but they go round otherwise."""
    net, h = _stem(6)
    h = net("Add", h, net("Gather", h, net.ints(1, 3, 5, 0, 2, 4), axis=1))
    return net.trap(net.conv(h, "last", 6, 6), stay="first")


@trap
def temporal_shift() -> Trap:
    """Channels 0-3 come from the next frame, 4-7 from the one before: three segments that must not mix."""
    net, h = _stem()
    next_frame = net("Pad", net.slice(net.slice(h, 0, 4), 1, 2, axis=0), net.ints(0, 0, 0, 0, 1, 0, 0, 0))
    last_frame = net("Pad", net.slice(net.slice(h, 4, 8), 0, 1, axis=0), net.ints(1, 0, 0, 0, 0, 0, 0, 0))
    h = net.concat(next_frame, last_frame, net.slice(h, 8, 16))
    return net.trap(net.conv(h, "last", 16, 6), move="last", stay="first")


@trap
def pad_on_channels() -> Trap:
    """ResNets without parameters in the shortcut: zeros before and behind the channels."""
    net, h = _stem()
    h = net("Pad", h, net.ints(0, 2, 0, 0, 0, 6, 0, 0))
    return net.trap(net.conv(net.relu(h), "last", 24, 6), move="last", stay="first")


@trap
def pad_on_channels_added() -> Trap:
    """The padded shortcut meets a wider branch."""
    net, h = _stem()
    wide = net.conv(net.relu(h), "wide", 16, 24)
    h = net("Add", wide, net("Pad", h, net.ints(0, 4, 0, 0, 0, 4, 0, 0)))
    return net.trap(net.conv(h, "last", 24, 6), move="wide last", stay="first")


@trap
def pad_reflecting_channels() -> Trap:
    net, h = _stem()
    h = net("Pad", h, net.ints(0, 2, 0, 0, 0, 2, 0, 0), mode="reflect")
    return net.trap(net.conv(h, "last", 20, 6), stay="first")


@trap
def crop_by_negative_pad() -> Trap:
    net, h = _stem()
    h = net("Pad", h, net.ints(0, -3, 0, 0, 0, -1, 0, 0))
    return net.trap(net.conv(h, "last", 12, 6), stay="first")


@trap
def resize_of_pixels() -> Trap:
    net, h = _stem()
    scales = net.store("scales", np.array([1, 1, 2, 2], np.float32))
    h = net("Resize", h, "", scales, mode="nearest")
    return net.trap(net.conv(h, "last", 16, 6), move="last", stay="first")


@trap
def resize_of_channels() -> Trap:
    """Linear interpolation between neighbouring channels."""
    net, h = _stem()
    scales = net.store("scales", np.array([1, 1, 2, 1], np.float32))
    h = net("Resize", net.reshape(h, 1, 2, 16, 36), "", scales, mode="linear")
    h = net.reshape(h, 2, 32, 6, 6)
    return net.trap(net.conv(h, "last", 32, 6), stay="first last")


@trap
def depth_to_space_dcr() -> Trap:
    net, h = _stem(32)
    h = net("DepthToSpace", h, blocksize=2, mode="DCR")
    return net.trap(net.conv(h, "last", 8, 6, k=3), move="last", stay="first")


@trap
def depth_to_space_crd() -> Trap:
    net, h = _stem(32)
    h = net("DepthToSpace", h, blocksize=2, mode="CRD")
    return net.trap(net.conv(h, "last", 8, 6, k=3), move="last", stay="first")


@trap
def depth_to_space_by_hand() -> Trap:
    """Pixel shuffle as torch decomposes it: the channel is the slowest of three factors."""
    net, h = _stem(32)
    h = net.transpose(net.reshape(h, 2, 8, 2, 2, 6, 6), 0, 1, 4, 2, 5, 3)
    return net.trap(net.conv(net.reshape(h, 2, 8, 12, 12), "last", 8, 6, k=3), move="last", stay="first")


@trap
def space_to_depth() -> Trap:
    """The reader has the same channel four times, eight apart."""
    net, h = _stem(8)
    h = net("SpaceToDepth", h, blocksize=2)
    return net.trap(net.conv(h, "last", 32, 6), move="last", stay="first")


@trap
def pixel_unshuffle_by_hand() -> Trap:
    """The reader has the same channel four times, next to each other."""
    net, h = _stem(8)
    h = net.transpose(net.reshape(h, 2, 8, 3, 2, 3, 2), 0, 1, 3, 5, 2, 4)
    return net.trap(net.conv(net.reshape(h, 2, 32, 3, 3), "last", 32, 6), stay="first")


@trap
def copies_of_channels_in_two_orders() -> Trap:
    """Two pixels of each channel; halves joined crosswise: a channel's first copy is this or that pixel."""
    net = Net()
    h = net.linear(net.input("x", 2, 2, 8), "first", 8, 8)
    p0, p1 = (net("Squeeze", one, net.ints(1)) for one in net.split(h, 1, 1))
    low0, high0 = net.split(p0, 4, 4)
    low1, high1 = net.split(p1, 4, 4)
    return net.trap(net.gemm(net.concat(low0, high1, low1, high0), "last", 16, 6), stay="first")


@trap
def focus_by_strided_slices() -> Trap:
    """YOLOv5: pixels taken alternately become four segments of channels, each with the same channels."""
    net, h = _stem(8)
    parts = [net.slice(net.slice(h, a, 6, axis=2, step=2), b, 6, axis=3, step=2) for b in (0, 1) for a in (0, 1)]
    return net.trap(net.conv(net.concat(*parts), "last", 32, 6), move="last", stay="first")


@trap
def flatten_of_nchw() -> Trap:
    """Each channel is two columns of the reader, side by side."""
    net, h = _stem(8)
    h = net("MaxPool", h, kernel_shape=[3, 6], strides=[3, 6])
    return net.trap(net.gemm(net("Flatten", h), "last", 16, 6), move="last", stay="first")


@trap
def flatten_of_nhwc() -> Trap:
    """Each channel is a column in every pixel of the reader."""
    net, h = _stem(8)
    h = net.transpose(net("MaxPool", h, kernel_shape=[3, 3], strides=[3, 3]), 0, 2, 3, 1)
    return net.trap(net.linear(net.reshape(h, 0, -1), "last", 32, 6), move="last", stay="first")


@trap
def flatten_of_two_into_one() -> Trap:
    """Two layers with channels of the same class, flattened with other pixels each."""
    net, h = _stem(8)
    small = net("Flatten", net("MaxPool", h, kernel_shape=[3, 6], strides=[3, 6]))
    pooled = net("Flatten", net("GlobalAveragePool", h))
    y = net("Add", net.gemm(small, "reads_16", 16, 6), net.gemm(pooled, "reads_8", 8, 6))
    return net.trap(y, move="reads_8 reads_16", stay="first")


@trap
def channels_into_the_batch() -> Trap:
    """Each channel is an image of its own for what follows, and comes back."""
    net, h = _stem(16)
    h = net.reshape(h, 32, 1, 6, 6)
    h = net.relu(net.conv(h, "one", 1, 1, k=3))
    return net.trap(net.conv(net.reshape(h, 2, 16, 6, 6), "last", 16, 6), move="last", stay="first")


@trap
def channels_beside_pixels() -> Trap:
    """(N, C, H, W) read as (N, H, C, W) by a Reshape, not by a Transpose: no axis holds the channels any more."""
    net, h = _stem(8)
    h = net.reshape(h, 2, 6, 8, 6)
    h = net.transpose(h, 0, 2, 1, 3)
    return net.trap(net.conv(h, "last", 8, 6), stay="first last")


@trap
def tile_of_channels() -> Trap:
    net, h = _stem(8)
    h = net("Tile", h, net.ints(1, 3, 1, 1))
    return net.trap(net.conv(h, "last", 24, 6), move="last", stay="first")


@trap
def expand_of_one_channel() -> Trap:
    """Sixteen equal channels, scaled by a stored vector: factor and column move together."""
    net = Net()
    h = net.conv(net.image(8), "first", 8, 1)
    h = net("Mul", net("Expand", h, net.ints(2, 16, 6, 6)), net.weight("scale", 16, 1, 1))
    return net.trap(net.conv(net.relu(h), "last", 16, 6), move="last", stay="first")


@trap
def size_one_axes() -> Trap:
    """Weights with axes of size 1, and a broadcast from one channel to sixteen."""
    net = Net()
    h = net.conv(net.image(1), "first", 1, 16)
    gate = net("Sigmoid", net.conv(h, "gate", 16, 1))
    h = net("Mul", h, gate)
    return net.trap(net.conv(net.conv(h, "narrow", 16, 1), "last", 1, 6), h, stay="narrow gate")


@trap
def twenty_one_channels() -> Trap:
    """A number of channels that is no multiple of 4: the last column lies in no group."""
    net, h = _stem(21)
    return net.trap(net.conv(net.relu(h), "last", 21, 6), move="last", stay="first")


@trap
def zero_size_tensor() -> Trap:
    """A segment without channels, and a batch without samples."""
    net, h = _stem()
    empty, whole = net.split(h, 0, 16)
    h = net.concat(empty, whole, net.store("nothing", np.zeros((2, 0, 6, 6), np.float32)))
    none = net.slice(h, 0, 0, axis=0)
    return net.trap(net.conv(h, "last", 16, 6), net.conv(none, "of_none", 16, 6), move="last", stay="first")


@trap
def window_partition() -> Trap:
    """Swin: tokens are moved into windows and back; the channels stay the last axis."""
    net, h = _stem()
    h = net.transpose(h, 0, 2, 3, 1)
    windows = net.reshape(net.transpose(net.reshape(h, 2, 3, 2, 3, 2, 16), 0, 1, 3, 2, 4, 5), -1, 4, 16)
    windows = net("Add", windows, net.linear(net.relu(net.linear(windows, "up", 16, 12)), "down", 12, 16))
    h = net.transpose(net.reshape(windows, 2, 3, 3, 2, 2, 16), 0, 1, 3, 2, 4, 5)
    return net.trap(net.linear(net.reshape(h, 2, 36, 16), "last", 16, 6), move="up down last", stay="first")


@trap
def window_partition_of_channels() -> Trap:
    """As before with C == window * heads: a careless matching of sizes takes pixels for channels."""
    net, h = _stem(6)
    h = net.reshape(net.transpose(h, 0, 2, 3, 1), 2, 6, 6, 6)
    h = net.reshape(net.transpose(h, 0, 2, 1, 3), 2, 36, 6)
    y = net.linear(h, "last", 6, 9)
    mixed = net.relu(net.linear(net.transpose(h, 0, 2, 1), "tokens", 36, 5))
    return net.trap(y, net("ReduceSum", mixed, net.ints(1)), move="last", stay="first tokens")


@trap
def unfold_by_slices() -> Trap:
    """im2col by hand: nine shifted copies of the channels, and one matrix for all."""
    net, h = _stem(4)
    padded = net("Pad", h, net.ints(0, 0, 1, 1, 0, 0, 1, 1))
    parts = [net.slice(net.slice(padded, a, a + 6, axis=2), b, b + 6, axis=3) for a in range(3) for b in range(3)]
    columns = net.transpose(net.reshape(net.concat(*parts), 2, 36, 36), 0, 2, 1)
    return net.trap(net.linear(columns, "last", 36, 6), stay="first")


@trap
def space_to_batch_by_hand() -> Trap:
    """Pixels go to the batch and come back at other places; channels are untouched."""
    net, h = _stem()
    h = net.transpose(net.reshape(h, 2, 16, 3, 2, 3, 2), 3, 5, 0, 1, 2, 4)
    h = net.relu(net.conv(net.reshape(h, 8, 16, 3, 3), "middle", 16, 16, k=3))
    h = net.transpose(net.reshape(h, 2, 2, 2, 16, 3, 3), 2, 3, 4, 0, 5, 1)
    return net.trap(net.conv(net.reshape(h, 2, 16, 6, 6), "last", 16, 6), move="middle last", stay="first")
