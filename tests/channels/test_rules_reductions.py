"""Norms, softmax, reductions, and what looks at the order: channels that are looked at alike move."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.channels.forms import held
from tests.channels.net import Net

B, T, C = 2, 5, 8
MS = "com.microsoft"


def image(opset: int = 17) -> tuple[Net, str]:
    net = Net(opset=opset)
    return net, net.conv(net.input("x", B, 3, 4, 4), "first", 3, C)


def stream(opset: int = 17) -> tuple[Net, str]:
    net = Net(opset=opset)
    return net, net.linear(net.input("x", B, T, 6), "first", 6, C)


@pytest.mark.parametrize(("opset", "groups", "size"), [(18, 2, 2), (21, 2, C), (21, 1, C), (21, C, C), (18, C, C)])
def test_channels_of_a_group_stay_in_it(opset: int, groups: int, size: int) -> None:
    net, h = image(opset)
    stored = net.weight("scale", size, around=1.0), net.weight("bias", size)
    h = net("GroupNormalization", h, *stored, num_groups=groups)
    found = held(net, net.conv(h, "last", C, 4), move="last" if groups < C else "", stay="first")
    assert [one.size for one in found.classes] == ([C // groups] * groups if groups < C else [])


def test_pixels_that_are_channels_elsewhere_are_looked_at_alike_too() -> None:
    """A layer writes the pixels; the norm reads a group of channels over all of them."""
    net = Net(opset=21)
    h = net.linear(net.input("x", B, C, 3), "first", 3, 12)
    stored = net.weight("scale", C, around=1.0), net.weight("bias", C)
    h = net("GroupNormalization", h, *stored, num_groups=2)
    held(net, net.linear(h, "last", 12, 4), move="last", stay="first")


@pytest.mark.parametrize("size", [None, 4])
def test_statistics_that_are_handed_out(size: int | None) -> None:
    """Mean and deviation have the axes before the normalized ones, with their channels."""
    net, h = stream()
    h = net.transpose(h, 0, 2, 1)
    h = h if size is None else net.reshape(h, B, 4, 2, T)
    stored = net.weight("scale", T, around=1.0), net.weight("bias", T)
    made = net.many("LayerNormalization", 2, h, *stored)
    made = [one if size is None else net.reshape(one, B, C, -1) for one in made]
    outputs = [net.linear(net.transpose(one, 0, 2, 1), f"last_{at}", C, 3) for at, one in enumerate(made)]
    held(net, *outputs, move="last_0 last_1", stay="first")


@pytest.mark.parametrize("simple", [True, False])
def test_a_residual_norm_with_its_sum(simple: bool) -> None:
    net, h = stream()
    other = net.linear(net("Tanh", h), "other", C, C)
    stored = [net.weight("scale", C, around=1.0), *([] if simple else [net.weight("shift", C)]), net.weight("bias", C)]
    op = "SkipSimplifiedLayerNormalization" if simple else "SkipLayerNormalization"
    net.domains[MS] = 1
    made, total = net.name(), net.name()
    net.nodes.append(node(op, [h, other, *stored], [made, "", "", total]))
    outputs = net.linear(made, "last", C, 3), net.linear(total, "of_sum", C, 3)
    found = held(net, *outputs, move="other last of_sum", stay="first")
    assert [one.size for one in found.classes] == [C]


def node(op: str, inputs: list[str], outputs: list[str]) -> onnx.NodeProto:
    return onnx.helper.make_node(op, inputs, outputs, domain=MS)


def test_a_norm_in_training_keeps_its_channels() -> None:
    """The statistics that it hands out are in their order."""
    net, h = image()
    stored = [net.weight(name, C, around=1.0) for name in ("scale", "bias", "mean")]
    stored.append(net.store("variance", np.linspace(0.5, 2, C).astype(np.float32)))
    made, mean, _ = net.many("BatchNormalization", 3, h, *stored, training_mode=1)
    held(net, net.conv(made, "last", C, 4), mean, stay="first last")


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2", "ReduceLogSumExp", "ReduceProd"])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_reductions_over_tokens(op: str, keepdims: int) -> None:
    net, h = stream()
    h = (
        net("ReduceSum", h, net.ints(-2), keepdims=keepdims)
        if op == "ReduceSum"
        else net(op, h, axes=[-2], keepdims=keepdims)
    )
    held(net, net.linear(h, "last", C, 3), move="last", stay="first")


@pytest.mark.parametrize("opset", [13, 18])
def test_a_reduction_over_channels_frees_them(opset: int) -> None:
    net, h = stream(opset)
    h = net("Tanh", net.linear(h, "middle", C, C))
    given = {"axes": [-1]} if opset < 18 else {}
    h = net("ReduceMax", h, *([] if opset < 18 else [net.ints(-1)]), keepdims=1, **given)
    held(net, h, move="middle", stay="first")


def test_a_reduction_over_everything() -> None:
    net, h = stream()
    held(net, net("ReduceMean", net("Tanh", net.linear(h, "middle", C, C)), keepdims=0), move="middle", stay="first")


@pytest.mark.parametrize(("axis", "keepdims"), [(2, 0), (3, 0), (2, 1), (3, 1)])
def test_a_reduction_over_one_of_two_axes_of_channels(axis: int, keepdims: int) -> None:
    """The two that meet become one channel of four, whichever of both axes they lie along."""
    net, h = stream()
    parts = (2, 4) if axis == 2 else (4, 2)
    h = net("ReduceMax", net.reshape(h, B, T, *parts), axes=[axis], keepdims=keepdims)
    h = net.reshape(h, B, T, 4)
    found = held(net, net.linear(h, "last", 4, 3), move="last", stay="first")
    assert [one.size for one in found.classes] == [4]


def test_a_norm_in_heads_written_out() -> None:
    """Places in a head are free in each head, whose statistics are the same for all of them."""
    net, h = stream()
    h = net.reshape(h, B, T, 2, 4)
    h = net("Div", h, net("Sqrt", net("ReduceMean", net("Mul", h, h), axes=[-1], keepdims=1)))
    found = held(net, net.linear(net.reshape(h, B, T, C), "last", C, 3), move="last", stay="first")
    assert [one.size for one in found.classes] == [4, 4]


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize(("opset", "axis"), [(11, 1), (11, 2), (13, -1), (13, 1)])
def test_softmax_before_and_after_opset_13(op: str, opset: int, axis: int) -> None:
    net, h = stream(opset)
    h = net(op, h, axis=axis)
    held(net, net.linear(h, "last", C, 3), move="last", stay="first")


@pytest.mark.parametrize(("opset", "axis"), [(11, 1), (11, 2), (13, -1), (13, 1)])
def test_hardmax_before_and_after_opset_13(opset: int, axis: int) -> None:
    """The first of the largest: over all axes from this one on, or along it."""
    net, h = stream(opset)
    h = net("Hardmax", net("Relu", net("Neg", net("Abs", h))), axis=axis)
    free = opset == 13 and axis == 1
    held(net, net.linear(h, "last", C, 3), move="last" if free else "", stay="first" if free else "first last")


@pytest.mark.parametrize("axis", [1, 2, -1])
def test_the_largest_and_where_they_are(axis: int) -> None:
    net, h = stream()
    count = net.ints(3)
    values, places = net.many("TopK", 2, h, count, axis=axis)
    width = C if axis == 1 else 3
    outputs = net.linear(values, "last", width, 3), net.linear(net("Cast", places, to=1), "of_places", width, 3)
    free = "last of_places"
    held(net, *outputs, move=free if axis == 1 else "", stay="first" if axis == 1 else f"first {free}")


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_where_the_largest_token_is(op: str, keepdims: int) -> None:
    net, h = stream()
    made = net("Cast", net(op, h, axis=1, keepdims=keepdims), to=1)
    held(net, net.linear(made, "last", C, 3), move="last", stay="first")


@pytest.mark.parametrize("axis", [1, -1])
def test_sums_that_run_along_an_axis(axis: int) -> None:
    net, h = stream()
    made = net("CumSum", h, net.store("axis", np.array(axis)))
    held(net, net.linear(made, "last", C, 3), move="last" if axis == 1 else "", stay="first")


@pytest.mark.parametrize("axes", [None, [0, 1], [1, 2], [-1]])
def test_mean_and_variance(axes: list[int] | None) -> None:
    net, h = image() if axes is None else stream()
    made = net("MeanVarianceNormalization", h, **({} if axes is None else {"axes": axes}))
    made = net.conv(made, "last", C, 4) if axes is None else net.linear(made, "last", C, 3)
    held(net, made, move="last", stay="first")


@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("p", [1, 2])
def test_lengths_of_one(axis: int, p: int) -> None:
    net, h = stream()
    held(net, net.linear(net("LpNormalization", h, axis=axis, p=p), "last", C, 3), move="last", stay="first")


def test_neighbours_of_a_channel() -> None:
    net, h = image()
    held(net, net.conv(net("LRN", h, size=3), "last", C, 4), stay="first last")


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMax", "ReduceMean"])
@pytest.mark.parametrize("count", [2, 5])
def test_values_of_several_layers_side_by_side_meet_in_a_reduction(op: str, count: int) -> None:
    """A mixture of experts: they are weighted, and added channel by channel."""
    net, h = stream()
    experts = [net("Unsqueeze", net.linear(h, f"expert_{at}", C, C), net.ints(2)) for at in range(count)]
    gate = net("Unsqueeze", net("Softmax", net.linear(h, "gate", C, count), axis=-1), net.ints(3))
    h = net("Mul", net.concat(*experts, axis=2), gate)
    h = net(op, h, net.ints(2), keepdims=0) if op == "ReduceSum" else net(op, h, axes=[2], keepdims=0)
    held(net, net.linear(h, "last", C, 3), move="expert_0 gate last", stay="first")


@pytest.mark.parametrize("count", [2, 5])
def test_values_of_several_layers_side_by_side_meet_in_a_softmax(count: int) -> None:
    """Selective kernels: a softmax over the branches, for each channel."""
    net, h = stream()
    scores = [net("Unsqueeze", net.linear(h, f"score_{at}", C, C), net.ints(2)) for at in range(count)]
    branches = [net("Unsqueeze", net.linear(h, f"branch_{at}", C, C), net.ints(2)) for at in range(count)]
    weights = net("Softmax", net.concat(*scores, axis=2), axis=2)
    h = net("ReduceSum", net("Mul", weights, net.concat(*branches, axis=2)), net.ints(2), keepdims=0)
    held(net, net.linear(h, "last", C, 3), move="score_0 branch_0 last", stay="first")


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_values_of_several_layers_side_by_side_are_taken_apart_again(axis: int) -> None:
    """Each has its own order."""
    net, h = stream()
    made = [net("Unsqueeze", net.linear(h, name, C, 12), net.ints(axis)) for name in ("a", "b", "c")]
    parts = net.split(net.concat(*made, axis=axis), 1, 1, 1, axis=axis)
    outputs = [net.linear(net("Squeeze", one, net.ints(axis)), f"last_{at}", 12, 3) for at, one in enumerate(parts)]
    found = held(net, *outputs, move="a b c last_0 last_1 last_2", stay="first")
    assert sorted(one.size for one in found.classes) == [C, 12, 12, 12]


def test_a_shape_by_arithmetic_of_places() -> None:
    """As torch unflattens the last axis: its place by Mod, and slices of the shape around it."""
    net, h = stream()
    place = net("Mod", net.ints(2), net.ints(3))
    shape = net("Shape", h)
    before = net("Slice", shape, net.ints(0), net("Reshape", place, net.ints(1)))
    after = net("Slice", shape, net("Add", place, net.ints(1)), net.ints(2**63 - 1))
    h = net("Reshape", h, net("Concat", before, net.ints(2, C // 2), after, axis=0))
    h = net("Reshape", net("Tanh", h), net.ints(B, T, C))
    held(net, net.linear(h, "last", C, 3), move="last", stay="first")
