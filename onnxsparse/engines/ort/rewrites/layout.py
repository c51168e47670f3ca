"""Layout operators for the training graph: Transpose, DepthToSpace, SpaceToDepth, sequences of tensors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, given, part, reshape
from onnxsparse.graph.attributes import attributes
from onnxsparse.graph.edit import Writer

# -- A transposition that does not say how: all axes turn around. The engine fails without the attribute.


class Transpose(Rewrite):
    """Says how."""

    operators = ("Transpose",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        if "perm" in attributes(node):
            return None
        shape = view.shapes.get(node.input[0])
        if shape is None:
            return "its rank is not known"
        writer.node("Transpose", node.input[0], to=node.output[0], perm=list(range(len(shape)))[::-1])
        return None


# -- Channels to positions and back: a Reshape, a Transpose and a Reshape.


class DepthToSpace(Rewrite):
    """In both orders of the channels."""

    operators = ("DepthToSpace",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        if node.input[0] not in view.shapes:
            return "its shape is not known"
        n, c, h, w = view.shapes[node.input[0]]
        size = attributes(node)["blocksize"]
        deep = c // size**2
        if attributes(node).get("mode", "DCR") == "DCR":
            split, order = (n, size, size, deep, h, w), (0, 3, 4, 1, 5, 2)
        else:
            split, order = (n, deep, size, size, h, w), (0, 1, 4, 2, 5, 3)
        turned = writer.node("Transpose", reshape(writer, node.input[0], split), perm=order)
        reshape(writer, turned, (n, deep, h * size, w * size), to=node.output[0])
        return None


class SpaceToDepth(Rewrite):
    """The places of a block become the slower part of the channels."""

    operators = ("SpaceToDepth",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        if node.input[0] not in view.shapes:
            return "its shape is not known"
        n, c, h, w = view.shapes[node.input[0]]
        size = attributes(node)["blocksize"]
        split = reshape(writer, node.input[0], (n, c, h // size, size, w // size, size))
        turned = writer.node("Transpose", split, perm=(0, 3, 5, 1, 2, 4))
        reshape(writer, turned, (n, c * size**2, h // size, w // size), to=node.output[0])
        return None


# -- Sequences of tensors that are put together and taken apart at fixed places.


@dataclass(frozen=True)
class _Item:
    """A tensor, or a part of one along an axis, which is then dropped or kept."""

    name: str
    axis: int = 0
    start: int | None = None
    end: int = 0
    kept: bool = True

    def write(self, writer: Writer, to: str | None = None) -> str:
        if self.start is None:
            return writer.node("Identity", self.name, to=to)
        if self.kept:
            return part(writer, self.name, self.start, self.end, self.axis, to=to)
        piece = part(writer, self.name, self.start, self.end, self.axis)
        return writer.node("Squeeze", piece, writer.constant([self.axis], "axes", np.int64), to=to)


class SequenceAt(Rewrite):
    """One tensor of a sequence."""

    operators = ("SequenceAt",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        items, place = _items(node.input[0], view), view.constant(node.input[1])
        if items is None or place is None or not -len(items) <= int(place) < len(items):
            return "what its sequence holds is not fixed"
        items[int(place)].write(writer, to=node.output[0])
        return None


class ConcatFromSequence(Rewrite):
    """All tensors of a sequence, side by side or stacked."""

    operators = ("ConcatFromSequence",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        items = _items(node.input[0], view)
        if not items:
            return "what its sequence holds is not fixed"
        axis, stacked = attributes(node)["axis"], attributes(node).get("new_axis", 0)
        names = [item.write(writer) for item in items]
        if stacked:
            place = writer.constant([axis], "axes", np.int64)
            names = [writer.node("Unsqueeze", name, place) for name in names]
        writer.node("Concat", *names, axis=axis, to=node.output[0])
        return None


def _items(name: str, view: View) -> list[_Item] | None:
    """What a sequence holds, where that can be told from the nodes that made it."""
    maker = view.makers.get(name)
    if maker is None:
        return None
    if maker.op_type == "SequenceConstruct":
        return [_Item(one) for one in maker.input]
    if maker.op_type == "SequenceEmpty":
        return []
    if maker.op_type == "SequenceInsert":
        return _inserted(maker, view)
    return _split(maker, view) if maker.op_type == "SplitToSequence" else None


def _inserted(node: NodeProto, view: View) -> list[_Item] | None:
    items = _items(node.input[0], view)
    place = view.constant(node.input[2]) if given(node, 2) else np.array(len(items or []))
    if items is None or place is None:
        return None
    items.insert(int(place), _Item(node.input[1]))
    return items


def _split(node: NodeProto, view: View) -> list[_Item] | None:
    shape, sizes = view.shapes.get(node.input[0]), np.ones((), np.int64)
    if given(node, 1):
        stored = view.constant(node.input[1])
        if stored is None:
            return None
        sizes = stored
    if shape is None:
        return None
    axis = attributes(node).get("axis", 0) % len(shape)
    kept = bool(attributes(node).get("keepdims", 1)) or given(node, 1) is not None
    if sizes.ndim:
        ends = np.cumsum(sizes)
    else:
        ends = np.minimum(np.arange(0, shape[axis], int(sizes)) + int(sizes), shape[axis])
    starts = [0, *ends[:-1]]
    return [_Item(node.input[0], axis, int(start), int(end), kept) for start, end in zip(starts, ends)]
