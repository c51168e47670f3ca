"""Attention and rotary embeddings of the runtime's own domain for the training graph."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, TensorProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, gather, given, part, reshape
from onnxsparse.graph.attributes import attributes
from onnxsparse.graph.edit import Writer
from onnxsparse.math.values import Array

# -- Attention of the runtime's own domain, written as products and a softmax.
#
#     softmax(q k' scale + bias + mask) v    for each head
#
# A mask adds `mask_filter_value` where a key is to be ignored. It may be given as lengths (batch), as zeros and ones
# (batch, keys), or the same for each query (batch, queries, keys). States of earlier calls are refused.

_NEVER = -1e30  # added to the scores of keys that come later than the query


@dataclass(frozen=True)
class _Heads:
    """What is the same for all steps of one attention."""

    writer: Writer
    view: View
    heads: int
    scale: float
    filled: float
    causal: bool

    @classmethod
    def of(cls, node: NodeProto, view: View, writer: Writer) -> _Heads:
        options = attributes(node)
        return cls(
            writer,
            view,
            options["num_heads"],
            options.get("scale", 0.0),
            options.get("mask_filter_value", -10000.0),
            bool(options.get("unidirectional", 0)),
        )

    def split(self, value: str, shape: tuple[int, int, int]) -> str:
        """(batch, places, width) as (batch, heads, places, width / heads)."""
        apart = reshape(self.writer, value, (*shape[:2], self.heads, shape[2] // self.heads))
        return self.writer.node("Transpose", apart, perm=[0, 2, 1, 3])

    def attend(self, q: str, k: str, v: str, sizes: tuple[int, int, int], added: list[str], to: str) -> None:
        """The whole of it; `sizes` are those of a query's width, of the queries and of the keys."""
        width, queries, keys = sizes
        writer = self.writer
        scores = writer.node("MatMul", q, writer.node("Transpose", k, perm=[0, 1, 3, 2]))
        scale = self.scale or 1 / math.sqrt(width)
        scores = writer.node("Mul", scores, writer.constant(scale, "scale"))
        if self.causal:
            later = np.triu(np.full((queries, keys), _NEVER, np.float32), 1 + keys - queries)
            added = [*added, writer.constant(later, "later")]
        for one in added:
            scores = writer.node("Add", scores, one)
        found = writer.node("MatMul", writer.node("Softmax", scores, axis=-1), v)
        turned = writer.node("Transpose", found, perm=[0, 2, 1, 3])
        writer.node("Reshape", turned, writer.constant([0, 0, -1], "shape", np.int64), to=to)

    def mask(self, name: str, keys: int) -> str | None:
        """What a mask adds to the scores; None for a form that is not known."""
        shape, writer = self.view.shapes.get(name, ()), self.writer
        batch = shape[0] if shape else 0
        if len(shape) == 1:
            places = writer.constant(np.arange(keys)[None], "places", np.int64)
            lengths = writer.many("Cast", reshape(writer, name, (batch, 1)), to=[writer.fresh("lengths")])[0]
            writer.nodes[-1].attribute.add(name="to", type=2, i=TensorProto.INT64)
            kept, shape = writer.node("Less", places, lengths), (batch, keys)
        else:
            kept = name
        kept = _as_float(writer, kept)
        if len(shape) not in (2, 3) or shape[-1] != keys:
            return None
        wide = reshape(writer, kept, (batch, 1, 1 if len(shape) == 2 else shape[1], keys))
        ignored = writer.node("Sub", writer.constant(1.0, "one"), wide)
        return writer.node("Mul", ignored, writer.constant(self.filled, "filled"))


def _as_float(writer: Writer, name: str) -> str:
    made = writer.many("Cast", name, to=[writer.fresh("float")])[0]
    writer.nodes[-1].attribute.add(name="to", type=2, i=TensorProto.FLOAT)
    return made


class Attention(Rewrite):
    """Queries, keys and values come from one product with the stored weights."""

    operators = ("com.microsoft:Attention",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        options = attributes(node)
        refusal = _refusal(node, view, 4, 6)
        if refusal or options.get("do_rotary"):
            return refusal or "it rotates its positions"
        batch, places, _ = view.shapes[node.input[0]]
        total = view.shapes[node.input[1]][1]
        widths = options.get("qkv_hidden_sizes") or [total // 3] * 3
        heads = _Heads.of(node, view, writer)
        added = _added(heads, given(node, 3), given(node, 5), places)
        if added is None:
            return "the form of its mask is not known"
        packed = writer.node("MatMul", node.input[0], node.input[1])
        packed = writer.node("Add", packed, node.input[2]) if given(node, 2) else packed
        ends = np.cumsum([0, *widths])
        q, k, v = (
            heads.split(part(writer, packed, int(start), int(end), 2), (batch, places, int(end - start)))
            for start, end in zip(ends, ends[1:])
        )
        heads.attend(q, k, v, (widths[0] // heads.heads, places, places), added, node.output[0])
        return None


class MultiHeadAttention(Rewrite):
    """Queries, keys and values are inputs of their own."""

    operators = ("com.microsoft:MultiHeadAttention",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        shapes = [view.shapes.get(name, ()) for name in node.input[:3]]
        refusal = _refusal(node, view, 6, 7)
        if refusal or [len(shape) for shape in shapes] != [3, 3, 3]:
            return refusal or "its queries, keys and values are packed"
        heads, keys = _Heads.of(node, view, writer), shapes[1][1]
        added = _added(heads, given(node, 4), given(node, 5), keys)
        if added is None:
            return "the form of its mask is not known"
        bias, start, split = given(node, 3), 0, []
        for name, shape in zip(node.input, shapes):
            own = part(writer, bias, start, start + shape[2], 0) if bias else None
            start += shape[2]
            value = writer.node("Add", name, own) if own else name
            split.append(heads.split(value, (shape[0], shape[1], shape[2])))
        sizes = (shapes[0][2] // heads.heads, shapes[0][1], keys)
        heads.attend(split[0], split[1], split[2], sizes, added, node.output[0])
        return None


def _refusal(node: NodeProto, view: View, *pasts: int) -> str | None:
    if any(name not in view.shapes for name in (node.input[0], node.input[1])):
        return "its shapes are not known"
    if any(given(node, place) for place in pasts) or any(name in view.read for name in node.output[1:] if name):
        return "it keeps the state of earlier calls"
    return None


def _added(heads: _Heads, mask: str | None, bias: str | None, keys: int) -> list[str] | None:
    """What is added to the scores; None when the mask is not known."""
    made = heads.mask(mask, keys) if mask else None
    if mask and made is None:
        return None
    return [name for name in (bias, made) if name]


# -- Positions as rotations: pairs of numbers are turned by an angle that their place gives.
#
#     (a, b) becomes (a cos - b sin, b cos + a sin)
#
# A pair is a number of the first half and one of the second, or two neighbours (`interleaved`).


class RotaryEmbedding(Rewrite):
    """With stored tables of cosines and sines."""

    operators = ("com.microsoft:RotaryEmbedding",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        shape, table = view.shapes.get(node.input[0]), view.shapes.get(node.input[2])
        if shape is None or table is None or attributes(node).get("is_packed_batching"):
            return "its shapes are not known, or its batch is packed"
        options, turned = attributes(node), 2 * table[1]
        by_heads = len(shape) == 4
        batch, places = shape[0], shape[2] if by_heads else shape[1]
        width = shape[3] if by_heads else shape[2] // (options.get("num_heads") or shape[2] // turned)
        chosen = _places(node, view, places)
        if chosen is None and view.shapes.get(node.input[1]) != (batch, places):
            return "its first place is not fixed"
        if by_heads:
            x = writer.node("Transpose", node.input[0], perm=[0, 2, 1, 3])
        else:
            x = reshape(writer, node.input[0], (batch, places, shape[2] // width, width))
        cos, sin = (_looked_up(writer, name, chosen, node.input[1]) for name in node.input[2:4])
        found = _rotated(writer, x, cos, sin, turned, bool(options.get("interleaved", 0)))
        if width > turned:
            found = writer.node("Concat", found, part(writer, x, turned, width, 3), axis=3)
        if by_heads:
            writer.node("Transpose", found, perm=[0, 2, 1, 3], to=node.output[0])
        else:
            reshape(writer, found, shape, to=node.output[0])
        return None


def _places(node: NodeProto, view: View, count: int) -> Array | None:
    """The places counted from a fixed first one; None where each sample names its own."""
    first = view.constant(node.input[1])
    if first is None or first.size != 1 or first.ndim > 1:
        return None
    return np.arange(count)[None] + int(first.reshape(()))


def _looked_up(writer: Writer, table: str, chosen: Array | None, named: str) -> str:
    """Rows of a table, (batch or 1, places, 1, half of the width)."""
    places = named if chosen is None else writer.constant(chosen, "places", np.int64)
    rows = writer.node("Gather", table, places, axis=0)
    return writer.node("Unsqueeze", rows, writer.constant([2], "axes", np.int64))


def _rotated(writer: Writer, x: str, cos: str, sin: str, turned: int, interleaved: bool) -> str:
    if interleaved:
        a, b = (gather(writer, x, np.arange(start, turned, 2), 3) for start in (0, 1))
    else:
        a, b = part(writer, x, 0, turned // 2, 3), part(writer, x, turned // 2, turned, 3)
    one = writer.node("Sub", writer.node("Mul", a, cos), writer.node("Mul", b, sin))
    two = writer.node("Add", writer.node("Mul", b, cos), writer.node("Mul", a, sin))
    joined = writer.node("Concat", one, two, axis=3)
    if not interleaved:
        return joined
    return gather(writer, joined, np.arange(turned).reshape(2, -1).T.reshape(-1), 3)
