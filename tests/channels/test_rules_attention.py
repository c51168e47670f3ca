"""Attention as one operator in each of its forms: values move with the output projection, queries with keys."""

from __future__ import annotations

import numpy as np
import pytest

from onnxsparse.channel_classes.classes import Channels
from tests.channels.forms import held, held_by_reference
from tests.channels.net import Net, Reduction, generator

B, T, WIDTH, HEADS, SIZE = 2, 5, 16, 2, 8
MS = "com.microsoft"


def stream(opset: int = 17, **more: object) -> tuple[Net, str]:
    """(batch, tokens, width), written by a weight of the model."""
    net = Net(opset=opset, **more)  # type: ignore[arg-type]
    return net, net.linear(net.input("x", B, T, 6), "first", 6, WIDTH)


def three(net: Net, h: str, shared: int = HEADS, heads: int = HEADS, size: int = SIZE) -> list[str]:
    widths = {"q": heads * SIZE, "k": shared * SIZE, "v": shared * size}
    return [net.linear(h, name, WIDTH, width) for name, width in widths.items()]


def heads_first(net: Net, x: str, heads: int, size: int = SIZE) -> str:
    return net.transpose(net.reshape(x, B, T, heads, size), 0, 2, 1, 3)


def sizes(found: Channels) -> list[int]:
    return sorted(one.size for one in found.classes)


def of(found: Channels, name: str) -> list[int]:
    """The sizes of the classes that a stored tensor is in."""
    return sorted(one.size for one in found.classes if name in {member.name for member in one.members})


# -- com.microsoft.Attention


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("wide", [16, 24])
@pytest.mark.parametrize("causal", [0, 1])
def test_attention_with_its_projection(bias: bool, wide: int, causal: int) -> None:
    net, h = stream()
    inputs = [h, net.weight("qkv", WIDTH, 2 * WIDTH + wide, axis=0)]
    inputs += [net.weight("qkv_b", 2 * WIDTH + wide)] if bias else []
    more = {"qkv_hidden_sizes": [WIDTH, WIDTH, wide]} if wide != WIDTH else {}
    mixed = net("Attention", *inputs, domain=MS, num_heads=HEADS, unidirectional=causal, **more)
    y = net.linear(mixed, "o", wide, 3)
    # The kernel of this runtime reads a bias that is not there.
    found = held(net, y, move="qkv o", stay="first") if bias else classes(net, y)
    # The stream, and in each head queries with keys, and values.
    assert sizes(found) == sorted([WIDTH, SIZE, SIZE, wide // HEADS, wide // HEADS])


def test_attention_with_a_mask_and_a_bias_of_positions() -> None:
    net, h = stream()
    mask = net.feed("mask", np.array([T, T - 2], np.int32))
    table = net.weight("positions", B, HEADS, T, T)
    mixed = net("Attention", h, net.weight("qkv", WIDTH, 3 * WIDTH, axis=0), net.weight("qkv_b", 3 * WIDTH), mask, "",
                table, domain=MS, num_heads=HEADS)  # fmt: skip
    found = held(net, net.linear(mixed, "o", WIDTH, 3), move="qkv o", stay="first")
    assert not of(found, "positions")


def test_attention_with_a_cache() -> None:
    """The caller keeps past and present."""
    net, h = stream()
    past = net.input("past", 2, B, HEADS, 3, SIZE)
    mixed, present = net.many("Attention", 2, h, net.weight("qkv", WIDTH, 3 * WIDTH, axis=0),
                              net.weight("qkv_b", 3 * WIDTH), "", past, domain=MS, num_heads=HEADS,
                              unidirectional=1)  # fmt: skip
    found = held(net, net.linear(mixed, "o", WIDTH, 3), present, move="qkv", stay="first o")
    assert sizes(found) == [WIDTH]


def test_attention_in_int8() -> None:
    """QAttention: a scale for each column."""
    net, h = stream()
    codes, scale, zero = net.many("DynamicQuantizeLinear", 3, h)
    values = generator("qkv").integers(-127, 128, (WIDTH, 3 * WIDTH)).astype(np.int8)
    net.reductions["qkv"] = Reduction(0)
    scales = net.store("scales", generator("scales").uniform(0.001, 0.01, 3 * WIDTH).astype(np.float32))
    zeros = net.store("zeros", np.zeros(3 * WIDTH, np.int8))
    mixed = net("QAttention", codes, net.store("qkv", values), net.weight("qkv_b", 3 * WIDTH), scale, scales, "", zero,
                zeros, domain=MS, num_heads=HEADS)  # fmt: skip
    held(net, net.linear(mixed, "o", WIDTH, 3), move="o", stay="first")


def test_packed_attention_has_no_kernel_here() -> None:
    """Tokens of all sequences one after the other; the classes are those of Attention."""
    net = Net()
    h = net.linear(net.input("x", T, 6), "first", 6, WIDTH)
    offsets = net.feed("offsets", np.arange(T, dtype=np.int32)[None])
    ends = net.feed("ends", np.array([0, T], np.int32))
    mixed = net("PackedAttention", h, net.weight("qkv", WIDTH, 3 * WIDTH, axis=0), net.weight("b", 3 * WIDTH), offsets,
                ends, domain=MS, num_heads=HEADS)  # fmt: skip
    found = classes(net, net.linear(mixed, "o", WIDTH, 3))
    assert of(found, "qkv") == [SIZE, SIZE, SIZE, SIZE, WIDTH]
    assert of(found, "o") == [SIZE, SIZE]


# -- MultiHeadAttention


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("size", [8, 12])
def test_multi_head_attention(bias: bool, size: int) -> None:
    net, h = stream()
    added = [net.weight("bias", 2 * WIDTH + HEADS * size)] if bias else []
    mixed = net("MultiHeadAttention", *three(net, h, size=size), *added, domain=MS, num_heads=HEADS)
    found = held(net, net.linear(mixed, "o", HEADS * size, 3), move="q k v o", stay="first")
    assert of(found, "o") == [size, size]
    assert of(found, "q") == [SIZE, SIZE, WIDTH]


def test_multi_head_attention_of_other_tokens() -> None:
    """Keys and values with heads in front, as a cross-attention caches them in one run."""
    net, h = stream()
    q, k, v = three(net, h)
    k, v = heads_first(net, k, HEADS), heads_first(net, v, HEADS)
    mixed = net("MultiHeadAttention", q, k, v, domain=MS, num_heads=HEADS)
    held(net, net.linear(mixed, "o", WIDTH, 3), move="q k v o", stay="first")


def test_multi_head_attention_of_packed_queries_keys_and_values() -> None:
    """(batch, tokens, heads, 3, size): the kernel of this runtime is for other devices."""
    net, h = stream()
    packed = net.reshape(net.linear(h, "qkv", WIDTH, 3 * WIDTH), B, T, HEADS, 3, SIZE)
    mixed = net("MultiHeadAttention", packed, domain=MS, num_heads=HEADS)
    found = classes(net, net.linear(mixed, "o", WIDTH, 3))
    assert of(found, "qkv") == [SIZE, SIZE, SIZE, SIZE, WIDTH]
    assert of(found, "o") == [SIZE, SIZE]


def test_multi_head_attention_of_packed_keys_and_values() -> None:
    net, h = stream()
    q = net.linear(h, "q", WIDTH, WIDTH)
    packed = net.reshape(net.linear(h, "kv", WIDTH, 2 * WIDTH), B, T, HEADS, 2, SIZE)
    mixed = net("MultiHeadAttention", q, packed, domain=MS, num_heads=HEADS)
    found = classes(net, net.linear(mixed, "o", WIDTH, 3))
    assert of(found, "q") == [SIZE, SIZE, WIDTH]
    assert of(found, "kv") == [SIZE, SIZE, SIZE, SIZE, WIDTH]
    assert of(found, "o") == [SIZE, SIZE]


def test_multi_head_attention_with_a_cache() -> None:
    net, h = stream()
    past = [net.input(name, B, HEADS, 3, SIZE) for name in ("past_k", "past_v")]
    made = net.many("MultiHeadAttention", 3, *three(net, h), "", "", "", *past, domain=MS, num_heads=HEADS)
    found = held(net, net.linear(made[0], "o", WIDTH, 3), *made[1:], move="q k v", stay="first o")
    assert sizes(found) == [WIDTH]


def test_multi_head_attention_whose_present_values_go_on() -> None:
    """They have the channels of the values, which a second attention reads."""
    net, h = stream()
    q, k, v = three(net, h)
    made = net.many("MultiHeadAttention", 3, q, k, v, domain=MS, num_heads=HEADS)
    again = net("MultiHeadAttention", net.linear(h, "second", WIDTH, WIDTH), *made[1:], domain=MS, num_heads=HEADS)
    outputs = net.linear(made[0], "o", WIDTH, 3), net.linear(again, "other", WIDTH, 3)
    found = held(net, *outputs, move="q k v o second other", stay="first")
    assert sizes(found) == [SIZE, SIZE, SIZE, SIZE, WIDTH]


def test_multi_head_attention_of_one_token() -> None:
    """DecoderMaskedMultiHeadAttention with past keys and values of the caller."""
    net = Net()
    h = net.linear(net.input("x", B, 1, 6), "first", 6, WIDTH)
    past = [net.input(name, B, HEADS, 6, SIZE) for name in ("past_k", "past_v")]
    count = net.store("count", np.array([3], np.int32))
    made = net.many("DecoderMaskedMultiHeadAttention", 3, *three(net, h), "", "", *past, count, domain=MS,
                    num_heads=HEADS, past_present_share_buffer=1)  # fmt: skip
    found = classes(net, net.linear(made[0], "o", WIDTH, 3), *made[1:])
    assert of(found, "q") == of(found, "v") == [WIDTH]
    assert of(found, "o") == []


def test_attention_of_one_token_with_its_projection() -> None:
    """DecoderMaskedSelfAttention keeps past and present in one tensor of the caller."""
    net = Net()
    h = net.linear(net.input("x", B, 1, 6), "first", 6, WIDTH)
    stored = net.weight("qkv", WIDTH, 3 * WIDTH, axis=0), net.weight("qkv_b", 3 * WIDTH)
    past, count = net.input("past", 2, B, HEADS, 6, SIZE), net.store("count", np.array([3], np.int32))
    made = net.many("DecoderMaskedSelfAttention", 2, h, *stored, "", past, "", count, domain=MS, num_heads=HEADS)
    found = classes(net, net.linear(made[0], "o", WIDTH, 3), made[1])
    assert of(found, "qkv") == [WIDTH]
    assert of(found, "o") == []


@pytest.mark.parametrize("packed", [True, False])
def test_multi_head_attention_of_packed_tokens(packed: bool) -> None:
    net = Net()
    h = net.linear(net.input("x", T, 6), "first", 6, WIDTH)
    offsets = net.feed("offsets", np.arange(T, dtype=np.int32)[None])
    ends = net.feed("ends", np.array([0, T], np.int32))
    if packed:
        given = [net.reshape(net.linear(h, "qkv", WIDTH, 3 * WIDTH), T, HEADS, 3, SIZE), "", ""]
    else:
        given = three(net, h)
    mixed = net("PackedMultiHeadAttention", *given, net.weight("bias", 3 * WIDTH), offsets, ends, domain=MS,
                num_heads=HEADS)  # fmt: skip
    found = classes(net, net.linear(mixed, "o", WIDTH, 3))
    assert of(found, "qkv" if packed else "q") == [SIZE] * (4 if packed else 2) + [WIDTH]
    assert of(found, "bias") == [SIZE] * 4
    assert of(found, "o") == [SIZE, SIZE]


def test_one_token_that_reads_the_keys_of_an_encoder() -> None:
    """DecoderMaskedMultiHeadAttention with a bias at its own place; keys and values have heads in front."""
    net = Net()
    h = net.linear(net.input("x", B, 1, 6), "first", 6, WIDTH)
    others = net.linear(net.input("others", B, T, 6), "encoder", 6, WIDTH)
    k, v = (heads_first(net, net.linear(others, name, WIDTH, WIDTH), HEADS) for name in ("k", "v"))
    inputs = [net.linear(h, "q", WIDTH, WIDTH), k, v, *[""] * 7, net.weight("bias", 3 * WIDTH)]
    mixed = net("DecoderMaskedMultiHeadAttention", *inputs, domain=MS, num_heads=HEADS)
    found = classes(net, net.linear(mixed, "o", WIDTH, 3))
    assert of(found, "bias") == [SIZE, SIZE, SIZE, SIZE]
    assert of(found, "o") == [SIZE, SIZE]


def test_values_from_outside_keep_the_projection() -> None:
    net, h = stream()
    q, k, _ = three(net, h)
    mixed = net("MultiHeadAttention", q, k, net.input("values", B, T, WIDTH), domain=MS, num_heads=HEADS)
    held(net, net.linear(mixed, "o", WIDTH, 3), move="q k", stay="first o")


def test_keys_from_outside_keep_the_queries() -> None:
    net, h = stream()
    q, _, v = three(net, h)
    mixed = net("MultiHeadAttention", q, net.input("keys", B, T, WIDTH), v, domain=MS, num_heads=HEADS)
    found = held(net, net.linear(mixed, "o", WIDTH, 3), move="v o", stay="first")
    assert of(found, "q") == [WIDTH]


def test_a_mask_made_of_channels_keeps_them() -> None:
    """The scores get what a layer makes of the stream: tokens are no channels."""
    net, h = stream()
    mask = net.linear(h, "mask", WIDTH, T)
    mask = net("Expand", net("Unsqueeze", mask, net.ints(1)), net.ints(B, HEADS, T, T))
    mixed = net("MultiHeadAttention", *three(net, h), "", "", mask, domain=MS, num_heads=HEADS)
    held(net, net.linear(mixed, "o", WIDTH, 3), move="q k v o mask", stay="first")


@pytest.mark.parametrize("op", ["Attention", "MultiHeadAttention"])
def test_tokens_that_are_channels_elsewhere_stay(op: str) -> None:
    """A layer writes the tokens, and another one reads them: the softmax over them is blind, the mask is not."""
    net = Net()
    h = net.linear(net.input("x", B, WIDTH, 6), "first", 6, T)
    h = net.transpose(h, 0, 2, 1)
    mask = net.weight("positions", B, HEADS, T, T)
    if op == "Attention":
        stored = net.weight("qkv", WIDTH, 3 * WIDTH, axis=0), net.weight("qkv_b", 3 * WIDTH)
        mixed = net(op, h, *stored, "", "", mask, domain=MS, num_heads=HEADS)
    else:
        mixed = net(op, *three(net, h), "", "", mask, domain=MS, num_heads=HEADS)
    held(net, net.linear(net.transpose(mixed, 0, 2, 1), "last", T, 3), stay="first last")


def test_a_bias_of_scores_that_a_layer_makes_keeps_its_tokens() -> None:
    net, h = stream()
    scores = net.linear(h, "scores", WIDTH, T)
    scores = net("Expand", net("Unsqueeze", scores, net.ints(1)), net.ints(B, HEADS, T, T))
    stored = net.weight("qkv", WIDTH, 3 * WIDTH, axis=0), net.weight("qkv_b", 3 * WIDTH)
    mixed = net("Attention", h, *stored, "", "", scores, domain=MS, num_heads=HEADS)
    found = held(net, net.linear(mixed, "o", WIDTH, 3), move="qkv o scores", stay="first")
    assert of(found, "scores_b") == []


# -- GroupQueryAttention


def group_query(
    net: Net, *inputs: str, shared: int = 2, rotary: bool = False, past: int = 0, batch: int = B, **more: object
) -> list[str]:
    lengths = net.store("lengths", np.full(batch, T + past - 1, np.int32))
    total = net.store("total", np.array(T + past, np.int32))
    caches = [net.input(name, batch, shared, past, SIZE) for name in ("past_k", "past_v")] if past else ["", ""]
    given = [*inputs, *[""] * (3 - len(inputs)), *caches, lengths, total]
    if rotary:
        given += [net.weight(name, 16, 8) for name in ("cos", "sin")]
    return net.many("GroupQueryAttention", 3, *given, domain=MS, num_heads=4, kv_num_heads=shared,
                    do_rotary=int(rotary), **more)  # fmt: skip


@pytest.mark.parametrize("shared", [1, 2, 4])
def test_grouped_queries(shared: int) -> None:
    """Values are copied for each head of queries: the projection's columns of one group have one order."""
    net, h = stream()
    mixed = group_query(net, *three(net, h, shared, 4), shared=shared)[0]
    found = held(net, net.linear(mixed, "o", 4 * SIZE, 3), move="q k v o", stay="first")
    assert of(found, "o") == [SIZE] * shared
    assert of(found, "q") == [SIZE] * shared + [WIDTH]


def test_grouped_queries_that_are_packed() -> None:
    net, h = stream()
    mixed = group_query(net, net.linear(h, "qkv", WIDTH, 8 * SIZE))[0]
    found = held(net, net.linear(mixed, "o", 4 * SIZE, 3), move="qkv o", stay="first")
    assert of(found, "qkv") == [SIZE] * 4 + [WIDTH]


@pytest.mark.parametrize("interleaved", [0, 1])
def test_grouped_queries_with_rotary_positions(interleaved: int) -> None:
    """Queries and keys stay in their pairs; values move. The kernel turns heads of 16 and more."""
    net, h = stream()
    q, k, v = (net.linear(h, name, WIDTH, width) for name, width in (("q", 64), ("k", 32), ("v", 32)))
    mixed = group_query(net, q, k, v, rotary=True, rotary_interleaved=interleaved)[0]
    found = held(net, net.linear(mixed, "o", 64, 3), move="q k v o", stay="first")
    assert of(found, "q") == [WIDTH]
    assert of(found, "v") == [16, 16, WIDTH]
    assert not of(found, "cos")


def test_grouped_queries_with_a_cache() -> None:
    """Of one sequence: newer runtimes take no more with a past."""
    net = Net()
    h = net.linear(net.input("x", 1, T, 6), "first", 6, WIDTH)
    made = group_query(net, *three(net, h, 2, 4), past=3, batch=1)
    found = held(net, net.linear(made[0], "o", 4 * SIZE, 3), *made[1:], move="q k v", stay="first o")
    assert sizes(found) == [WIDTH]


# -- rotary positions


@pytest.mark.parametrize("turned", [0, 4])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("four", [True, False])
def test_rotary_positions(turned: int, interleaved: int, four: bool) -> None:
    """What is behind the places that are turned moves, queries with keys; values all."""
    net, h = stream()
    q, k, v = three(net, h)
    where = net.feed("places", np.tile(np.arange(T), (B, 1)))
    tables = [net.weight(name, 16, (turned or SIZE) // 2) for name in ("cos", "sin")]
    more = {"rotary_embedding_dim": turned, "num_heads": HEADS} if turned else {}
    if four:
        q, k, v = (heads_first(net, one, HEADS) for one in (q, k, v))
    q, k = (net("RotaryEmbedding", one, where, *tables, domain=MS, interleaved=interleaved, **more) for one in (q, k))
    if four:
        scores = net("Softmax", net("MatMul", q, net.transpose(k, 0, 1, 3, 2)), axis=-1)
        mixed = net.reshape(net.transpose(net("MatMul", scores, v), 0, 2, 1, 3), B, T, WIDTH)
    else:
        mixed = net("MultiHeadAttention", q, k, v, domain=MS, num_heads=HEADS)
    found = held(net, net.linear(mixed, "o", WIDTH, 3), move="q k v o", stay="first")
    assert of(found, "q") == ([4, 4, WIDTH] if turned else [WIDTH])
    assert of(found, "v") == [SIZE, SIZE, WIDTH]


def test_cosines_that_a_layer_makes_stay() -> None:
    net, h = stream()
    q, k, v = three(net, h)
    where = net.feed("places", np.tile(np.arange(T), (B, 1)))
    angles = net.input("angles", 16, 3)
    tables = [net.linear(angles, name, 3, SIZE // 2) for name in ("cos", "sin")]
    q, k = (net("RotaryEmbedding", one, where, *tables, domain=MS) for one in (q, k))
    mixed = net("MultiHeadAttention", q, k, v, domain=MS, num_heads=HEADS)
    found = held(net, net.linear(mixed, "o", WIDTH, 3), move="q k v o", stay="first")
    assert of(found, "cos_b") == []


# -- of the standard, by the reference implementation


@pytest.mark.parametrize("four", [True, False])
@pytest.mark.parametrize("shared", [1, 2, 4])
def test_standard_attention(four: bool, shared: int) -> None:
    net, h = stream(23)
    parts = three(net, h, shared, 4)
    if four:
        parts = [heads_first(net, one, heads) for one, heads in zip(parts, (4, shared, shared))]
        mixed = net.reshape(net.transpose(net("Attention", *parts), 0, 2, 1, 3), B, T, 4 * SIZE)
    else:
        mixed = net("Attention", *parts, q_num_heads=4, kv_num_heads=shared, is_causal=1, softcap=2.0)
    found = held_by_reference(net, net.linear(mixed, "o", 4 * SIZE, 3), move="q k v o", stay="first")
    assert of(found, "o") == [SIZE] * shared
    assert of(found, "k") == [SIZE] * shared + [WIDTH]


def test_standard_attention_with_a_mask_that_a_layer_makes() -> None:
    net, h = stream(23)
    mask = net("Unsqueeze", net.linear(h, "mask", WIDTH, T), net.ints(1))
    mixed = net("Attention", *three(net, h), mask, q_num_heads=HEADS, kv_num_heads=HEADS)
    found = held_by_reference(net, net.linear(mixed, "o", WIDTH, 3), move="q k v o mask", stay="first")
    assert of(found, "mask_b") == []


def test_standard_attention_with_a_stored_mask() -> None:
    net, h = stream(23)
    mask = net.weight("mask", T, T)
    mixed = net("Attention", *three(net, h), mask, q_num_heads=HEADS, kv_num_heads=HEADS)
    found = held_by_reference(net, net.linear(mixed, "o", WIDTH, 3), move="q k v o", stay="first")
    assert not of(found, "mask")


@pytest.mark.parametrize("given", [True, False])
def test_standard_attention_with_a_cache(given: bool) -> None:
    """Past keys and values of the caller, or present ones that are handed out."""
    net, h = stream(23)
    past = [net.input(name, B, HEADS, 3, SIZE) for name in ("past_k", "past_v")] if given else []
    made = net.many("Attention", 3, *three(net, h), *([""] if given else []), *past, q_num_heads=HEADS,
                    kv_num_heads=HEADS)  # fmt: skip
    outputs = [net.linear(made[0], "o", WIDTH, 3)] if given else [net.linear(made[0], "o", WIDTH, 3), *made[1:]]
    found = held_by_reference(net, *outputs, move="q k v", stay="first o")
    assert sizes(found) == [WIDTH]


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize("shared", [2, 4])
@pytest.mark.parametrize("wide", [True, False])
def test_linear_attention(rule: str, shared: int, wide: bool) -> None:
    """A decay for each place of a key moves with it; that of a head does not."""
    net, h = stream(27)
    given = ["", ""] if rule != "linear" else []
    if "gated" in rule:
        made = net.linear(h, "decay", WIDTH, shared * SIZE if wide else shared)
        given[1] = net("Neg", net("Sigmoid", made))
    if "delta" in rule:
        given.append(net("Sigmoid", net.linear(h, "beta", WIDTH, shared)))
    mixed = net("LinearAttention", *three(net, h, shared, 4), *given, update_rule=rule, q_num_heads=4,
                kv_num_heads=shared)  # fmt: skip
    found = held_by_reference(net, net.linear(mixed, "o", 4 * SIZE, 3), move="q k v o", stay="first")
    assert of(found, "o") == [SIZE] * shared
    assert of(found, "k") == [SIZE] * shared + [WIDTH]
    if "gated" in rule:
        assert of(found, "decay_b") == ([SIZE] * shared if wide else [])


@pytest.mark.parametrize("given", [True, False])
def test_linear_attention_with_a_state(given: bool) -> None:
    net, h = stream(27)
    state = [net.input("state", B, HEADS, SIZE, SIZE)] if given else []
    made = net.many("LinearAttention", 2, *three(net, h), *state, update_rule="linear", q_num_heads=HEADS,
                    kv_num_heads=HEADS)  # fmt: skip
    found = held_by_reference(net, net.linear(made[0], "o", WIDTH, 3), made[1], move="q k v", stay="first o")
    assert sizes(found) == [WIDTH]


@pytest.mark.parametrize("turned", [0, 4])
def test_standard_rotary_positions(turned: int) -> None:
    net, h = stream(23)
    q, k, v = three(net, h)
    where = net.feed("places", np.tile(np.arange(T), (B, 1)))
    tables = [net.weight(name, 16, (turned or SIZE) // 2) for name in ("cos", "sin")]
    q, k = (net("RotaryEmbedding", one, *tables, where, num_heads=HEADS, rotary_embedding_dim=turned) for one in (q, k))
    mixed = net("Attention", q, k, v, q_num_heads=HEADS, kv_num_heads=HEADS)
    found = held_by_reference(net, net.linear(mixed, "o", WIDTH, 3), move="q k v o", stay="first")
    assert of(found, "q") == ([4, 4, WIDTH] if turned else [WIDTH])


# -- sums of embeddings, and what is fused beside attention


@pytest.mark.parametrize("segments", [True, False])
@pytest.mark.parametrize("total", [True, False])
def test_embeddings(segments: bool, total: bool) -> None:
    net = Net()
    ids = net.feed("ids", np.arange(B * T, dtype=np.int32).reshape(B, T))
    kinds = net.feed("kinds", (np.arange(B * T, dtype=np.int32) % 2).reshape(B, T)) if segments else ""
    tables = [net.weight("words", 11, WIDTH), net.weight("places", T, WIDTH)]
    tables += [net.weight("segments", 2, WIDTH) if segments else ""]
    norm = [net.weight("gamma", WIDTH, around=1.0), net.weight("beta", WIDTH)]
    made = net.many("EmbedLayerNormalization", 3, ids, kinds, *tables, *norm, domain=MS)
    outputs = [net.linear(made[0], "last", WIDTH, 3)]
    outputs += [net.linear(made[2], "of_sum", WIDTH, 3)] if total else []
    found = held(net, *outputs, move="last of_sum" if total else "last")
    assert sizes(found) == [WIDTH]
    assert {member.name for member in found.classes[0].members} >= {"words", "places", "gamma", "beta", "last"}


def test_a_table_of_words_that_is_also_a_matrix() -> None:
    """The rows are looked up by numbers from outside: they stay, in both readers."""
    net = Net()
    ids = net.feed("ids", np.arange(B * T, dtype=np.int32).reshape(B, T))
    words = net.weight("words", WIDTH, WIDTH, axis=1)
    norm = [net.weight("gamma", WIDTH, around=1.0), net.weight("beta", WIDTH)]
    h = net.many("EmbedLayerNormalization", 2, ids, "", words, net.weight("places", T, WIDTH), "", *norm, domain=MS)[0]
    y = net("MatMul", h, net.transpose(words, 1, 0))
    found = held(net, net.linear(y, "last", WIDTH, 3), move="words", stay="last")
    assert sizes(found) == [WIDTH]


@pytest.mark.parametrize("turned", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_fused_products(turned: tuple[int, int]) -> None:
    net, h = stream()
    a, b = turned
    h = net.transpose(h, 0, 2, 1) if a else h
    shape = (24, WIDTH) if b else (WIDTH, 24)
    h = net("FusedMatMul", h, net.weight("w", *shape, axis=b), domain=MS, transA=a, transB=b, alpha=0.5)
    held(net, net.linear(h, "last", 24, 3), move="w last", stay="first")


def test_fused_gemm() -> None:
    net, h = stream()
    h = net("FusedGemm", net.reshape(h, B * T, WIDTH), net.weight("w", 24, WIDTH, axis=1), net.weight("b", 24),
            domain=MS, transB=1, activation="Relu")  # fmt: skip
    held(net, net.linear(h, "last", 24, 3), move="w last", stay="first")


def test_a_gated_product_in_one_operator() -> None:
    net, h = stream(28)
    made = net("SwiGLU", net.linear(h, "gate", WIDTH, 24), net.linear(h, "up", WIDTH, 24), alpha=1.5)
    held_by_reference(net, net.linear(made, "last", 24, 3), move="gate up last", stay="first")


def test_bits_that_are_read_as_another_type() -> None:
    net, h = stream(27)
    made = net("BitCast", net("Neg", net("BitCast", h, to=6)), to=1)
    held_by_reference(net, net.linear(made, "last", WIDTH, 3), move="last", stay="first")


def classes(net: Net, *outputs: str) -> Channels:
    """Of a graph that no kernel here runs."""
    from onnx import ValueInfoProto, helper

    from onnxsparse.channel_classes.classes import analyse
    from onnxsparse.graph.model import Model

    graph = helper.make_graph(
        net.nodes, "net", net.inputs, [ValueInfoProto(name=one) for one in outputs], net.initializers
    )
    imports = [helper.make_opsetid("", net.opset), *(helper.make_opsetid(one, 1) for one in net.domains)]
    return analyse(Model.over(helper.make_model(graph, opset_imports=imports, ir_version=8)))
