"""Attention as one operator, and what stands around it in fused graphs: rotary positions, sums of embeddings.

The algebra, with labels over (head, place in the head). Heads stay where they are:

    queries and keys      one channel at each place, a closed set in each head
    values and results    one channel at each place, a closed set in each head
    grouped queries       heads of queries that share keys and values: their channels are copies of those
    past and present      the channels of keys and values; those of a caller stay
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

import numpy as np

from onnxsparse.channel_classes.rules.normalization import over
from onnxsparse.channel_classes.tensors import Field, Sizes, Tensor, View
from onnxsparse.channel_classes.walk import Node, Rule, Walk
from onnxsparse.math.values import Array

Places = Optional[Array]
"""Labels over (head, place in the head); None where nothing moves."""


# -- labels of heads


def heads_of(walk: Walk, node: Node, tensor: Tensor | None, heads: int) -> Places:
    """The labels of (..., tokens, heads x size) or (batch, heads, tokens, size); tokens and batch stay."""
    if tensor is None or tensor.shape is None:
        return None
    four = tensor.rank == 4
    held = (1, 3) if four else (tensor.rank - 1,)
    for axis in range(tensor.rank):
        if axis not in held:
            walk.freeze_axis(tensor, axis, f"{node.called} reads it in a fixed order")
    size = tensor.size(held[-1])
    if size is None or (not four and size % heads):
        walk.freeze(tensor, f"the shapes at {node.called} are not known before it runs")
        return None
    if tensor.uniform:
        return walk.labels.fresh([heads, size if four else size // heads])
    labels = walk.along(tensor, held)
    return None if labels is None else labels.reshape(heads, -1)


def together(walk: Walk, node: Node, *some: Places) -> Places:
    """Labels at the same places are one channel; where one stays, so do the others."""
    known = [labels for labels in some if labels is not None]
    fit = len(known) == len(some) and len({labels.shape for labels in known}) == 1
    for labels in known:
        if fit:
            walk.labels.unite(known[0], labels)
        else:
            walk.labels.freeze(labels, f"its channels meet others that stay where they are at {node.called}")
    return known[0] if fit else None


def spread(labels: Places, heads: int) -> Places:
    """Copies for all heads of queries that share one."""
    return None if labels is None else np.repeat(labels, heads // len(labels), axis=0)


def carrying(labels: Places, shape: Sizes) -> Tensor:
    """A value of (..., tokens, heads x size) or (batch, heads, tokens, size)."""
    if labels is None or not labels.size:
        return Tensor(shape)
    if len(shape) != 4:
        return Tensor(shape, (Field((len(shape) - 1,), labels.reshape(-1)),) if labels.size > 1 else ())
    axes = [axis for axis, size in zip((1, 3), labels.shape) if size > 1]
    return Tensor(shape, (Field(tuple(axes), labels.reshape([size for size in labels.shape if size > 1])),) * any(axes))


def cut(labels: Array | None, sizes: Sequence[int], heads: Sequence[int]) -> list[Places]:
    """Labels of queries, keys and values side by side, each by its heads."""
    if labels is None:
        return [None] * len(sizes)
    return [part.reshape(some, -1) for part, some in zip(np.split(labels, np.cumsum(sizes)[:-1]), heads)]


# -- attention


@dataclass(frozen=True, eq=False)
class Attended:
    """Queries, keys and values of one node, and the keys and values of a cache.

    `heads` are those of queries, `shared` those of keys and values; `like` is the shape of what comes out.
    """

    q: Places
    k: Places
    v: Places
    heads: int
    shared: int
    like: Sizes
    past: tuple[Tensor | None, Tensor | None] = (None, None)


def attend(walk: Walk, node: Node, given: Attended) -> list[Tensor]:
    """Unite queries with keys and values with results; what comes out, and the present keys and values."""
    k, v = (_after(walk, node, *pair, given.shared) for pair in zip((given.k, given.v), given.past))
    k = together(walk, node, given.q, spread(k, given.heads))
    for labels in (k, v):
        if labels is not None:
            walk.labels.close(labels, (0,))
    k = None if k is None else k[:: given.heads // given.shared]
    batch = given.like[0] if len(given.like) > 2 else None
    widths = [None if part is None else part.shape[1] for part in (k, v)]
    shapes = [node.shape(1 + at) or (batch, given.shared, None, width) for at, width in enumerate(widths)]
    made = [carrying(spread(v, given.heads), node.shape() or given.like), *map(carrying, (k, v), shapes)]
    return (made + [Tensor(shape) for shape in node.shapes[3:]])[: len(node.shapes)]


def _after(walk: Walk, node: Node, labels: Places, past: Tensor | None, heads: int) -> Places:
    """Keys or values after those of a cache."""
    return labels if past is None or past.uniform else together(walk, node, labels, heads_of(walk, node, past, heads))


def _hold_the_rest(walk: Walk, node: Node, used: Sequence[int]) -> None:
    """Masks, lengths and the like are read in their order."""
    for at, tensor in enumerate(node.inputs):
        if tensor is not None and at not in used:
            walk.freeze(tensor, f"{node.called} reads it in a fixed order")


def _hold(walk: Walk, node: Node, labels: Places, count: int | None = None) -> Places:
    """The first places of every head stay, or all of them."""
    if labels is not None:
        walk.labels.freeze(labels[:, :count], f"{node.called} depends on the order of its channels")
    return labels


def _biased(
    walk: Walk, node: Node, parts: Sequence[Places], bias: Tensor | None, sizes: Sequence[int], heads: int
) -> list[Places]:
    """Queries, keys and values with a bias for all three."""
    if bias is None or bias.uniform:
        return list(parts)
    if bias.shape != (sum(sizes),):
        walk.freeze(bias, f"its shape does not fit {node.called}")
        return [_hold(walk, node, part) for part in parts]
    added = cut(walk.along(bias, (0,)), sizes, [heads] * 3)
    return [together(walk, node, *pair) for pair in zip(parts, added)]


def standard(walk: Walk, node: Node) -> list[Tensor]:
    """Attention of the standard: Q, K, V of three axes, or of four with heads."""
    q, k, v = (node.input(at) for at in range(3))
    if q is None or k is None or v is None or None in (q.shape, k.shape, v.shape):
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    heads = q.size(1) if q.rank == 4 else node.attributes.integer("q_num_heads")
    shared = k.size(1) if k.rank == 4 else node.attributes.integer("kv_num_heads")
    if not heads or not shared or heads % shared:
        return walk.blocked(node, f"the heads at {node.called} are not known before it runs")
    _hold_the_rest(walk, node, (0, 1, 2, 4, 5))
    parts = heads_of(walk, node, q, heads), heads_of(walk, node, k, shared), heads_of(walk, node, v, shared)
    last = v.size(v.rank - 1)
    width = last if q.rank == 4 or last is None else last // shared * heads
    like = (*(q.shape or ())[:-1], width)
    return attend(walk, node, Attended(*parts, heads, shared, like, (node.input(4), node.input(5))))


def projected(walk: Walk, node: Node) -> list[Tensor]:
    """Attention with the matrix of queries, keys and values inside, and its bias; also of packed tokens, or in int8."""
    x, weights = node.input(0), node.input(1)
    past, scales = {"QAttention": (8, (4, 7)), "PackedAttention": (99, ())}.get(node.op, (4, ()))
    heads = node.attributes.integer("num_heads")
    whole = None if weights is None or weights.rank != 2 else weights.size(1)
    sizes = node.attributes.integers("qkv_hidden_sizes") or [(whole or 0) // 3] * 3
    if x is None or weights is None or x.shape is None or heads < 1 or not _fit(sizes, whole, heads):
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    _hold_the_rest(walk, node, (0, 1, 2, *scales))
    columns = walk.along(weights, (0,))
    total = together(walk, node, heads_of(walk, node, x, 1), None if columns is None else columns.reshape(1, -1))
    if total is not None:
        walk.labels.close(total)
    q, k, v = cut(walk.along(weights, (1,)), sizes, [heads] * 3)
    for at in (2, *scales):
        one = node.input(at)
        q, k, v = _biased(walk, node, (q, k, v), one if at == 2 or _listed(one) else None, sizes, heads)
    if node.attributes.integer("do_rotary") or node.input(past) is not None:
        q, k = (_hold(walk, node, part) for part in (q, k))
    if node.input(past) is not None or any(node.proto.output[1:2]):
        k, v = (_hold(walk, node, part) for part in (k, v))
    given = Attended(q, k, v, heads, heads, (*x.shape[:-1], sizes[2]))
    return [attend(walk, node, given)[0], *[Tensor(shape) for shape in node.shapes[1:]]]


def _listed(tensor: Tensor | None) -> bool:
    """Whether a scale is of each column, not of the whole."""
    return tensor is not None and tensor.shape not in ((), (1,))


def _fit(sizes: Sequence[int | None], whole: int | None, heads: int) -> bool:
    return bool(whole) and sum(size or 0 for size in sizes) == whole and not any((size or 0) % heads for size in sizes)


def several(walk: Walk, node: Node) -> list[Tensor]:
    """MultiHeadAttention and its forms: queries, keys and values apart, or packed as (tokens, heads, 3, size)."""
    bias, past = {"DecoderMaskedMultiHeadAttention": (10, 5), "PackedMultiHeadAttention": (3, 99)}.get(node.op, (3, 6))
    heads, q = node.attributes.integer("num_heads"), node.input(0)
    given = [one for one in node.inputs[:3] if one is not None]
    if q is None or q.shape is None or heads < 1:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    _hold_the_rest(walk, node, (0, 1, 2, bias, past, past + 1))
    parts = [part for one in given for part in _apart(walk, node, one, heads)]
    if len(parts) != 3:
        return walk.blocked(node)
    sizes = [size for _, size in parts]
    if not _fit(sizes, sum(sizes), heads):
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    labels = _biased(walk, node, [part for part, _ in parts], node.input(bias), sizes, heads)
    like = (*q.shape[: q.rank - (1 if q.rank == 3 or q.rank == 2 else 3)], sizes[2])
    cache = node.input(past), node.input(past + 1)
    return attend(walk, node, Attended(labels[0], labels[1], labels[2], heads, heads, like, cache))


def _apart(walk: Walk, node: Node, tensor: Tensor, heads: int) -> list[tuple[Places, int]]:
    """What an input of a node holds: queries, keys and values, some or one of them, each with its width."""
    packed = tensor.rank == 5 or (tensor.rank == 4 and node.op == "PackedMultiHeadAttention")
    size, last = tensor.size(tensor.rank - 1) or 0, tensor.rank - 1
    if not packed:
        return [(heads_of(walk, node, tensor, heads), size * heads if tensor.rank == 4 else size)]
    count = tensor.size(last - 1) or 0
    for axis in range(last - 2):
        walk.freeze_axis(tensor, axis, f"{node.called} reads it in a fixed order")
    labels = None if not size else walk.along(tensor, (last - 2, last - 1, last))
    parts = [None] * count if labels is None else [labels.reshape(heads, count, size)[:, at] for at in range(count)]
    return [(part, size * heads) for part in parts]


def grouped(walk: Walk, node: Node) -> list[Tensor]:
    """GroupQueryAttention, with rotary positions inside or not; queries may hold keys and values too."""
    q, k, v = (node.input(at) for at in range(3))
    heads, shared = node.attributes.integer("num_heads"), node.attributes.integer("kv_num_heads")
    width = None if q is None else q.size(q.rank - 1)
    if q is None or q.shape is None or not width or shared < 1 or heads % shared:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    _hold_the_rest(walk, node, (0, 1, 2, 3, 4))
    if k is None or v is None:
        size = width // (heads + 2 * shared)
        whole = heads_of(walk, node, q, 1)
        flat = None if whole is None else whole.reshape(-1)
        parts = cut(flat, [size * heads, size * shared, size * shared], [heads, shared, shared])
    else:
        size = width // heads
        parts = [heads_of(walk, node, one, some) for one, some in ((q, heads), (k, shared), (v, shared))]
    if any(one is not None for one in node.inputs[12:]):
        parts = [_hold(walk, node, part) for part in parts]
    if node.attributes.integer("do_rotary"):
        turned = _rotated(node.input(7))
        parts = [*(_hold(walk, node, part, turned) for part in parts[:2]), parts[2]]
    like, past = (*q.shape[:-1], size * heads), (node.input(3), node.input(4))
    return attend(walk, node, Attended(parts[0], parts[1], parts[2], heads, shared, like, past))


def linear(walk: Walk, node: Node) -> list[Tensor]:
    """LinearAttention: its state has places of keys along one axis, of values along another; a caller's keeps both."""
    q, k, v, state, decay = (node.input(at) for at in range(5))
    heads, shared = node.attributes.integer("q_num_heads"), node.attributes.integer("kv_num_heads")
    if q is None or k is None or v is None or q.shape is None or shared < 1 or heads % shared:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    _hold_the_rest(walk, node, (0, 1, 2, 4))
    parts = [heads_of(walk, node, one, some) for one, some in ((q, heads), (k, shared), (v, shared))]
    if decay is not None and decay.size(decay.rank - 1) == shared:
        walk.freeze(decay, f"{node.called} has one number for each head")
    elif decay is not None:
        parts[1] = together(walk, node, parts[1], heads_of(walk, node, decay, shared))
    if state is not None or any(node.proto.output[1:]):
        parts = [_hold(walk, node, part) for part in parts]
    width = v.size(v.rank - 1)
    like = (*q.shape[:-1], None if width is None else width // shared * heads)
    made = attend(walk, node, Attended(parts[0], parts[1], parts[2], heads, shared, like))
    return [made[0], *[Tensor(shape) for shape in node.shapes[1:]]]


# -- positions


def _rotated(cosines: Tensor | None) -> int | None:
    """How many places of a head are turned: two for each stored cosine; None for all."""
    size = None if cosines is None or cosines.shape is None or not cosines.rank else cosines.size(cosines.rank - 1)
    return None if size is None else 2 * size


def rotary(walk: Walk, node: Node) -> list[Tensor]:
    """RotaryEmbedding: it turns pairs of places in a head against each other; what is behind them goes on."""
    x = node.input(0)
    cosines = node.input(1 if node.proto.domain in ("", "ai.onnx") else 2)
    if x is None or x.shape is None:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    turned = node.attributes.integer("rotary_embedding_dim") or _rotated(cosines)
    width = x.size(x.rank - 1)
    heads = x.size(1) if x.rank == 4 else node.attributes.integer("num_heads")
    if x.rank != 4 and not heads and width and turned:
        heads = width // turned
    if not heads or not turned:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    _hold_the_rest(walk, node, (0,))
    return [carrying(_hold(walk, node, heads_of(walk, node, x, heads), turned), x.shape)]


def embedded(walk: Walk, node: Node) -> list[Tensor]:
    """EmbedLayerNormalization: rows of up to three tables, added and normalized."""
    tables = [one for one in node.inputs[2:5] if one is not None]
    if node.input(0) is None or any(one.rank != 2 for one in tables):
        return walk.blocked(node)
    _hold_the_rest(walk, node, range(2, 7))
    rows = [_rows(walk, node, one) for one in tables]
    shape = node.shape() or (None, None, tables[0].size(1))
    total = walk.resolved(walk.elementwise(node, rows))
    made = walk.elementwise(node, [over(walk, total, [2]), *node.inputs[5:7]], total.shape)
    return [Tensor(shape, made.fields), *[Tensor(one) for one in node.shapes[1:2]], Tensor(shape, total.fields)]


def _rows(walk: Walk, node: Node, table: Tensor) -> Tensor:
    """Some rows of a table, as they are added: (1, 1, width)."""
    fields = () if table.stored else walk.freeze_axis(table, 0, f"{node.called} chooses along it when it runs")
    views = tuple(View(one.tag, (None, None, one.axes[1])) for one in table.views)
    return Tensor((1, 1, table.size(1)), tuple(one.moved({1: 2}) for one in fields), views, uniform=table.uniform)


RULES: dict[tuple[str, str], Rule] = {
    ("", "Attention"): standard,
    ("", "LinearAttention"): linear,
    ("", "RotaryEmbedding"): rotary,
    ("com.microsoft", "RotaryEmbedding"): rotary,
    ("com.microsoft", "EmbedLayerNormalization"): embedded,
    ("com.microsoft", "GroupQueryAttention"): grouped,
    **{
        ("com.microsoft", name): projected
        for name in ("Attention", "DecoderMaskedSelfAttention", "PackedAttention", "QAttention")
    },
    **{
        ("com.microsoft", name): several
        for name in ("DecoderMaskedMultiHeadAttention", "MultiHeadAttention", "PackedMultiHeadAttention")
    },
}

__all__ = ["RULES"]
