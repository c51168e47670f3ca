"""Operators that compute with several channels at once: norms, gates, reductions, sorting, products."""

from __future__ import annotations

import numpy as np

from tests.channels.net import Net, Trap
from tests.channels.traps import trap


def _stem(channels: int = 16, size: int = 6, **more: object) -> tuple[Net, str]:
    net = Net(**more)  # type: ignore[arg-type]
    return net, net.conv(net.image(8, size), "first", 8, channels, k=3)


def _dense(width: int = 16) -> tuple[Net, str]:
    """(batch, tokens, width)."""
    net = Net()
    return net, net.linear(net.input("x", 2, 5, 8), "first", 8, width)


# -- a factor for each channel


@trap
def prelu_per_channel() -> Trap:
    net, h = _stem()
    h = net("PRelu", h, net.weight("slope", 16, 1, 1))
    return net.trap(net.conv(h, "last", 16, 6), move="last", stay="first")


@trap
def prelu_along_the_width() -> Trap:
    """Sixteen slopes without further axes lie along the width, not along the sixteen channels."""
    net, h = _stem(16, 16)
    h = net("PRelu", h, net.weight("slope", 16))
    return net.trap(net.conv(h, "last", 16, 6), move="last", stay="first")


@trap
def prelu_shared() -> Trap:
    net, h = _stem()
    h = net("PRelu", h, net.weight("slope", 1, 1, 1))
    return net.trap(net.conv(h, "last", 16, 6), move="last", stay="first")


@trap
def scale_computed_from_constants() -> Trap:
    """Folded by nobody: sqrt(variance + eps) of stored vectors divides the channels."""
    net, h = _stem()
    variance = net.store("variance", np.random.default_rng(5).uniform(0.5, 2, 16).astype(np.float32))
    deviation = net("Sqrt", net("Add", variance, net.number(1e-5)))
    factor = net("Unsqueeze", net("Div", net.weight("gamma", 16, around=1.0), deviation), net.ints(1, 2))
    h = net("Mul", h, factor)
    return net.trap(net.conv(h, "last", 16, 6), move="last", stay="first")


@trap
def scale_from_the_number_of_channels() -> Trap:
    """Shape -> Gather -> Cast -> Sqrt -> Div: a size becomes a factor, and stays a scalar of rank 0."""
    net, h = _dense()
    count = net("Gather", net("Shape", h), net.store("axis", np.array(2, np.int64)))
    h = net("Div", h, net("Sqrt", net("Cast", count, to=1)))
    return net.trap(net.linear(h, "last", 16, 6), move="last", stay="first")


# -- norms


@trap
def local_response_norm() -> Trap:
    """Each channel is divided by its neighbours."""
    net, h = _stem()
    h = net("LRN", h, size=5, alpha=0.5, beta=0.75, bias=1.0)
    return net.trap(net.conv(h, "last", 16, 6), stay="first last")


@trap
def batch_norm() -> Trap:
    net, h = _stem()
    h = net.relu(net.batch_norm(h, "bn", 16))
    return net.trap(net.conv(h, "last", 16, 6), move="last", stay="first")


@trap
def instance_norm() -> Trap:
    net, h = _stem()
    h = net("InstanceNormalization", h, net.weight("scale", 16, around=1.0), net.weight("bias", 16))
    return net.trap(net.conv(h, "last", 16, 6), move="last", stay="first")


@trap
def layer_norm() -> Trap:
    net, h = _dense()
    h = net.layer_norm(h, "norm", 16)
    return net.trap(net.linear(h, "last", 16, 6), move="last", stay="first")


@trap
def layer_norm_of_images() -> Trap:
    """ConvNeXt v1: channels go to the last axis and back."""
    net, h = _stem()
    h = net.transpose(net.layer_norm(net.transpose(h, 0, 2, 3, 1), "norm", 16), 0, 3, 1, 2)
    h = net("Add", h, net("Mul", net.conv(h, "middle", 16, 16), net.weight("gamma", 16, 1, 1)))
    return net.trap(net.conv(h, "last", 16, 6), move="middle last", stay="first")


@trap
def layer_norm_over_all_axes() -> Trap:
    """Scale and bias have a number for each channel and pixel."""
    net, h = _stem()
    h = net.layer_norm(h, "norm", 16, 6, 6, axis=1)
    return net.trap(net.conv(h, "last", 16, 6), move="last", stay="first")


@trap
def layer_norm_by_hand() -> Trap:
    """Ten nodes, as exported before opset 17."""
    net = Net(opset=13)
    h = net.linear(net.input("x", 2, 5, 8), "first", 8, 16)
    centred = net("Sub", h, net("ReduceMean", h, axes=[-1]))
    variance = net("ReduceMean", net("Pow", centred, net.number(2.0)), axes=[-1])
    h = net("Div", centred, net("Sqrt", net("Add", variance, net.number(1e-5))))
    h = net("Add", net("Mul", h, net.weight("scale", 16)), net.weight("bias", 16))
    return net.trap(net.linear(h, "last", 16, 6), move="last", stay="first")


@trap
def rms_norm_by_hand() -> Trap:
    net, h = _dense()
    mean = net("ReduceMean", net("Mul", h, h), axes=[2])
    h = net("Mul", net("Mul", h, net("Reciprocal", net("Sqrt", mean))), net.weight("scale", 16, around=1.0))
    return net.trap(net.linear(h, "last", 16, 6), move="last", stay="first")


@trap
def rms_norm_with_ones() -> Trap:
    """A vector of equal numbers moves or not, nobody can tell."""
    net, h = _dense()
    ones = net.store("scale", np.ones(16, np.float32))
    h = net("SimplifiedLayerNormalization", h, ones, axis=-1, epsilon=1e-5)
    return net.trap(net.linear(h, "last", 16, 6), move="last", stay="first")


@trap
def skip_layer_norm() -> Trap:
    """com.microsoft: residual, bias and norm in one node, and the sum as its fourth output."""
    net, h = _dense()
    inner = net.linear(net.relu(net.linear(h, "up", 16, 24)), "down", 24, 16, bias=False)
    stored = net.weight("scale", 16, around=1.0), net.weight("shift", 16), net.weight("bias", 16)
    outputs = net.many("SkipLayerNormalization", 4, inner, h, *stored, domain="com.microsoft")
    net.nodes[-1].output[1] = net.nodes[-1].output[2] = ""
    y = net.linear(outputs[0], "last", 16, 6), net.linear(outputs[3], "sum", 16, 5)
    return net.trap(*y, move="up down last sum", stay="first")


@trap
def group_norm_by_hand() -> Trap:
    """torch: two groups as the channels of an InstanceNormalization, then a scale for each channel."""
    net, h = _stem()
    flat = net.reshape(h, 0, 2, -1)
    ones = net.store("ones", np.ones(2, np.float32)), net.store("zeros", np.zeros(2, np.float32))
    h = net("Reshape", net("InstanceNormalization", flat, *ones), net("Shape", h))
    h = net("Add", net("Mul", h, net.weight("scale", 16, 1, 1)), net.weight("bias", 16, 1, 1))
    return net.trap(net.conv(h, "last", 16, 6), move="last", stay="first")


@trap
def group_norm_with_a_scale_for_each_group() -> Trap:
    """Groups change places only if their scales do; channels inside them are free."""
    net, h = _stem()
    flat = net.reshape(h, 0, 2, -1)
    stored = net.weight("of_groups", 2, around=1.0), net.weight("shift_of_groups", 2)
    h = net("Reshape", net("InstanceNormalization", flat, *stored), net("Shape", h))
    return net.trap(net.conv(h, "last", 16, 6), move="last", stay="first")


@trap
def group_normalization() -> Trap:
    """The operator of opset 21, with a scale for each channel."""
    net, h = _stem(opset=21, ir=10)
    h = net("GroupNormalization", h, net.weight("scale", 16), net.weight("bias", 16), num_groups=2)
    return net.trap(net.conv(h, "last", 16, 6), move="last", stay="first")


@trap
def group_norm_in_a_residual() -> Trap:
    """The stream's channels have to stay in their groups, whoever reads them."""
    net, h = _stem(opset=21, ir=10)
    normed = net("GroupNormalization", h, net.weight("scale", 16), net.weight("bias", 16), num_groups=2)
    h = net("Add", h, net.conv(net.relu(normed), "middle", 16, 16, k=3))
    return net.trap(net.conv(h, "last", 16, 6), move="middle last", stay="first")


@trap
def lp_normalization() -> Trap:
    net, h = _stem()
    h = net("LpNormalization", h, axis=1, p=2)
    return net.trap(net.conv(h, "last", 16, 6), move="last", stay="first")


@trap
def mean_variance_normalization() -> Trap:
    net, h = _stem()
    h = net("MeanVarianceNormalization", h, axes=[0, 2, 3])
    return net.trap(net.conv(h, "last", 16, 6), move="last", stay="first")


@trap
def global_response_norm() -> Trap:
    """ConvNeXt v2: each channel's energy over the mean energy of all."""
    net, h = _dense()
    energy = net("ReduceL2", h, axes=[1])
    share = net("Div", energy, net("Add", net("ReduceMean", energy, axes=[-1]), net.number(1e-6)))
    scaled = net("Add", net("Mul", net("Mul", h, share), net.weight("gamma", 1, 1, 16)), net.weight("beta", 1, 1, 16))
    return net.trap(net.linear(net("Add", h, scaled), "last", 16, 6), move="last", stay="first")


# -- reductions over the channels


@trap
def softmax_over_channels() -> Trap:
    net, h = _stem()
    return net.trap(net.conv(net("Softmax", h, axis=1), "last", 16, 6), move="last", stay="first")


@trap
def softmax_over_the_rest() -> Trap:
    """Opset 11: the softmax runs over all axes from the first on, flattened."""
    net = Net(opset=11)
    h = net.conv(net.image(8), "first", 8, 16)
    return net.trap(net.conv(net("Softmax", h, axis=1), "last", 16, 6), move="last", stay="first")


@trap
def spatial_attention() -> Trap:
    """CBAM: mean and maximum over the channels become a gate for all."""
    net, h = _stem()
    pooled = net.concat(net("ReduceMean", h, axes=[1]), net("ReduceMax", h, axes=[1]))
    gate = net("Sigmoid", net.conv(pooled, "gate", 2, 1, k=3))
    return net.trap(net.conv(net("Mul", h, gate), "last", 16, 6), move="last", stay="first gate")


@trap
def cumsum_over_channels() -> Trap:
    net, h = _stem()
    h = net("CumSum", h, net.store("axis", np.array(1, np.int64)))
    return net.trap(net.conv(h, "last", 16, 6), stay="first last")


@trap
def cumsum_over_pixels() -> Trap:
    net, h = _stem()
    h = net("CumSum", h, net.store("axis", np.array(-1, np.int64)))
    return net.trap(net.conv(h, "last", 16, 6), move="last", stay="first")


@trap
def argmax_over_channels() -> Trap:
    """The number of the largest channel is an output."""
    net, h = _stem()
    return net.trap(net("ArgMax", h, axis=1), net.conv(h, "last", 16, 6), stay="first last")


@trap
def topk_over_channels() -> Trap:
    """Sorted numbers and where they were: the reader of the former sees places in a ranking."""
    net, h = _stem()
    values, places = net.many("TopK", 2, h, net.ints(8), axis=1)
    return net.trap(net.conv(values, "ranks", 8, 6), places, net.conv(h, "last", 16, 6), stay="first ranks last")


@trap
def reduce_over_some_axes_by_default() -> Trap:
    """A reduction without axes takes all of them: its result has no channel."""
    net, h = _stem()
    h = net("Div", h, net("ReduceMax", net("Abs", h), keepdims=0))
    return net.trap(net.conv(h, "last", 16, 6), move="last", stay="first")


@trap
def mean_of_channels_squeezed() -> Trap:
    """After a reduction without kept sizes, the height stands where the channels were."""
    net, h = _stem(6)
    rows = net("ReduceMean", h, axes=[1], keepdims=0)
    y = net.linear(net("Mul", rows, net.weight("of_columns", 6)), "columns", 6, 9)
    return net.trap(y, net.conv(h, "last", 6, 9), move="last", stay="first columns")


# -- gates


@trap
def squeeze_and_excite() -> Trap:
    net, h = _stem()
    pooled = net("GlobalAveragePool", h)
    gate = net.conv(net.relu(net.conv(pooled, "squeeze", 16, 8)), "excite", 8, 16)
    h = net("Mul", h, net("HardSigmoid", gate))
    return net.trap(net.conv(h, "last", 16, 6), move="squeeze excite last", stay="first")


@trap
def squeeze_and_excite_by_gemm() -> Trap:
    """The gate loses its pixels by a Reshape and gets them back."""
    net, h = _stem()
    pooled = net.reshape(net("ReduceMean", h, axes=[2, 3]), 2, 16)
    gate = net.gemm(net.relu(net.gemm(pooled, "squeeze", 16, 8)), "excite", 8, 16)
    h = net("Mul", h, net.reshape(net("Sigmoid", gate), 2, 16, 1, 1))
    return net.trap(net.conv(h, "last", 16, 6), move="squeeze excite last", stay="first")


@trap
def efficient_channel_attention() -> Trap:
    """ECA: the channels become the positions of a Conv1d, which sees neighbours."""
    net, h = _stem()
    row = net.transpose(net.reshape(net("GlobalAveragePool", h), 2, 16, 1), 0, 2, 1)
    mixed = net("Conv", row, net.weight("neighbours", 1, 1, 3, axis=1), pads=[1, 1])
    gate = net.reshape(net.transpose(mixed, 0, 2, 1), 2, 16, 1, 1)
    h = net("Mul", h, net("Sigmoid", gate))
    return net.trap(net.conv(h, "last", 16, 6), stay="first last")


@trap
def pooling_over_channels() -> Trap:
    """Maxout: the channels are the pixels of an AveragePool."""
    net, h = _stem()
    h = net("AveragePool", net.reshape(h, 2, 1, 16, 36), kernel_shape=[3, 1], pads=[1, 0, 1, 0])
    return net.trap(net.conv(net.reshape(h, 2, 16, 6, 6), "last", 16, 6), stay="first last")


@trap
def maxout() -> Trap:
    """The maximum over pairs of neighbouring channels: pairs move, and inside a pair the order is free."""
    net, h = _stem(32)
    h = net("ReduceMax", net.reshape(h, 2, 16, 2, 6, 6), axes=[2], keepdims=0)
    return net.trap(net.conv(h, "last", 16, 6), move="last", stay="first")


@trap
def gated_linear_unit() -> Trap:
    net, h = _stem(32)
    value, gate = net.split(h, 16, 16)
    h = net("Mul", value, net("Sigmoid", gate))
    return net.trap(net.conv(h, "last", 16, 6), move="last", stay="first")


@trap
def gated_linear_unit_interleaved() -> Trap:
    """Value and gate alternate, as some language models store them."""
    net = Net()
    h = net.linear(net.input("x", 2, 5, 8), "first", 8, 32)
    value, gate = net.slice(h, 0, 32, axis=2, step=2), net.slice(h, 1, 32, axis=2, step=2)
    h = net("Mul", value, net("Sigmoid", gate))
    return net.trap(net.linear(h, "last", 16, 6), move="last", stay="first")


@trap
def swiglu_packed_with_residual() -> Trap:
    net, h = _dense()
    up, gate = net.split(net.linear(h, "packed", 16, 40, bias=False), 20, 20, axis=-1)
    inner = net("Mul", up, net("Mul", gate, net("Sigmoid", gate)))
    h = net("Add", h, net.linear(inner, "down", 20, 16, bias=False))
    return net.trap(net.linear(h, "last", 16, 6), move="packed down last", stay="first")


@trap
def gate_of_other_width() -> Trap:
    """Four gates for sixteen channels: a gate for each block of four, which it keeps together."""
    net, h = _stem()
    gate = net("Sigmoid", net.conv(net("GlobalAveragePool", h), "gate", 16, 4))
    blocks = net("Mul", net.reshape(h, 2, 4, 4, 6, 6), net.reshape(gate, 2, 4, 1, 1, 1))
    return net.trap(net.conv(net.reshape(blocks, 2, 16, 6, 6), "last", 16, 6), stay="first")


# -- tokens


@trap
def mlp_mixer() -> Trap:
    """Tokens are mixed and channels are mixed; the order of tokens is that of the image."""
    net, h = _stem(16, 4)
    h = net.transpose(net.reshape(h, 2, 16, 16), 0, 2, 1)
    mixed = net.linear(net("Gelu", net.linear(net.transpose(h, 0, 2, 1), "tokens_in", 16, 12), domain="com.microsoft"),
                       "tokens_out", 12, 16)  # fmt: skip
    h = net("Add", h, net.transpose(mixed, 0, 2, 1))
    h = net("Add", h, net.linear(net.relu(net.linear(h, "channels_in", 16, 20)), "channels_out", 20, 16))
    pooled = net("ReduceMean", h, axes=[1], keepdims=0)
    move = "tokens_out channels_in channels_out last"
    return net.trap(net.gemm(pooled, "last", 16, 6), move=move, stay="first tokens_in")


@trap
def stored_matrix_on_the_left() -> Trap:
    """W x with the channels in front: the stored matrix is the first operand."""
    net = Net()
    h = net("MatMul", net.weight("first", 16, 8, axis=1), net.input("x", 2, 8, 5))
    h = net("Add", net.relu(h), net.weight("bias", 16, 1))
    return net.trap(net("MatMul", net.weight("last", 6, 16, axis=1), h), move="last", stay="first")


@trap
def stack_of_matrices() -> Trap:
    """A matrix for each of three experts; the hidden channels of each have an order of their own."""
    net = Net()
    x = net("Unsqueeze", net.input("x", 5, 8), net.ints(0))
    h = net("MatMul", x, net.weight("first", 3, 8, 16, axis=1))
    h = net("Add", net.relu(h), net.weight("bias", 3, 1, 16))
    return net.trap(net("MatMul", h, net.weight("last", 3, 16, 6, axis=1)), move="last", stay="first")


@trap
def gemm_of_all_forms() -> Trap:
    """alpha, beta, transA, and a bias of one row that is added to every row."""
    net = Net()
    h = net("Gemm", net.input("x", 8, 5), net.weight("first", 8, 16, axis=0), net.weight("row", 1, 16), transA=1,
            alpha=0.5, beta=2.0)  # fmt: skip
    h = net("Gemm", net.weight("middle", 12, 16, axis=1), net.relu(h), net.weight("column", 12, 1), transB=1)
    h = net("Gemm", net("Tanh", h), net.weight("last", 12, 6, axis=0), transA=1)
    return net.trap(h, move="middle last", stay="first")


@trap
def einsum_layers() -> Trap:
    net = Net()
    h = net("Einsum", net.input("x", 2, 5, 8), net.weight("first", 8, 16, axis=0), equation="btc,cd->btd")
    h = net("Add", net.relu(h), net.weight("bias", 16))
    return net.trap(net("Einsum", h, net.weight("last", 6, 16, axis=1), equation="...d,od->...o"), move="last",
                    stay="first")  # fmt: skip


@trap
def product_of_two_activations() -> Trap:
    """Both operands are computed; what they are summed over is one class, with no weight that reads it."""
    net = Net()
    x = net.input("x", 2, 5, 8)
    left, right = net.linear(x, "left", 8, 16), net.linear(x, "right", 8, 16)
    scores = net("MatMul", left, net.transpose(right, 0, 2, 1))
    y = net.linear(net("MatMul", scores, net.relu(right)), "last", 16, 6)
    return net.trap(y, move="last", stay="left right")


@trap
def unknown_operator() -> Trap:
    """Det of 16 x 16 changes its sign; whatever an analysis does not know stays."""
    net = Net()
    h = net.linear(net.input("x", 16, 8), "first", 8, 16)
    volume = net("Det", h)
    return net.trap(volume, net.linear(h, "last", 16, 6), stay="first last")


@trap
def hamming_window_on_channels() -> Trap:
    """A stored vector made by an operator: it cannot follow."""
    net, h = _stem()
    window = net.reshape(net("HannWindow", net.store("size", np.array(16, np.int64))), 16, 1, 1)
    return net.trap(net.conv(net("Mul", h, window), "last", 16, 6), stay="first last")


@trap
def random_dropout() -> Trap:
    """A Dropout that does nothing, with the mask as an output that nobody reads."""
    net, h = _stem()
    h = net.many("Dropout", 2, h)[0]
    return net.trap(net.conv(net("Identity", h), "last", 16, 6), move="last", stay="first")
