"""Operators that move numbers without changing them: their labels move along.

The algebra of Reshape: axes are cut into runs of equal size before and after; inside a run the labels are an array over
the axes that carry them, the same along all others, and are read again along the new axes. So heads, groups, shuffles
and what Flatten makes of channels need no rules of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from onnxsparse.channels.labels import occurrences
from onnxsparse.channels.tensors import Field, Sizes, Tensor, View, collapsed
from onnxsparse.channels.walk import LARGEST_FIELD, Node, Rule, Walk
from onnxsparse.math.values import Array

Block = tuple[list[int], list[int]]


# -- The same numbers along other axes.


def transpose(walk: Walk, node: Node) -> list[Tensor]:
    tensor = node.input(0)
    if tensor is None or tensor.shape is None:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    order = node.attributes.integers("perm") or list(range(tensor.rank))[::-1]
    return [transposed(walk, tensor, order)]


def transposed(walk: Walk, tensor: Tensor, order: Sequence[int]) -> Tensor:
    places = {axis: at for at, axis in enumerate(order)}
    fields = []
    for own in tensor.fields:
        moved = own.moved(places)
        source = np.arange(own.labels.size).reshape(own.labels.shape)
        demand_regular(walk, own.labels, Field(own.axes, source).moved(places).labels)
        fields.append(moved)
    shape = tuple((tensor.shape or ())[axis] for axis in order)
    views = tuple(View(one.tag, tuple(one.axes[axis] for axis in order)) for one in tensor.views)
    return Tensor(shape, tuple(fields), views, uniform=tensor.uniform)


def demand_regular(walk: Walk, labels: Array, places: Array) -> None:
    """Where labels are repeated, what is moved must take the same copies of each, in the same order.

    A slice of what Flatten made may hold the first pixel of one channel and the second of another: these cannot change
    places, although their channels could.
    """
    flat = walk.labels.find(labels).reshape(-1)
    if len(np.unique(flat)) == len(flat):
        return
    copies, taken = occurrences(flat)[places.reshape(-1)], flat[places.reshape(-1)]
    order = np.argsort(taken, kind="stable")
    counts = np.unique(taken, return_counts=True)[1]
    regular = len(set(counts.tolist())) <= 1 and (
        not len(counts) or (copies[order].reshape(len(counts), -1) == copies[order][: counts[0]]).all()
    )
    if not regular:
        walk.labels.freeze(np.unique(taken), "only some of the numbers of each channel go on, not the same ones")


def reshape(walk: Walk, node: Node) -> list[Tensor]:
    """Reshape, Flatten, Squeeze, Unsqueeze, by the shapes before and after."""
    tensor = node.input(0)
    shape = node.shape() or (None if tensor is None else _shape_from(node, tensor))
    if tensor is None or tensor.shape is None or shape is None:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    return [reshaped(walk, tensor, shape, node.called)]


def _shape_from(node: Node, tensor: Tensor) -> Sizes | None:
    """The shape that a Squeeze, Unsqueeze or Reshape says itself, where shape inference knows none."""
    axes = node.numbers(1, "axes" if node.op != "Reshape" else "shape")
    sizes = list(tensor.shape or ())
    if node.op == "Unsqueeze" and axes is not None:
        rank = len(sizes) + len(axes)
        held = iter(sizes)
        places = {axis % rank for axis in axes}
        return tuple(1 if at in places else next(held) for at in range(rank))
    if node.op == "Squeeze" and axes is not None:
        gone = {axis % max(len(sizes), 1) for axis in axes}
        return tuple(size for at, size in enumerate(sizes) if at not in gone)
    if node.op == "Reshape" and axes is not None and None not in sizes:
        zero = node.attributes.integer("allowzero", 0) == 0
        wanted = [sizes[at] if size == 0 and zero and at < len(sizes) else size for at, size in enumerate(axes)]
        rest = int(np.prod([size for size in wanted if size != -1 and size is not None], dtype=np.int64))
        whole = int(np.prod([size or 0 for size in sizes], dtype=np.int64))
        return tuple(whole // max(rest, 1) if size == -1 else size for size in wanted)
    return None


def reshaped(walk: Walk, tensor: Tensor, shape: Sizes, called: str) -> Tensor:
    """The value with other axes over the same numbers."""
    before = tensor.shape or ()
    if tensor.uniform:
        return Tensor(shape, uniform=True)
    blocks = _blocks(before, shape)
    if tensor.stored:
        kept = _only_ones(tensor, shape)
        if kept is not None:
            return kept
        tensor = walk.resolved(tensor)
    if blocks is None:
        walk.freeze(tensor, f"the shapes at {called} are not known before it runs")
        return Tensor(shape)
    fields: list[Field] = []
    for own in tensor.fields:
        made = _reread(walk, own, before, shape, blocks, called)
        for other in [one for one in fields if made is not None and set(one.axes) & set(made.axes)]:
            walk.labels.freeze(other.labels, f"two kinds of channels become one axis at {called}")
            fields.remove(other)
        if made is not None:
            fields.append(made)
    return Tensor(shape, tuple(fields))


def _blocks(before: Sizes, after: Sizes) -> list[Block] | None:
    """Runs of axes that have the same size before and after, as few axes in each as can be; None if not known.

    A size that is not known goes with one that is not known either, at the same place from one of the ends.
    """
    if None in before or None in after:
        return _unknown_blocks(before, after)
    blocks: list[Block] = []
    left, right = 0, 0
    while left < len(before) or right < len(after):
        one, other = [left], [right]
        if left == len(before) or right == len(after):
            blocks.append((list(range(left, len(before))), list(range(right, len(after)))))
            break
        sizes = [before[left] or 0, after[right] or 0]
        left, right = left + 1, right + 1
        while sizes[0] != sizes[1]:
            if sizes[0] < sizes[1]:
                if left == len(before):
                    return None
                sizes[0] *= before[left] or 0
                one.append(left)
                left += 1
            else:
                if right == len(after):
                    return None
                sizes[1] *= after[right] or 0
                other.append(right)
                right += 1
        blocks.append((one, other))
    return blocks


def _unknown_blocks(before: Sizes, after: Sizes) -> list[Block] | None:
    """Equal axes at both ends stand by themselves; what is between them is one run."""
    lead = 0
    while lead < min(len(before), len(after)) and before[lead] == after[lead]:
        lead += 1
    trail = 0
    while trail < min(len(before), len(after)) - lead and before[-1 - trail] == after[-1 - trail]:
        trail += 1
    middle = list(range(lead, len(before) - trail)), list(range(lead, len(after) - trail))
    inside = [before[axis] for axis in middle[0]] + [after[axis] for axis in middle[1]]
    if middle[0] and middle[1] and None in inside and sum(size is None for size in inside) > 2:
        return None
    blocks: list[Block] = [([axis], [axis]) for axis in range(lead)]
    if middle[0] or middle[1]:
        blocks.append(middle)
    pairs = zip(range(len(before) - trail, len(before)), range(len(after) - trail, len(after)))
    return blocks + [([one], [other]) for one, other in pairs]


def _only_ones(tensor: Tensor, shape: Sizes) -> Tensor | None:
    """The view of a stored tensor where only axes of one element come or go."""
    before = tensor.shape or ()
    places = [axis for axis, size in enumerate(before) if size != 1]
    wanted = [axis for axis, size in enumerate(shape) if size != 1]
    if [before[axis] for axis in places] != [shape[axis] for axis in wanted]:
        return None
    source: dict[int, int] = dict(zip(wanted, places))
    views = tuple(
        View(one.tag, tuple(one.axes[source[axis]] if axis in source else None for axis in range(len(shape))))
        for one in tensor.views
    )
    return replace(tensor, shape=shape, views=views, numbers=None)


def _reread(walk: Walk, own: Field, before: Sizes, after: Sizes, blocks: Sequence[Block], called: str) -> Field | None:
    """The labels of a field along the new axes."""
    touched = [at for at, (axes, _) in enumerate(blocks) if set(axes) & set(own.axes)]
    span = blocks[touched[0] : touched[-1] + 1]
    straight = all(len([size for size in (before[axis] for axis in axes) if size != 1]) <= 1 for axes, _ in span)
    if straight and all(len([1 for axis in axes if after[axis] != 1]) <= 1 for _, axes in span):
        places = {}
        for axes, made in span:
            wide, wanted = [axis for axis in axes if before[axis] != 1], [axis for axis in made if after[axis] != 1]
            if wide and wanted:
                places[wide[0]] = wanted[0]
        if all(axis in places for axis in own.axes):
            return own.moved(places)
    old = [axis for axes, _ in span for axis in axes]
    new = [axis for _, axes in span for axis in axes]
    sizes = _filled([before[axis] for axis in old], [after[axis] for axis in new])
    if sizes is None or int(np.prod(sizes[0], dtype=np.int64)) > LARGEST_FIELD:
        walk.labels.freeze(own.labels, f"the shapes at {called} are not known before it runs")
        return None
    spread = np.broadcast_to(
        own.labels.reshape([size if axis in own.axes else 1 for axis, size in zip(old, sizes[0])]), sizes[0]
    ).reshape(sizes[1])
    read = _varying(spread, new)
    if read is None:  # one channel, all of it
        walk.labels.freeze(own.labels, f"{called} makes one row of one channel")
    return read


def _filled(before: Sequence[int | None], after: Sequence[int | None]) -> tuple[list[int], list[int]] | None:
    """Sizes on both sides, where at most one on each is not known."""
    known = [int(np.prod([size for size in sizes if size is not None], dtype=np.int64)) for sizes in (before, after)]
    missing = [sum(size is None for size in sizes) for sizes in (before, after)]
    if missing == [0, 0]:
        return ([size or 0 for size in before], [size or 0 for size in after]) if known[0] == known[1] else None
    if missing != [1, 1] and missing != [0, 1] and missing != [1, 0]:
        return None
    # Whatever the unknown size is, it is a multiple of this: labels do not depend on it where it is the outermost.
    whole = int(np.lcm(known[0], known[1])) if known[0] and known[1] else 0
    if missing[0] == 0:
        whole = known[0]
    if missing[1] == 0:
        whole = known[1]
    if not whole or whole % known[0] or whole % known[1]:
        return None
    return (
        [whole // known[0] if size is None else size for size in before],
        [whole // known[1] if size is None else size for size in after],
    )


def _varying(labels: Array, axes: Sequence[int]) -> Field | None:
    """The field over the axes along which the labels differ."""
    for at in range(labels.ndim - 1, -1, -1):
        first = np.take(labels, [0], axis=at)
        if labels.shape[at] == 1 or (labels == first).all():
            labels = first.squeeze(at)
            axes = [*axes[:at], *axes[at + 1 :]]
    return Field(tuple(axes), labels) if axes else None


def depth_to_space(walk: Walk, node: Node) -> list[Tensor]:
    """DepthToSpace and SpaceToDepth, as the Reshape, Transpose and Reshape that define them."""
    tensor, block = node.input(0), node.attributes.integer("blocksize")
    if tensor is None or tensor.rank != 4 or None in (tensor.shape or ())[1:]:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    n, c, h, w = (size or 1 for size in tensor.shape or ())
    if node.op == "SpaceToDepth":
        cut = reshaped(walk, tensor, (n, c, h // block, block, w // block, block), node.called)
        turned = transposed(walk, cut, (0, 3, 5, 1, 2, 4))
        return [reshaped(walk, turned, (n, c * block * block, h // block, w // block), node.called)]
    inner = c // (block * block)
    columns_first = node.attributes.text("mode", "DCR") == "CRD"
    cut_shape = (n, inner, block, block, h, w) if columns_first else (n, block, block, inner, h, w)
    order = (0, 1, 4, 2, 5, 3) if columns_first else (0, 3, 4, 1, 5, 2)
    turned = transposed(walk, reshaped(walk, tensor, cut_shape, node.called), order)
    # What lies beside each other afterwards is no channel: the copies of one channel move together.
    fields = []
    for own in turned.fields:
        beside = [axis for axis in own.axes if axis != 1]
        if 1 in own.axes:
            fields.append(Field((1,), collapsed(walk.labels, own, beside)))
        else:
            walk.labels.freeze(own.labels, f"{node.called} reads it in a fixed order")
    return [reshaped(walk, Tensor(turned.shape, tuple(fields)), (n, inner, h * block, w * block), node.called)]


# -- Some of the numbers, or more of them.


def chosen(walk: Walk, tensor: Tensor, axis: int, places: Array) -> Tensor:
    """The value with only these places along an axis, in this order.

    What is cut out is a closed set: it may be changed by itself before it meets the rest again.
    """
    fields = []
    for own in tensor.fields:
        if axis in own.axes:
            source = np.arange(own.labels.size).reshape(own.labels.shape)
            at = own.index(axis)
            demand_regular(walk, own.labels, np.take(source, places, axis=at))
            own = Field(own.axes, np.take(own.labels, places, axis=at))
            walk.labels.close(own.labels)
        fields.append(own)
    sizes = [len(places) if at == axis else size for at, size in enumerate(tensor.shape or ())]
    made = Tensor(tuple(sizes), tuple(fields))
    return _without_ones(walk, made)


def _without_ones(walk: Walk, tensor: Tensor) -> Tensor:
    """Fields have no axes of one element; a channel that was taken alone stays where it was taken from."""
    fields = []
    for own in tensor.fields:
        wide = [axis for axis, size in zip(own.axes, own.labels.shape) if size != 1]
        if wide:
            fields.append(Field(tuple(wide), own.labels.reshape([size for size in own.labels.shape if size != 1])))
        else:
            walk.labels.freeze(own.labels, "one of its channels is taken alone")
    return replace(tensor, fields=tuple(fields))


def split(walk: Walk, node: Node) -> list[Tensor]:
    tensor = node.input(0)
    if tensor is None or tensor.shape is None:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    axis = node.attributes.integer("axis", 0) % tensor.rank
    size, count = tensor.size(axis), len(node.proto.output)
    sizes = node.numbers(1, "split")
    if sizes is None and node.input(1) is None and size is not None:
        step = -(-size // count)
        sizes = [max(0, min(step, size - step * at)) for at in range(count)]
    if not _moves_along(tensor, axis):
        rest = [size if at != axis else None for at, size in enumerate(tensor.shape)]
        parts: list[int | None] = [*sizes] if sizes is not None else [None] * count
        return [_cut(tensor, axis, part, tuple(rest)) for part in parts]
    if sizes is None:
        walk.freeze_axis(walk.resolved(tensor), axis, f"the sizes at {node.called} are not known before it runs")
        return [Tensor(shape) for shape in node.shapes]
    tensor = walk.resolved(tensor)
    bounds = np.cumsum([0, *sizes])
    return [chosen(walk, tensor, axis, np.arange(start, stop)) for start, stop in zip(bounds, bounds[1:])]


def _moves_along(tensor: Tensor, axis: int) -> bool:
    return tensor.stored or tensor.field_on(axis) is not None


def _cut(tensor: Tensor, axis: int, part: int | None, rest: Sizes) -> Tensor:
    shape = tuple(part if at == axis else size for at, size in enumerate(rest))
    return Tensor(shape, tensor.fields, uniform=tensor.uniform)


def slice_(walk: Walk, node: Node) -> list[Tensor]:
    """Slice with constant bounds; along axes where nothing moves with any bounds."""
    tensor = node.input(0)
    if tensor is None or tensor.shape is None:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    tensor = walk.resolved(tensor)
    starts, ends = node.numbers(1, "starts"), node.numbers(2, "ends")
    axes = node.numbers(3, "axes")
    if axes is None and (node.input(3) is not None or starts is None):
        axes = list(range(tensor.rank))
    axes = [axis % tensor.rank for axis in axes or range(len(starts or ()))]
    steps = node.numbers(4) if node.input(4) is not None else [1] * len(axes)
    made = tensor
    for at, axis in enumerate(axes):
        if not _moves_along(made, axis):
            made = _cut(made, axis, None, made.shape or ())
            continue
        size = made.size(axis)
        if starts is None or ends is None or steps is None or size is None:
            made = Tensor(made.shape, walk.freeze_axis(made, axis, f"the bounds at {node.called} are not known"))
            made = _cut(made, axis, None, made.shape or ())
            continue
        made = chosen(walk, made, axis, np.arange(size)[_bounded(starts[at], ends[at], steps[at], size)])
    return [replace(made, shape=node.shape() or made.shape)]


def _bounded(start: int, end: int, step: int, size: int) -> slice:
    """The bounds of ONNX, which may lie far outside, as those of Python."""
    low = max(min(start, size), -size - 1)
    high = max(min(end, size), -size - 1)
    return slice(low, None if step < 0 and high < -size else high, step)


def gather(walk: Walk, node: Node) -> list[Tensor]:
    """Gather: with constant indices a choice; else it reads a table in its order, and what lies beside goes on."""
    tensor, indices = node.input(0), node.input(1)
    if tensor is None or indices is None or tensor.shape is None or indices.shape is None:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    axis, added = node.attributes.integer("axis", 0) % tensor.rank, indices.rank - 1
    size = tensor.size(axis)
    if indices.fields or (indices.stored and indices.numbers is None):
        walk.freeze(indices, f"{node.called} reads it in a fixed order")
    if tensor.stored and indices.numbers is None:
        for view in tensor.views:
            row = view.axes[axis]
            if row is not None:
                walk.stored[view.tag].block(row, f"{node.called} chooses along it when it runs")
        return [_table(tensor, axis, indices.shape)]
    tensor = walk.resolved(tensor)
    if indices.numbers is not None and size is not None and tensor.field_on(axis) is not None:
        places = indices.numbers.reshape(-1).astype(np.int64) % max(size, 1)
        made = chosen(walk, tensor, axis, places)
        return [reshaped(walk, made, _inserted(made.shape or (), axis, indices.shape), node.called)]
    fields = walk.freeze_axis(tensor, axis, f"{node.called} chooses along it when it runs")
    moved = {at: at if at < axis else at + added for at in range(tensor.rank)}
    return [Tensor(_inserted(tensor.shape or (), axis, indices.shape), tuple(one.moved(moved) for one in fields))]


def _inserted(shape: Sizes, axis: int, indices: Sizes) -> Sizes:
    return (*shape[:axis], *indices, *shape[axis + 1 :])


def _table(tensor: Tensor, axis: int, indices: Sizes) -> Tensor:
    """Rows of a stored table, one for each index: nothing moves along the axis that they are chosen from."""
    views = tuple(
        View(one.tag, (*one.axes[:axis], *[None] * len(indices), *one.axes[axis + 1 :])) for one in tensor.views
    )
    return Tensor(_inserted(tensor.shape or (), axis, indices), views=views)


def concat(walk: Walk, node: Node) -> list[Tensor]:
    """Concat: the labels of all inputs one after the other; along the other axes they meet."""
    tensors = [one for one in node.inputs if one is not None]
    if not tensors or any(one.shape is None or None in one.shape[:0] for one in tensors):
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    rank = tensors[0].rank
    axis = node.attributes.integer("axis", 1) % max(rank, 1)
    return [joined(walk, node, [walk.resolved(one) for one in tensors], axis)]


def joined(walk: Walk, node: Node, tensors: Sequence[Tensor], axis: int) -> Tensor:
    sizes = [one.size(axis) for one in tensors]
    shape = tuple(
        (sum(size or 0 for size in sizes) if None not in sizes else None) if at == axis else size
        for at, size in enumerate(tensors[0].shape or ())
    )
    parts: list[Array | None] = []
    others = []
    for tensor, size in zip(tensors, sizes):
        own = tensor.field_on(axis)
        if own is None or size is None:
            if own is not None:
                walk.labels.freeze(own.labels, f"the shapes at {node.called} are not known before it runs")
            parts.append(None)
            others.append(replace(tensor, fields=tuple(one for one in tensor.fields if one is not own)))
            continue
        rest = [other for other in own.axes if other != axis]
        parts.append(collapsed(walk.labels, own, rest))
        others.append(replace(tensor, fields=tuple(one for one in tensor.fields if one is not own)))
    fields = list(walk.merged(others, node))
    if any(part is not None for part in parts) and None not in sizes:
        whole = [_standing(walk, size or 0) if part is None else part for part, size in zip(parts, sizes)]
        fields.append(Field((axis,), np.concatenate(whole)))
    return Tensor(shape, tuple(fields), uniform=False)


def _standing(walk: Walk, size: int) -> Array:
    """Labels of places that nothing moves."""
    labels = walk.labels.fresh([size])
    walk.labels.freeze(labels, "it comes from where nothing may move")
    return labels


def expand(walk: Walk, node: Node) -> list[Tensor]:
    """Expand: broadcasting; axes of one element stay without a field."""
    tensor, shape = node.input(0), node.shape()
    target = node.input(1)
    if shape is None and target is not None and target.numbers is not None and tensor is not None:
        sizes = [int(size) for size in target.numbers.reshape(-1)]
        rank = max(len(sizes), tensor.rank)
        one = [1] * (rank - len(sizes)) + sizes
        other = [1] * (rank - tensor.rank) + list(tensor.shape or ())
        shape = tuple(a if b == 1 else b for a, b in zip(one, other))
    if tensor is None or tensor.shape is None or shape is None:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    if tensor.uniform:
        return [Tensor(shape, uniform=True)]
    tensor = walk.resolved(tensor)
    more = len(shape) - tensor.rank
    fields = tuple(one.moved({axis: axis + more for axis in one.axes}) for one in tensor.fields)
    return [Tensor(shape, fields)]


def tile(walk: Walk, node: Node) -> list[Tensor]:
    """Tile: copies of a channel move with it."""
    tensor, repeats = node.input(0), node.numbers(1)
    if tensor is None or tensor.shape is None or repeats is None:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    tensor = walk.resolved(tensor)
    fields = tuple(Field(one.axes, np.tile(one.labels, [repeats[axis] for axis in one.axes])) for one in tensor.fields)
    shape = tuple(None if size is None else size * times for size, times in zip(tensor.shape or (), repeats))
    return [Tensor(shape, fields, uniform=tensor.uniform)]


def pad(walk: Walk, node: Node) -> list[Tensor]:
    """Pad: along channels the new places stay where they are; a mode that mirrors is a choice."""
    tensor, pads = node.input(0), node.numbers(1, "pads")
    if tensor is None or tensor.shape is None:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    tensor = walk.resolved(tensor)
    axes = node.numbers(3) if node.input(3) is not None else list(range(tensor.rank))
    if pads is None or axes is None:
        kept = tensor
        for own in tensor.fields:
            walk.labels.freeze(own.labels, f"the pads at {node.called} are not known before it runs")
            kept = Tensor(tensor.shape)
        return [replace(kept, shape=node.shape() or (None,) * tensor.rank)]
    mode = node.attributes.text("mode", "constant")
    for at, axis in enumerate(axes):
        before, after = pads[at], pads[at + len(axes)]
        tensor = _padded(walk, node, tensor, axis % tensor.rank, before, after, mode)
    return [tensor]


def _padded(walk: Walk, node: Node, tensor: Tensor, axis: int, before: int, after: int, mode: str) -> Tensor:
    size, own = tensor.size(axis), tensor.field_on(axis)
    shape = tuple(
        (None if one is None else one + before + after) if at == axis else one
        for at, one in enumerate(tensor.shape or ())
    )
    if (not before and not after) or own is None:
        return replace(tensor, shape=shape, uniform=False)
    if size is None or mode not in ("constant", "edge", "reflect", "wrap"):
        return Tensor(shape, walk.freeze_axis(tensor, axis, f"{node.called} reads it in a fixed order"))
    kept = np.arange(max(0, -before), size - max(0, -after))
    cut = chosen(walk, tensor, axis, kept)
    ends = max(before, 0), max(after, 0)
    if mode != "constant":
        places = np.pad(np.arange(len(kept)), ends, mode=mode)  # type: ignore[call-overload]
        return replace(chosen(walk, cut, axis, places), shape=shape)
    left, right = (Tensor(tuple(end if at == axis else one for at, one in enumerate(shape))) for end in ends)
    parts = [part for part, end in ((left, ends[0]), (cut, 1), (right, ends[1])) if end]
    return joined(walk, node, parts, axis)


def spatial(walk: Walk, node: Node) -> list[Tensor]:
    """Pooling, Resize, GridSample and the like: each channel by itself, whatever happens along the axes after it."""
    tensor = node.input(0)
    if tensor is None or tensor.shape is None:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    tensor = walk.resolved(tensor)
    for axis in range(2, tensor.rank):
        if tensor.field_on(axis) is not None:
            tensor = replace(tensor, fields=walk.freeze_axis(tensor, axis, f"{node.called} reads it in a fixed order"))
    shape = node.shape() or (*tensor.shape[:2], *[None] * (tensor.rank - 2)) if tensor.shape else node.shape()
    results = [Tensor(shape, tensor.fields)]
    return results + [Tensor(one) for one in node.shapes[1:]]


def _same(names: Iterable[str], rule: Rule) -> dict[tuple[str, str], Rule]:
    return {("", name): rule for name in names}


RULES: dict[tuple[str, str], Rule] = {
    **_same(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), reshape),
    **_same(("DepthToSpace", "SpaceToDepth"), depth_to_space),
    **_same(
        (
            "MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", "Resize",
            "Upsample",
        ),
        spatial,
    ),
    ("", "Transpose"): transpose,
    ("", "Split"): split,
    ("", "Slice"): slice_,
    ("", "Gather"): gather,
    ("", "Concat"): concat,
    ("", "Expand"): expand,
    ("", "Tile"): tile,
    ("", "Pad"): pad,
}  # fmt: skip

__all__ = ["RULES", "chosen", "joined", "reshaped", "transposed"]
