"""Products and convolutions whose operands are put together in the graph, and forms that a runtime fuses."""

from __future__ import annotations

import pytest

from tests.channels.forms import held
from tests.channels.net import Net

B, C = 2, 8
MS = "com.microsoft"


def image() -> tuple[Net, str]:
    net = Net()
    return net, net.conv(net.input("x", B, 3, 5, 5), "first", 3, C)


@pytest.mark.parametrize("residual", [True, False])
def test_a_convolution_with_its_activation_and_a_residual(residual: bool) -> None:
    net, h = image()
    stored = net.weight("w", C, C, 3, 3, axis=1), net.weight("b", C)
    added = [net.conv(net("Tanh", h), "other", C, C)] if residual else []
    h = net("FusedConv", h, *stored, *added, domain=MS, pads=[1] * 4, activation="Relu")
    found = held(net, net.conv(h, "last", C, 4), move="w last other" if residual else "w last", stay="first")
    assert "b" in {member.name for one in found.classes for member in one.members}


@pytest.mark.parametrize("group", [1, 2])
def test_filters_that_are_put_together_keep_their_taps(group: int) -> None:
    """Concat of filters: what lies along a tap is no channel."""
    net, h = image()
    parts = [net.weight(name, C // 2, C // group, 3, 3, axis=1) for name in ("upper", "lower")]
    h = net("Conv", h, net.concat(*parts, axis=0), group=group, pads=[1] * 4)
    # The rows of all groups share the columns of one field: these move, the rows do not.
    held(net, net.conv(h, "last", C, 4), move="upper lower last" if group == 1 else "upper lower", stay="first")


def test_depthwise_filters_that_are_put_together_keep_their_taps() -> None:
    net, h = image()
    parts = [net.weight(name, C // 2, 1, 3, 3) for name in ("upper", "lower")]
    h = net("Conv", h, net.concat(*parts, axis=0), group=C, pads=[1] * 4)
    held(net, net.conv(h, "last", C, 4), move="last", stay="first")


@pytest.mark.parametrize("times", [1, 3])
def test_turned_depthwise_filters_keep_their_copies(times: int) -> None:
    """Each channel makes some of its own, in an order of their own."""
    net, h = image()
    parts = [net.weight(name, C // 2, times, 2, 2) for name in ("upper", "lower")]
    h = net("ConvTranspose", h, net.concat(*parts, axis=0), group=C, strides=[2, 2])
    held(net, net.conv(h, "last", C * times, 4), move="last", stay="first")


def test_a_kernel_that_a_network_makes_keeps_its_taps() -> None:
    """The matrix that makes the taps has columns that are none of its reader's channels."""
    net, h = image()
    pooled = net("ReduceMean", h, axes=[0, 2, 3], keepdims=0)
    made = net("MatMul", net("Unsqueeze", pooled, net.ints(0)), net.weight("makes", C, C * C * 9, axis=0))
    h = net("Conv", h, net.reshape(made, C, C, 3, 3), pads=[1] * 4)
    held(net, net.conv(h, "last", C, 4), stay="first")


@pytest.mark.parametrize("equation", ["ij,jk->k", "ij,jk->ik", "ij,kj->ik", "ij,jk->", "ij->j", "ij->ji"])
def test_einsum_of_a_matrix(equation: str) -> None:
    net = Net()
    h = net.linear(net.input("x", 4, 3), "first", 3, C)
    second = equation.split(",")[1].partition("->")[0] if "," in equation else ""
    stored = [net.weight("w", *(C if one == "j" else 6 for one in second), axis=second.index("j"))] if second else []
    h = net("Einsum", h, *stored, equation=equation)
    move = {"ij->j": "last", "ij->ji": "last"}.get(equation, "w")
    if equation == "ij->ji":
        h = net.transpose(h, 1, 0)
    if move == "last":
        h = net("MatMul", h, net.weight("last", C, 3, axis=0))
    held(net, h, move=move, stay="first")


def test_einsum_over_both_axes_of_channels_with_one_of_them_in_the_matrix() -> None:
    """Heads are summed too, though the matrix is the same for all."""
    net = Net()
    h = net.reshape(net.linear(net.input("x", 4, 3), "first", 3, C), 4, 2, 4)
    h = net("Einsum", h, net.weight("w", 4, 6, axis=0), equation="bhd,de->be")
    held(net, h, move="w", stay="first")


def test_einsum_of_operands_that_share_no_summed_letter() -> None:
    net = Net()
    h = net.reshape(net.linear(net.input("x", 4, 3), "first", 3, C), 4, 2, 4)
    h = net("Einsum", h, net.weight("w", 5, 6, axis=0), equation="bhd,ek->bk")
    held(net, h, stay="first")
