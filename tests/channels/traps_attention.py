"""Attention in every export: in a head, values may be reordered (V to the output projection), queries with keys."""

from __future__ import annotations

import numpy as np

from tests.channels.net import Net, Trap
from tests.channels.traps import trap

HEADS, SIZE, WIDTH, TOKENS = 2, 8, 16, 5


def _stream(**more: object) -> tuple[Net, str]:
    """Tokens of a width that only weights of the model write: its order is free."""
    net = Net(**more)  # type: ignore[arg-type]
    return net, net.linear(net.input("x", 2, TOKENS, 8), "first", 8, WIDTH)


def _weighted(net: Net, q: str, k_turned: str, v: str, size: int = SIZE, mask: str = "") -> str:
    scores = net("Div", net("MatMul", q, k_turned), net.number(size**0.5))
    if mask:
        scores = net("Where", mask, scores, net.number(-1e9))
    return net("MatMul", net("Softmax", scores, axis=-1), v)


def _heads(net: Net, x: str, *perm: int) -> str:
    return net.transpose(net.reshape(x, 0, 0, HEADS, SIZE), *perm)


def _joined(net: Net, x: str) -> str:
    return net.reshape(net.transpose(x, 0, 2, 1, 3), 0, 0, WIDTH)


@trap
def attention_in_one_head() -> Trap:
    """No heads at all: the values are the channels of the output projection."""
    net, h = _stream()
    q, k, v = (net.linear(h, name, WIDTH, 12) for name in ("q", "k", "v"))
    y = net.linear(_weighted(net, q, net.transpose(k, 0, 2, 1), v), "o", 12, 6)
    return net.trap(y, move="q k v o", stay="first")


@trap
def attention_by_three_matrices() -> Trap:
    net, h = _stream()
    q, k, v = (net.linear(h, name, WIDTH, WIDTH) for name in ("q", "k", "v"))
    turned = net.transpose(net.reshape(k, 0, 0, HEADS, SIZE), 0, 2, 3, 1)
    mixed = _weighted(net, _heads(net, q, 0, 2, 1, 3), turned, _heads(net, v, 0, 2, 1, 3))
    return net.trap(net.linear(_joined(net, mixed), "o", WIDTH, 6), move="q k v o", stay="first")


@trap
def attention_packed() -> Trap:
    """(B, T, 3, H, D), then one of the three by Gather: ViT and Swin."""
    net, h = _stream()
    five = net.reshape(net.linear(h, "qkv", WIDTH, 3 * WIDTH), 0, 0, 3, HEADS, SIZE)
    five = net.transpose(five, 2, 0, 3, 1, 4)
    index = [net.store(f"index_{i}", np.array(i, np.int64)) for i in range(3)]
    q, k, v = (net("Gather", five, one, axis=0) for one in index)
    mixed = _weighted(net, q, net.transpose(k, 0, 1, 3, 2), v)
    return net.trap(net.linear(_joined(net, mixed), "o", WIDTH, 6), move="qkv o", stay="first")


@trap
def attention_packed_by_split() -> Trap:
    """GPT-2: one matrix, cut in three along the width, and a mask of positions."""
    net, h = _stream()
    q, k, v = net.split(net.linear(h, "qkv", WIDTH, 3 * WIDTH), WIDTH, WIDTH, WIDTH, axis=2)
    turned = net.transpose(net.reshape(k, 0, 0, HEADS, SIZE), 0, 2, 3, 1)
    mask = net.store("mask", np.tril(np.ones((TOKENS, TOKENS), bool))[None, None])
    mixed = _weighted(net, _heads(net, q, 0, 2, 1, 3), turned, _heads(net, v, 0, 2, 1, 3), mask=mask)
    return net.trap(net.linear(_joined(net, mixed), "o", WIDTH, 6), move="qkv o", stay="first")


@trap
def attention_packed_inside_heads() -> Trap:
    """GPT-NeoX, BLOOM: (B, T, H, 3 * D), the three inside of each head."""
    net, h = _stream()
    four = net.transpose(net.reshape(net.linear(h, "qkv", WIDTH, 3 * WIDTH), 0, 0, HEADS, 3 * SIZE), 0, 2, 1, 3)
    q, k, v = net.split(four, SIZE, SIZE, SIZE, axis=3)
    mixed = _weighted(net, q, net.transpose(k, 0, 1, 3, 2), v)
    return net.trap(net.linear(_joined(net, mixed), "o", WIDTH, 6), move="qkv o", stay="first")


@trap
def attention_of_channels() -> Trap:
    """XCA: channels attend to channels inside heads; their order is free in each head."""
    net, h = _stream()
    q, k, v = (_heads(net, net.linear(h, name, WIDTH, WIDTH), 0, 2, 3, 1) for name in ("q", "k", "v"))
    scores = net("MatMul", q, net.transpose(k, 0, 1, 3, 2))
    mixed = net("MatMul", net("Softmax", scores, axis=-1), v)
    y = net.linear(net.reshape(net.transpose(mixed, 0, 3, 1, 2), 0, 0, WIDTH), "o", WIDTH, 6)
    return net.trap(y, move="q k v o", stay="first")


@trap
def attention_of_heads_in_the_batch() -> Trap:
    """torch.nn.MultiheadAttention: (T, B * H, D), heads beside the batch."""
    net, h = _stream()
    h = net.transpose(h, 1, 0, 2)
    q, k, v = (
        net.transpose(net.reshape(net.linear(h, name, WIDTH, WIDTH), TOKENS, 2 * HEADS, SIZE), 1, 0, 2)
        for name in ("q", "k", "v")
    )
    mixed = _weighted(net, q, net.transpose(k, 0, 2, 1), v)
    y = net.gemm(net.reshape(net.transpose(mixed, 1, 0, 2), TOKENS * 2, WIDTH), "o", WIDTH, 6)
    return net.trap(y, move="q k v o", stay="first")


@trap
def attention_with_norms_of_heads() -> Trap:
    """QK-norm: the scale of a head's size is the same for all heads, so all have one order."""
    net, h = _stream()
    q, k, v = (_heads(net, net.linear(h, name, WIDTH, WIDTH), 0, 2, 1, 3) for name in ("q", "k", "v"))
    q, k = net.layer_norm(q, "norm_q", SIZE), net.layer_norm(k, "norm_k", SIZE)
    v = net.layer_norm(v, "norm_v", SIZE)
    mixed = _weighted(net, q, net.transpose(k, 0, 1, 3, 2), v)
    return net.trap(net.linear(_joined(net, mixed), "o", WIDTH, 6), move="q k v o", stay="first")


@trap
def attention_with_rotary_positions() -> Trap:
    """Halves of a head are rotated against each other, with stored cosines for each place in the head."""
    net, h = _stream()
    q, k, v = (_heads(net, net.linear(h, name, WIDTH, WIDTH), 0, 2, 1, 3) for name in ("q", "k", "v"))
    cos, sin = net.weight("cos", TOKENS, SIZE), net.weight("sin", TOKENS, SIZE)

    def rotated(x: str) -> str:
        turned = net.concat(net("Neg", net.slice(x, 4, 8, axis=3)), net.slice(x, 0, 4, axis=3), axis=-1)
        return net("Add", net("Mul", x, cos), net("Mul", turned, sin))

    mixed = _weighted(net, rotated(q), net.transpose(rotated(k), 0, 1, 3, 2), v)
    return net.trap(net.linear(_joined(net, mixed), "o", WIDTH, 6), move="q k v o", stay="first")


@trap
def attention_with_relative_positions() -> Trap:
    """A stored table is multiplied with the queries, and a bias is added to the scores of each head."""
    net, h = _stream()
    q, k, v = (_heads(net, net.linear(h, name, WIDTH, WIDTH), 0, 2, 1, 3) for name in ("q", "k", "v"))
    table = net.weight("table", SIZE, TOKENS, axis=0)
    scores = net("Add", net("MatMul", q, net.transpose(k, 0, 1, 3, 2)), net("MatMul", q, table))
    scores = net("Add", scores, net.weight("of_heads", HEADS, TOKENS, TOKENS))
    mixed = net("MatMul", net("Softmax", scores, axis=-1), v)
    return net.trap(net.linear(_joined(net, mixed), "o", WIDTH, 6), move="q k v o table", stay="first")


@trap
def grouped_query_attention_by_hand() -> Trap:
    """Two heads of keys and values for four of queries, by Unsqueeze, Expand and Reshape."""
    net, h = _stream()
    q = net.transpose(net.reshape(net.linear(h, "q", WIDTH, 32), 0, 0, 4, SIZE), 0, 2, 1, 3)
    k, v = (_heads(net, net.linear(h, name, WIDTH, WIDTH), 0, 2, 1, 3) for name in ("k", "v"))

    def repeated(x: str) -> str:
        wide = net("Expand", net("Unsqueeze", x, net.ints(2)), net.ints(2, HEADS, 2, TOKENS, SIZE))
        return net.reshape(wide, 2, 4, TOKENS, SIZE)

    mixed = _weighted(net, q, net.transpose(repeated(k), 0, 1, 3, 2), repeated(v))
    mixed = net.reshape(net.transpose(mixed, 0, 2, 1, 3), 0, 0, 32)
    return net.trap(net.linear(mixed, "o", 32, 6), move="q k v o", stay="first")


@trap
def attention_with_cache() -> Trap:
    """Past keys and values are inputs, present ones outputs: their order is the caller's."""
    net, h = _stream()
    q, k, v = (_heads(net, net.linear(h, name, WIDTH, WIDTH), 0, 2, 1, 3) for name in ("q", "k", "v"))
    k = net.concat(net.input("past_k", 2, HEADS, 3, SIZE), k, axis=2)
    v = net.concat(net.input("past_v", 2, HEADS, 3, SIZE), v, axis=2)
    mixed = _weighted(net, q, net.transpose(k, 0, 1, 3, 2), v)
    y = net.linear(_joined(net, mixed), "o", WIDTH, 6)
    return net.trap(y, k, v, move="q k v", stay="first o")


@trap
def cross_attention() -> Trap:
    """Queries from a stored table, keys and values from the tokens: Perceiver, DETR."""
    net, h = _stream()
    table = net.weight("queries", 3, WIDTH)
    q = net.linear(table, "q", WIDTH, WIDTH)
    k, v = (net.linear(h, name, WIDTH, WIDTH) for name in ("k", "v"))
    q = net.transpose(net.reshape(q, 1, 3, HEADS, SIZE), 0, 2, 1, 3)
    mixed = _weighted(net, q, _heads(net, k, 0, 2, 3, 1), _heads(net, v, 0, 2, 1, 3))
    h = net("Add", net.linear(_joined(net, mixed), "o", WIDTH, WIDTH), table)
    return net.trap(net.linear(h, "last", WIDTH, 6), move="q k v o last", stay="first")


@trap
def transformer_with_tied_embedding() -> Trap:
    """The table of words is also the last matrix, transposed; its width is the stream's."""
    net = Net()
    table = net.weight("table", 11, WIDTH, axis=1)
    h = net("Add", net("Gather", table, net.tokens(TOKENS)), net.weight("positions", TOKENS, WIDTH))
    normed = net.layer_norm(h, "norm_1", WIDTH)
    q, k, v = (net.linear(normed, name, WIDTH, WIDTH) for name in ("q", "k", "v"))
    mixed = _weighted(net, _heads(net, q, 0, 2, 1, 3), _heads(net, k, 0, 2, 3, 1), _heads(net, v, 0, 2, 1, 3))
    h = net("Add", h, net.linear(_joined(net, mixed), "o", WIDTH, WIDTH))
    normed = net.layer_norm(h, "norm_2", WIDTH)
    h = net("Add", h, net.linear(net("Gelu", net.linear(normed, "up", WIDTH, 24), domain="com.microsoft"), "down",
                                 24, WIDTH))  # fmt: skip
    y = net("MatMul", h, net.transpose(table, 1, 0))
    return net.trap(y, move="q k v o up down table")


@trap
def words_in_and_out() -> Trap:
    """A table is looked up by words, the second by what the first leads to: rows stay, columns are free."""
    net = Net()
    h = net("Gather", net.weight("table", 16, 16), net.tokens(TOKENS, 16))
    y = net.linear(h, "last", 16, 16)
    again = net("Gather", net.weight("second", 16, 12), net("ArgMax", y, axis=-1, keepdims=0))
    return net.trap(net.linear(again, "reads_second", 12, 6), move="last reads_second")


# -- fused operators of com.microsoft


@trap
def fused_attention() -> Trap:
    net, h = _stream()
    mixed = net("Attention", h, net.weight("qkv", WIDTH, 3 * WIDTH, axis=0), net.weight("qkv_b", 3 * WIDTH),
                domain="com.microsoft", num_heads=HEADS)  # fmt: skip
    return net.trap(net.linear(mixed, "o", WIDTH, 6), move="qkv o", stay="first")


@trap
def fused_attention_of_unequal_sizes() -> Trap:
    """The values are narrower than queries and keys."""
    net, h = _stream()
    mixed = net("Attention", h, net.weight("qkv", WIDTH, 16 + 16 + 32, axis=0), net.weight("qkv_b", 64),
                domain="com.microsoft", num_heads=HEADS, qkv_hidden_sizes=[16, 16, 32])  # fmt: skip
    return net.trap(net.linear(mixed, "o", 32, 6), move="qkv o", stay="first")


@trap
def fused_multi_head_attention() -> Trap:
    net, h = _stream()
    q, k, v = (net.linear(h, name, WIDTH, WIDTH, bias=False) for name in ("q", "k", "v"))
    mixed = net("MultiHeadAttention", q, k, v, net.weight("bias", 3 * WIDTH), domain="com.microsoft", num_heads=HEADS)
    return net.trap(net.linear(mixed, "o", WIDTH, 6), move="q k v o", stay="first")


@trap
def fused_grouped_query_attention() -> Trap:
    """The present keys and values come out, but nobody has asked for them."""
    net, h = _stream()
    q, k, v = net.linear(h, "q", WIDTH, 32), net.linear(h, "k", WIDTH, WIDTH), net.linear(h, "v", WIDTH, WIDTH)
    lengths = net.store("lengths", np.full(2, TOKENS - 1, np.int32))
    total = net.store("total", np.array(TOKENS, np.int32))
    outputs = net.many("GroupQueryAttention", 3, q, k, v, "", "", lengths, total, domain="com.microsoft", num_heads=4,
                       kv_num_heads=HEADS)  # fmt: skip
    return net.trap(net.linear(outputs[0], "o", 32, 6), move="q k v o", stay="first")


@trap
def fused_matmul_and_gelu() -> Trap:
    """FusedMatMul with a transposed weight, BiasGelu and FastGelu with a stored bias."""
    net, h = _stream()
    h = net("FusedMatMul", h, net.weight("up", 24, WIDTH, axis=1), domain="com.microsoft", transB=1, alpha=0.5)
    h = net("BiasGelu", h, net.weight("up_b", 24), domain="com.microsoft")
    h = net("FastGelu", net.linear(h, "middle", 24, 16, bias=False), net.weight("middle_b", 16), domain="com.microsoft")
    h = net("QuickGelu", h, domain="com.microsoft")
    return net.trap(net.linear(h, "last", 16, 6), move="up middle last", stay="first")


@trap
def block_quantized_matmul() -> Trap:
    """MatMulNBits: two columns in a byte, and a scale for each block of 16 columns; its rows need not stay."""
    net = Net()
    h = net.linear(net.input("x", 2, TOKENS, 8), "first", 8, 32)
    codes = np.random.default_rng(7).integers(0, 256, (16, 2, 8)).astype(np.uint8)
    scales = np.random.default_rng(8).uniform(0.01, 0.05, 32).astype(np.float32)
    h = net("MatMulNBits", h, net.store("packed", codes), net.store("scales", scales), domain="com.microsoft", K=32,
            N=16, bits=4, block_size=16)  # fmt: skip
    return net.trap(net.linear(h, "last", 16, 6), stay="first")
