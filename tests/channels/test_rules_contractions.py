"""Operators that sum products over channels: every form of operands, transpositions, letters, groups."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cases import for_each
from tests.channels.net import Net, generator
from tests.channels.permuting import held, held_by_reference

MICROSOFT = "com.microsoft"


def start(net: Net, *lead: int, width: int = 16, name: str = "first") -> str:
    """Activations whose last axis has channels that may move."""
    source = "x" if net.inputs else net.input("x", *(lead or (2, 5)), 8)
    return net("Sigmoid", net.linear(source, name, 8, width))


def image(net: Net, width: int = 16, name: str = "first") -> str:
    return net.relu(net.conv("x" if net.inputs else net.image(8), name, 8, width))


# -- Products of matrices.


@for_each("lead", [(), (5,), (2, 5), (2, 3, 5)])
def test_matmul_of_any_rank(lead: tuple[int, ...]) -> None:
    net = Net()
    h = net("Sigmoid", net("MatMul", net.input("x", *lead, 8), net.weight("first", 8, 16)))
    held(net, net("MatMul", h, net.weight("last", 16, 6)), move="first:1 last:0", stay="first:0 last:1")


def test_matmul_with_vectors() -> None:
    net = Net()
    h = net("MatMul", start(net), net.weight("v", 16))
    g = net("MatMul", net.weight("u", 5), start(net, name="second"))
    held(net, h, net.linear(g, "last", 16, 6), move="first:1 v second:1 last:0", stay="u last:1")


def test_matmul_with_stored_matrices_on_the_left() -> None:
    net = Net()
    h = net.transpose(start(net), 0, 2, 1)
    h = net("MatMul", net.weight("middle", 12, 16), h)
    h = net("MatMul", net.weight("last", 6, 12), net("Sigmoid", h))
    held(net, h, move="first:1 middle:0 middle:1 last:1", stay="last:0")


@for_each("shape", [(1, 16, 12), (3, 16, 12), (2, 1, 16, 12), (1, 1, 16, 12)])
def test_matmul_with_stacks_that_broadcast(shape: tuple[int, ...]) -> None:
    net = Net()
    h = net("Sigmoid", net("MatMul", start(net, 2, 3, 5), net.weight("middle", *shape)))
    axis = len(shape) - 1
    held(net, net.linear(h, "last", 12, 6), move=f"first:1 middle:{axis} last:0", stay="last:1")


def test_stacks_have_channels_of_their_own() -> None:
    """Each matrix of a stack feeds the matrix beside it in the next one."""
    net = Net()
    h = net("MatMul", net.input("x", 3, 5, 8), net.weight("first", 3, 8, 16))
    h = net("MatMul", net("Sigmoid", net("Add", h, net.weight("b", 3, 1, 16))), net.weight("last", 3, 16, 6))
    held(net, h, move="first:2 b:2 last:1", stay="first:0 first:1 last:2 b:0")


def test_two_activations() -> None:
    net = Net()
    one, other = start(net), start(net, name="second")
    scores = net("Softmax", net("MatMul", one, net.transpose(other, 0, 2, 1)), axis=-1)
    h = net("MatMul", scores, start(net, name="third"))
    held(net, net.linear(h, "last", 16, 6), move="first:1 second:1 third:1 last:0", stay="last:1")


def test_a_value_times_itself() -> None:
    net = Net()
    h = start(net)
    gram = net("MatMul", net.transpose(h, 0, 2, 1), h)
    held(net, net("MatMul", net.weight("left", 6, 16), net.linear(gram, "last", 16, 6)),
         move="first:1 last:0 left:1", stay="left:0 last:1")  # fmt: skip


def test_a_stored_matrix_times_itself() -> None:
    net = Net()
    square = net("MatMul", net.weight("w", 16, 12), net("Transpose", "w"))
    h = net("MatMul", start(net), square)
    held(net, net.linear(h, "last", 16, 6), move="w:1")


def test_products_of_stored_matrices() -> None:
    net = Net()
    low = net("MatMul", net.weight("a", 16, 4), net.weight("b", 4, 12))
    h = net("Sigmoid", net("MatMul", start(net), low))
    held(net, net.linear(h, "last", 12, 6), move="first:1 a:0 a:1 b:0 b:1 last:0", stay="last:1")


@for_each(("a", "b"), [(0, 0), (0, 1), (1, 0), (1, 1)])
@for_each("added", [None, (12,), (1, 12), (10, 1), (10, 12), ()])
def test_gemm(a: int, b: int, added: tuple[int, ...] | None) -> None:
    net = Net()
    h = net.reshape(start(net), 10, 16)
    more = [] if added is None else [net.weight("c", *added)]
    stored = net.weight("w", *((12, 16) if b else (16, 12)))
    h = net("Gemm", net("Transpose", h) if a else h, stored, *more, transA=a, transB=b, alpha=0.5, beta=0.7)
    bias = f"c:{len(added) - 1}" if added and added[-1] == 12 else ""
    held(net, net.linear(net("Sigmoid", h), "last", 12, 6), move=f"first:1 w:0 w:1 last:0 {bias}", stay="last:1")


@for_each(("a", "b", "batch_a", "batch_b"), [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (1, 1, 0, 0), (0, 0, 1, 0),
                                             (1, 0, 1, 0), (0, 0, 0, 1), (0, 1, 0, 1), (1, 1, 1, 1)])  # fmt: skip
@for_each("op", ["FusedMatMul", "TransposeMatMul"])
def test_fused_matmul(op: str, a: int, b: int, batch_a: int, batch_b: int) -> None:
    net = Net()
    if op == "TransposeMatMul" and (batch_a or batch_b):
        return
    h = start(net, 2, 5)
    h = net.transpose(h, 0, 2, 1) if a else h
    h = net.transpose(h, 1, 0, 2) if batch_a else h
    shape = [2, 12, 16] if b else [2, 16, 12]
    shape = [shape[1], 2, shape[2]] if batch_b else shape
    more = {} if op == "TransposeMatMul" else {"transBatchA": batch_a, "transBatchB": batch_b}
    h = net(op, h, net.weight("w", *shape), domain=MICROSOFT, transA=a, transB=b, alpha=0.5, **more)
    out = (0 if batch_b else 1) if b else 2
    held(net, net.linear(h, "last", 12, 6), move=f"first:1 w:{out} last:0", stay="last:1")


def test_fused_gemm() -> None:
    net = Net()
    h = net.reshape(start(net), 10, 16)
    stored = net.weight("w", 12, 16), net.weight("c", 12)
    h = net("FusedGemm", h, *stored, domain=MICROSOFT, transB=1, activation="LeakyRelu", activation_alpha=0.1)
    held(net, net.linear(h, "last", 12, 6), move="first:1 w:0 w:1 c last:0", stay="last:1")


# -- Einsum.

EINSUMS = {
    "btc,cd->btd": ("btd", (16, 12), "w:0 w:1"),
    "btc,dc->btd": ("btd", (12, 16), "w:0 w:1"),
    "...c,cd->...d": ("btd", (16, 12), "w:0 w:1"),
    "b...c,c d -> b ... d": ("btd", (16, 12), "w:0 w:1"),
    "btc,dc->bdt": ("bdt", (12, 16), "w:0 w:1"),
    "btc,cd": ("bdt", (16, 12), "w:0 w:1"),
    "btc,bcd->btd": ("btd", (2, 16, 12), "w:1 w:2"),
    "btc,tcd->btd": ("btd", (5, 16, 12), "w:1 w:2"),
    "btc,d->btd": ("btd", (12,), "w"),
    "btc,c->btc": ("btc", (16,), "w"),
}


@for_each("equation", list(EINSUMS))
def test_einsum_with_a_weight(equation: str) -> None:
    order, shape, move = EINSUMS[equation]
    net = Net()
    h = net("Einsum", start(net), net.weight("w", *shape), equation=equation)
    h = net.transpose(h, 0, 2, 1) if order == "bdt" else h
    width = 16 if order == "btc" else 12
    held(net, net.linear(net("Sigmoid", h), "last", width, 6), move=f"first:1 last:0 {move}", stay="last:1")


def test_einsum_of_heads() -> None:
    """Channels inside each head, over which queries and keys are multiplied."""
    net = Net()
    q, k, v = (net.reshape(start(net, name=name), 2, 5, 4, 4) for name in ("q", "k", "v"))
    scores = net("Softmax", net("Einsum", q, k, equation="bihd,bjhd->bhij"), axis=-1)
    h = net.reshape(net("Einsum", scores, v, equation="bhij,bjhd->bihd"), 2, 5, 16)
    held(net, net.linear(h, "last", 16, 6), move="q:1 k:1 v:1 last:0", stay="last:1")


def test_einsum_of_three() -> None:
    net = Net()
    stored = net.weight("w", 16, 12), net.weight("v", 12, 9)
    h = net("Einsum", start(net), *stored, equation="btc,cd,de->bte")
    held(net, net.linear(h, "last", 9, 6), move="first:1 w:0 w:1 v:0 v:1 last:0", stay="last:1")


def test_einsum_of_three_over_one_letter() -> None:
    net = Net()
    h = net("Einsum", start(net), start(net, name="second"), net.weight("w", 16, 12), equation="btc,btc,cd->btd")
    held(net, net.linear(h, "last", 12, 6), move="first:1 second:1 w:0 w:1 last:0", stay="last:1")


def test_einsum_of_three_where_two_share_a_letter() -> None:
    """What stands in the third operand stays in the first."""
    net = Net()
    h = net("Einsum", start(net), net.input("y", 2, 16), net.weight("w", 5), equation="btc,bc,t->bc")
    held(net, net.linear(h, "last", 16, 6), stay="first:1 last")


def test_einsum_that_sums_each_operand_by_itself() -> None:
    """Inside each head, over letters that the other operand does not have."""
    net = Net()
    q, k = (net.reshape(start(net, name=name), 2, 5, 4, 4) for name in ("q", "k"))
    h = net("Einsum", q, k, equation="bthd,bthe->bth")
    held(net, net.linear(h, "last", 4, 6), move="q:1 k:1", stay="last")


def test_einsum_of_three_in_each_head() -> None:
    """Two operands meet over one letter, the third is summed alone."""
    net = Net()
    q, k, v = (net.reshape(start(net, name=name), 10, 4, 4) for name in ("q", "k", "v"))
    h = net("Einsum", q, k, v, equation="bhd,bhd,bhe->bh")
    held(net, net.linear(h, "last", 4, 6), move="q:1 k:1 v:1", stay="last")


def test_einsum_of_a_table_with_its_rows_and_columns() -> None:
    """All channels of one operand, in rows and columns, meet one vector for each."""
    net = Net()
    table = net.reshape(start(net), 10, 4, 4)
    rows, columns = start(net, width=4, name="rows"), start(net, width=4, name="columns")
    both = (net.reshape(one, 10, 4) for one in (rows, columns))
    h = net("Einsum", table, *both, equation="bxy,bx,by->b")
    held(net, h, stay="rows:1 columns:1")


def test_einsum_of_one() -> None:
    net = Net()
    h = net("Einsum", start(net), equation="btc->bct")
    total = net("Einsum", start(net, name="second"), equation="btc->bt")
    h = net.linear(net.transpose(h, 0, 2, 1), "last", 16, 6)
    held(net, h, total, move="first:1 second:1 last:0", stay="last:1")


def test_einsum_of_a_diagonal_stays() -> None:
    net = Net()
    h = net("Einsum", start(net, 2, 16), equation="bii->bi")
    held(net, net.linear(h, "last", 16, 6), stay="first:1 last")


# -- Convolutions.


@for_each("dims", [1, 2, 3])
@pytest.mark.parametrize("group", [1, 2, 16])
def test_convolutions(dims: int, group: int) -> None:
    net = Net()
    h = net("Conv", net.input("x", 2, 8, *[5] * dims), net.weight("first", 16, 8, *[1] * dims))
    h = net("Conv", net.relu(h), net.weight("w", 16, 16 // group, *[3] * dims), net.weight("b", 16), group=group)
    h = net("Conv", net.relu(h), net.weight("last", 6, 16, *[1] * dims))
    held(net, h, move="first:0 w:0 b last:1" + (" w:1" if group < 16 else ""), stay="last:0 first:1")


@for_each("group", [1, 2, 16])
def test_transposed_convolutions(group: int) -> None:
    net = Net()
    h = net("ConvTranspose", image(net), net.weight("w", 16, 32 // group, 2, 2), net.weight("b", 32), group=group)
    held(net, net.conv(net.relu(h), "last", 32, 6), move="first:0 w:0 b last:1" + (" w:1" if group < 16 else ""))


@for_each("op", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("group", [2, 8])
def test_groups_of_what_comes_from_outside(group: int, op: str) -> None:
    """What comes in stays, so filters stay in their group; where a group is one channel, by itself."""
    net = Net()
    width = 16 // group if op == "ConvTranspose" else 8 // group
    h = net(op, net.image(8), net.weight("w", 8 if op == "ConvTranspose" else 16, width, 1, 1), group=group)
    filters = "w:1" if op == "ConvTranspose" else "w:0"
    moves = {"move": f"{filters} last:1"} if group == 2 else {}
    held(net, net.conv(net.relu(h), "last", 16, 6), **moves, stay="w:1 last:0" if op == "Conv" else "w:0 last:0")


def test_a_depthwise_convolution_with_a_multiplier() -> None:
    net = Net()
    h = net.conv(image(net), "w", 16, 48, k=3, group=16)
    held(net, net.conv(net.relu(h), "last", 48, 6), move="first:0 w:0 w_b last:1", stay="last:0")


def test_one_channel_in_and_out() -> None:
    net = Net()
    h = net.conv(net.conv(net.input("x", 2, 1, 5, 5), "first", 1, 16), "narrow", 16, 1)
    held(net, net.conv(h, "last", 1, 6), move="first:0 narrow:1", stay="first:1 narrow:0 last")


def test_images_of_a_batch_that_are_channels() -> None:
    net = Net()
    h = net.reshape(image(net), 32, 1, 6, 6)
    h = net.reshape(net.relu(net.conv(h, "one", 1, 1, k=3)), 2, 16, 6, 6)
    held(net, net.conv(h, "last", 16, 6), move="first:0 last:1", stay="one last:0")


def test_filters_that_are_activations() -> None:
    """A filter is made from the input: its columns are what comes in, its taps stay."""
    net = Net()
    h = image(net)
    made = net.gemm(net("Flatten", net("GlobalAveragePool", h)), "makes", 16, 6 * 16 * 9)
    filters = net.reshape(net("ReduceMean", made, axes=[0]), 6, 16, 3, 3)
    held(net, net("Conv", h, filters), move="first:0 makes:0", stay="first:1")


def test_filters_that_are_joined() -> None:
    net = Net()
    both = net("Concat", net.weight("one", 12, 10, 1, 1), net.weight("two", 12, 6, 1, 1), axis=1)
    h = net("Conv", image(net), both)
    held(net, net.conv(net.relu(h), "last", 12, 6), move="first:0 one:0 one:1 two:0 two:1 last:1", stay="last:0")


@for_each("added", [False, True])
def test_fused_conv(added: bool) -> None:
    net = Net()
    stored = net.weight("w", 16, 16, 3, 3), net.weight("b", 16)
    h = image(net)
    more = [image(net, name="second")] if added else []
    h = net("FusedConv", h, *stored, *more, domain=MICROSOFT, activation="Relu", pads=[1] * 4)
    move = "first:0 w:0 w:1 b last:1" + (" second:0" if added else "")
    held(net, net.conv(h, "last", 16, 6), move=move, stay="last:0 first:1")


def test_a_transposed_convolution_with_pads_of_its_input() -> None:
    net = Net()
    pads = net.store("pads", np.array([0, 1, 1, 0]))
    stored = net.weight("w", 16, 12, 2, 2), pads, net.weight("b", 12)
    h = net("ConvTransposeWithDynamicPads", image(net), *stored, domain=MICROSOFT)
    held(net, net.conv(h, "last", 12, 6), move="first:0 w:0 w:1 b last:1", stay="pads last:0")


@for_each(("group", "offsets"), [(1, 1), (2, 1), (1, 4)])
def test_deformed_convolutions(group: int, offsets: int) -> None:
    """Judged by the reference of onnx, since onnxruntime has no such operator."""
    net = Net(opset=19, ir=9)
    h = net.relu(net.conv(net.input("x", 1, 3, 2, 2), "first", 3, 8))
    offset = net.feed("offset", generator("offset").standard_normal((1, 2 * offsets, 2, 2)).astype(np.float32))
    stored = net.weight("w", 4, 8 // group, 1, 1), offset, net.weight("b", 4)
    h = net("DeformConv", h, *stored, group=group, offset_group=offsets, kernel_shape=[1, 1])
    h = net.conv(h, "last", 4, 3)
    held_by_reference(net, h, move="first:0 w:0 w:1 b last:1", stay="last:0")


def test_offsets_that_are_channels_stay() -> None:
    """Each offset is of a tap of the filter."""
    net = Net(opset=19, ir=9)
    h = net.relu(net.conv(net.input("x", 1, 3, 2, 2), "first", 3, 8))
    stored = net.weight("w", 4, 8, 2, 2), net.conv(h, "offset", 8, 8), net.weight("b", 4)
    h = net("DeformConv", h, *stored, kernel_shape=[2, 2], pads=[1, 1, 0, 0])
    held_by_reference(net, h, move="first:0 offset:1 w:1", stay="offset:0 w:0")
