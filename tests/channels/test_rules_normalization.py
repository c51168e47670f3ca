"""Norms, softmax, reductions, and what depends on an order: each axis, each opset, each extra output."""

from __future__ import annotations

import numpy as np
import pytest

from onnxsparse.channel_classes.rules.normalization import REDUCING
from tests.cases import for_each
from tests.channels.net import Net
from tests.channels.permuting import held

MICROSOFT = "com.microsoft"


def start(net: Net, *lead: int, width: int = 16, name: str = "first") -> str:
    """Activations in (0, 1) whose last axis has channels that may move."""
    source = "x" if net.inputs else net.input("x", *(lead or (2, 5)), 8)
    return net("Sigmoid", net.linear(source, name, 8, width))


def image(net: Net, width: int = 16) -> str:
    return net("Sigmoid", net.conv(net.image(8), "first", 8, width))


TOKENS = {"move": "first:1 last:0", "stay": "last:1 first:0"}
IMAGES = {"move": "first:0 last:1", "stay": "last:0 first:1"}


# -- Norms.


def test_batch_norm() -> None:
    net = Net()
    h = net.batch_norm(net.relu(net.batch_norm(image(net), "bn", 16)), "more", 16)
    held(net, net.conv(h, "last", 16, 6), move="first:0 bn_scale bn_bias bn_mean bn_var more_var last:1", stay="last:0")


def test_batch_norm_of_a_matrix() -> None:
    net = Net()
    h = net.batch_norm(net.reshape(start(net), 10, 16), "bn", 16)
    held(net, net.linear(h, "last", 16, 6), move="first:1 bn_scale last:0", stay="last:1")


def test_batch_norm_with_one_channel() -> None:
    net = Net()
    h = net.batch_norm(net.reshape(start(net), 2, 1, 5, 16), "bn", 1)
    held(net, net.linear(h, "last", 16, 6), move="first:1 last:0", stay="bn_scale last:1")


@for_each("read", [False, True])
def test_batch_norm_that_trains(read: bool) -> None:
    """The statistics that it hands out are of the channels."""
    net = Net()
    stored = [net.weight(f"bn_{part}", 16, around=1.0) for part in ("scale", "bias", "mean")]
    variance = net.store("bn_var", np.full(16, 0.5, np.float32) + np.arange(16, dtype=np.float32))
    h, mean, var = net.many("BatchNormalization", 3, image(net), *stored, variance, training_mode=1)
    y = net.conv(h, "last", 16, 6)
    more = [net("MatMul", mean, net.weight("v", 16)), net("ReduceMax", var)] if read else []
    held(net, y, *more, move="first:0 bn_scale bn_bias bn_mean bn_var last:1" + (" v" if read else ""), stay="last:0")


@for_each("affine", [4, 16])
def test_instance_norm(affine: int) -> None:
    """Of channels, or of groups of them: these move inside their group."""
    net = Net()
    h = image(net)
    h = net.reshape(h, 2, 4, 144) if affine == 4 else h
    h = net("InstanceNormalization", h, net.weight("scale", affine), net.weight("bias", affine))
    h = net.reshape(h, 2, 16, 6, 6) if affine == 4 else h
    move = "first:0 last:1" + (" scale bias" if affine == 16 else "")
    held(net, net.conv(h, "last", 16, 6), move=move, stay="last:0" + (" scale" if affine == 4 else ""))


@for_each(("axis", "shape"), [(-1, (16,)), (2, (16,)), (1, (5, 16)), (0, (2, 5, 16)), (-2, (5, 16))])
def test_layer_norm(axis: int, shape: tuple[int, ...]) -> None:
    net = Net()
    h = net.layer_norm(start(net), "norm", *shape, axis=axis)
    own = len(shape) - 1
    held(net, net.linear(h, "last", 16, 6), move=f"first:1 norm_scale:{own} norm_bias:{own} last:0", stay="last:1")


def test_statistics_of_a_layer_norm() -> None:
    """Over the pixels of each channel: mean and deviation are of the channels."""
    net = Net()
    stored = net.weight("scale", 6, 6), net.weight("bias", 6, 6)
    h, mean, deviation = net.many("LayerNormalization", 3, image(net), *stored, axis=2)
    both = net("Add", net("Mul", mean, deviation), h)
    held(net, net.conv(both, "last", 16, 6), **IMAGES)


@for_each(("op", "domain", "opset"), [("SimplifiedLayerNormalization", "", 17), ("RMSNormalization", "", 23)])
def test_norms_without_a_mean(op: str, domain: str, opset: int) -> None:
    if opset > 22:
        pytest.skip("newer than this onnxruntime")
    net = Net(opset=opset)
    h = net(op, start(net), net.weight("scale", 16), domain=domain, axis=-1)
    held(net, net.linear(h, "last", 16, 6), move="first:1 scale last:0", stay="last:1")


@for_each("simple", [False, True])
def test_norms_of_a_residual(simple: bool) -> None:
    """The sum goes on beside the norm."""
    net = Net()
    op = "SkipSimplifiedLayerNormalization" if simple else "SkipLayerNormalization"
    names = ["scale", "b"] if simple else ["scale", "shift", "b"]
    h, _, _, total = net.many(op, 4, start(net), start(net, name="second"), *(net.weight(one, 16) for one in names),
                              domain=MICROSOFT)  # fmt: skip
    net.nodes[-1].output[1] = net.nodes[-1].output[2] = ""
    y = net.linear(net("Add", h, total), "last", 16, 6)
    held(net, y, move="first:1 second:1 scale b last:0", stay="last:1")


@for_each(("opset", "affine"), [(18, 4), (21, 16)])
def test_group_norm(opset: int, affine: int) -> None:
    """Before opset 21 its numbers are of the groups."""
    net = Net(opset=opset, ir=9)
    h = net("GroupNormalization", image(net), net.weight("s", affine), net.weight("b", affine), num_groups=4)
    held(net, net.conv(h, "last", 16, 6), move="first:0 last:1" + (" s b" if affine == 16 else ""), stay="last:0")


@for_each("axis", [-1, 1])
def test_lp_normalization(axis: int) -> None:
    net = Net()
    held(net, net.linear(net("LpNormalization", start(net), axis=axis, p=1), "last", 16, 6), **TOKENS)


@for_each("axes", [None, [0, 1, 2, 3], [1]])
def test_mean_variance_normalization(axes: list[int] | None) -> None:
    net = Net()
    h = net("MeanVarianceNormalization", image(net), **({"axes": axes} if axes else {}))
    held(net, net.conv(h, "last", 16, 6), **IMAGES)


# -- Softmax.


@for_each("op", ["Softmax", "LogSoftmax"])
@for_each("axis", [-1, 1, 2])
@for_each("opset", [11, 17])
def test_softmax(op: str, axis: int, opset: int) -> None:
    """Before opset 13 it is over all axes from the one that is given."""
    net = Net(opset=opset)
    held(net, net.linear(net(op, start(net), axis=axis), "last", 16, 6), **TOKENS)


def test_softmax_of_a_part() -> None:
    """A sum over one half is another sum with channels of the other half."""
    net = Net()
    one, other = net.split(start(net), 6, 10, axis=2)
    h = net.concat(net("Softmax", one), net("Softmax", other), axis=2)
    held(net, net.linear(h, "last", 16, 6), **TOKENS)


# -- Reductions.


@for_each("op", list(REDUCING))
@for_each("kept", [0, 1])
def test_reductions(op: str, kept: int) -> None:
    """Over the tokens channels stay what they are; over the channels their order is lost."""
    net = Net(opset=11)
    h = start(net)
    tokens = net(op, h, axes=[1], keepdims=kept)
    total = net(op, h, axes=[-1], keepdims=kept)
    held(net, net.linear(net("Sigmoid", tokens), "last", 16, 6), total, **TOKENS)


@for_each("op", ["ReduceSum", "ReduceMean", "ReduceMax"])
@for_each("axes", [(1,), (-2,), (0, 1), (-1,), (), None])
@for_each("noop", [0, 1])
def test_reductions_with_axes_as_inputs(op: str, axes: tuple[int, ...] | None, noop: int) -> None:
    if axes is None and noop:
        return  # onnxruntime 1.19 refuses it
    net = Net(opset=18)
    h = start(net)
    stored = [] if axes is None else [net.store("axes", np.array(axes, np.int64))]
    h = net(op, h, *stored, noop_with_empty_axes=noop)
    h = net("Add", net("Mul", h, net.number(0.1)), start(net, name="second"))
    held(net, net.linear(h, "last", 16, 6), move="first:1 second:1 last:0", stay="last:1")


def test_reductions_over_axes_that_are_not_known() -> None:
    net = Net()
    h = start(net)
    axis = net("Cast", net.feed("n", np.array([1.0], np.float32)), to=7)
    h = net("ReduceSum", h, axis, keepdims=1)
    held(net, net.linear(net("Reshape", h, net.ints(2, 1, 16)), "last", 16, 6), stay="first:1 last")


def test_a_reduction_of_a_part() -> None:
    net = Net()
    h = start(net)
    part = net("ReduceMean", net.slice(h, 0, 8, axis=2), axes=[2])
    held(net, net.linear(net("Mul", h, part), "last", 16, 6), **TOKENS)


@for_each("op", ["ReduceMean", "ReduceMax", "ReduceL2"])
def test_a_reduction_inside_each_group(op: str) -> None:
    """Channels stay in their group, whose place is that of its sum."""
    net = Net()
    h = net.reshape(start(net, width=32), 2, 5, 4, 8)
    h = net("Mul", h, net(op, h, axes=[3], keepdims=1))
    sums = net(op, h, axes=[3], keepdims=0)
    y = net.linear(net.reshape(h, 2, 5, 32), "last", 32, 6)
    held(net, y, net.linear(sums, "sums", 4, 6), move="first:1 last:0", stay="sums last:1")


def test_pairs_of_channels_move_as_one() -> None:
    net = Net()
    h = net("ReduceMax", net.reshape(start(net, width=32), 2, 5, 16, 2), axes=[3], keepdims=0)
    held(net, net.linear(h, "last", 16, 6), move="first:1 last:0", stay="last:1")


def test_scalars() -> None:
    net = Net()
    total = net("ReduceSum", net("ReduceSum", start(net), keepdims=0), keepdims=0)
    held(net, net("Add", total, net.linear(start(net, name="second"), "last", 16, 6)), move="first:1 second:1 last:0")


# -- What depends on an order.


@for_each("kept", [0, 1])
@for_each("op", ["ArgMax", "ArgMin"])
@for_each("axis", [1, 2, -1])
def test_places_of_extremes(op: str, kept: int, axis: int) -> None:
    """Over the tokens each channel has a place of its own; over the channels the place is a number of theirs."""
    net = Net()
    h = start(net)
    places = net("Cast", net(op, h, axis=axis, keepdims=kept), to=1)
    if axis == 1:
        held(net, net.linear(places, "last", 16, 6), **TOKENS)
    else:
        held(net, net.linear(h, "last", 16, 6), places, stay="first:1 last")


@for_each("axis", [1, 2])
def test_the_largest(axis: int) -> None:
    net = Net()
    h, places = net.many("TopK", 2, start(net), net.ints(3), axis=axis)
    h = net("Add", h, net("Cast", places, to=1))
    if axis == 1:
        held(net, net.linear(h, "last", 16, 6), **TOKENS)
    else:
        held(net, net.linear(h, "last", 3, 6), stay="first:1 last")


@for_each("axis", [1, 2])
def test_sums_up_to_each(axis: int) -> None:
    net = Net()
    h = net("CumSum", start(net), net.store("axis", np.array(axis)))
    stays = {"stay": "first:1 last"}
    held(net, net.linear(h, "last", 16, 6), **(TOKENS if axis == 1 else stays))


def test_neighbours_of_a_channel() -> None:
    net = Net()
    held(net, net.conv(net("LRN", image(net), size=3), "last", 16, 6), stay="first:0 last")


@for_each(("opset", "axis"), [(11, 1), (11, 2), (17, 1), (17, 2)])
def test_hardmax(opset: int, axis: int) -> None:
    net = Net(opset=opset)
    h = net.linear(net("Hardmax", start(net), axis=axis), "last", 16, 6)
    stays = {"stay": "first:1 last"}
    held(net, h, **(TOKENS if (opset, axis) == (17, 1) else stays))
