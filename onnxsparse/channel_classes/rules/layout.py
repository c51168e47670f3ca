"""Operators that move numbers without changing them: their labels move along.

The algebra of Reshape: axes are cut into runs of equal size before and after; inside a run the labels are an array over
the axes that carry them, the same along all others, and are read again along the new axes. So heads, groups, shuffles
and what Flatten makes of channels need no rules of their own.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace

import numpy as np

from onnxsparse.channel_classes.tensors import Field, Sizes, Tensor, View, collapsed
from onnxsparse.channel_classes.walk import LARGEST_FIELD, Node, Rule, Walk
from onnxsparse.math.values import Array

SIDE_BY_SIDE = 16
"""Values that are stacked: of more, such as tokens, all have the same channels."""
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
        if [places[axis] for axis in own.axes] != list(moved.axes):
            source = np.arange(own.labels.size).reshape(own.labels.shape)
            walk.labels.keep_copies(own.labels, Field(own.axes, source).moved(places).labels)
        fields.append(moved)
    shape = tuple((tensor.shape or ())[axis] for axis in order)
    flat = frozenset(places[axis] for axis in tensor.flat)
    views = tuple(View(one.tag, tuple(one.axes[axis] for axis in order)) for one in tensor.views)
    return Tensor(shape, tuple(fields), views, uniform=tensor.uniform, flat=flat)


def reshape(walk: Walk, node: Node) -> list[Tensor]:
    """Reshape, Flatten, Squeeze, Unsqueeze, by the shapes before and after."""
    tensor = node.input(0)
    shape = _either(node.shape(), None if tensor is None else _shape_from(node, tensor))
    if tensor is None or tensor.shape is None or shape is None:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    return [reshaped(walk, tensor, shape, node.called, _alike(node))]


def _either(inferred: Sizes | None, own: Sizes | None) -> Sizes | None:
    """What is known of a shape from shape inference, or from what the walk knows of its numbers."""
    if inferred is None or own is None or len(inferred) != len(own):
        return inferred or own
    return tuple(one if size is None else size for size, one in zip(inferred, own))


def _alike(node: Node) -> set[tuple[int, int]]:
    """Axes before and after a Reshape whose sizes are not known, but are the same."""
    before, after = (node.scope.symbols.get(names[0], ()) for names in (node.proto.input, node.proto.output))
    found = {(at, to) for at, one in enumerate(before) for to, other in enumerate(after) if one and one == other}
    sizes = node.numbers(1, "shape") if node.op == "Reshape" and not node.attributes.integer("allowzero") else None
    return found | {(at, at) for at, size in enumerate(sizes or ()) if size == 0}


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
    if node.op == "Squeeze" and node.input(1) is None and None not in sizes:
        return tuple(size for size in sizes if size != 1)
    if node.op == "Flatten" and None not in sizes:
        axis = node.attributes.integer("axis", 1)
        cut = axis + len(sizes) if axis < 0 else axis
        return tuple(int(np.prod([size or 0 for size in part], dtype=np.int64)) for part in (sizes[:cut], sizes[cut:]))
    if node.op == "Reshape" and axes is not None and None not in sizes:
        zero = node.attributes.integer("allowzero", 0) == 0
        wanted = [sizes[at] if size == 0 and zero and at < len(sizes) else size for at, size in enumerate(axes)]
        rest = int(np.prod([size for size in wanted if size != -1 and size is not None], dtype=np.int64))
        whole = int(np.prod([size or 0 for size in sizes], dtype=np.int64))
        return tuple(whole // max(rest, 1) if size == -1 else size for size in wanted)
    return None


def reshaped(walk: Walk, tensor: Tensor, shape: Sizes, called: str, alike: Container[tuple[int, int]] = ()) -> Tensor:
    """The value with other axes over the same numbers; `alike` are axes of unknown size before and after, but equal."""
    before = tensor.shape or ()
    if tensor.uniform:
        return Tensor(shape, uniform=True)
    blocks = _blocks(before, shape, alike)
    if tensor.stored:
        kept = _only_ones(tensor, shape)
        if kept is not None:
            return kept
        tensor = walk.resolved(tensor)
    if blocks is None:
        walk.freeze(tensor, f"the shapes at {called} do not fit together")
        return Tensor(shape)
    before, shape = _solved(before, shape, blocks)
    fields: list[Field] = []
    for own in tensor.fields:
        made = _reread(walk, own, before, shape, blocks, called)
        for other in [one for one in fields if made is not None and set(one.axes) & set(made.axes)]:
            walk.labels.freeze(other.labels, f"two kinds of channels become one axis at {called}")
            fields.remove(other)
        if made is not None:
            fields.append(made)
    return Tensor(shape, tuple(fields))


def _blocks(before: Sizes, after: Sizes, alike: Container[tuple[int, int]]) -> list[Block] | None:
    """Runs of axes that have the same size before and after, as few axes in each as can be; None if they do not fit.

    Sizes that are not known stop a run: what is between the runs at both ends is one. That holds whatever they are,
    since an axis is found by division from the one end, and by the remainder from the other.
    """
    rest = list(range(len(before))), list(range(len(after)))
    alike = _paired(before, after, alike)
    ends: list[list[Block]] = []
    for step in (1, -1):
        found: list[Block] = []
        while True:
            run = _run(before, after, (rest[0][::step], rest[1][::step]), alike)
            if run is None:
                break
            found.append((sorted(run[0]), sorted(run[1])))
            rest = tuple([axis for axis in axes if axis not in held] for axes, held in zip(rest, run))  # type: ignore
        ends.append(found[::step])
    middle = [(rest[0], rest[1])] if rest[0] or rest[1] else []
    sizes = [before[axis] for axis in rest[0]], [after[axis] for axis in rest[1]]
    known = [int(np.prod([1 if size is None else size for size in one], dtype=np.int64)) for one in sizes]
    if None not in (*sizes[0], *sizes[1]) and known[0] != known[1]:
        return None
    return ends[0] + middle + ends[1]


def _solved(before: Sizes, after: Sizes, blocks: Sequence[Block]) -> tuple[Sizes, Sizes]:
    """Sizes with those that the runs around them tell."""
    sizes = list(before), list(after)
    for block in blocks:
        missing = [(side, axis) for side in (0, 1) for axis in block[side] if sizes[side][axis] is None]
        known = [int(np.prod([sizes[side][axis] or 1 for axis in block[side]], dtype=np.int64)) for side in (0, 1)]
        if len(missing) == 1 and block[0] and block[1] and 0 not in (*before, *after):
            side, axis = missing[0]
            if known[1 - side] % known[side] == 0:
                sizes[side][axis] = known[1 - side] // known[side]
    return tuple(sizes[0]), tuple(sizes[1])


def _paired(before: Sizes, after: Sizes, alike: Container[tuple[int, int]]) -> Container[tuple[int, int]]:
    """One unknown size on each side is the same where all others have the same product."""
    if before.count(None) == after.count(None) == 1:
        known = [int(np.prod([size for size in one if size is not None], dtype=np.int64)) for one in (before, after)]
        if known[0] == known[1] != 0:
            return {(before.index(None), after.index(None))}
    return alike


def _run(
    before: Sizes, after: Sizes, rest: tuple[list[int], list[int]], alike: Container[tuple[int, int]]
) -> Block | None:
    """The shortest run of both sides from one end with the same size."""
    if not rest[0] or not rest[1]:
        return None
    one, other = [rest[0][0]], [rest[1][0]]
    sizes = [before[one[0]], after[other[0]]]
    if None in sizes:
        return (one, other) if sizes[0] is sizes[1] and (one[0], other[0]) in alike else None
    while sizes[0] != sizes[1]:
        left = (sizes[0] or 0) < (sizes[1] or 0)
        run, axes, shape = (one, rest[0], before) if left else (other, rest[1], after)
        size = shape[axes[len(run)]] if len(run) < len(axes) else None
        if size is None:
            return None
        run.append(axes[len(run)])
        at = 0 if left else 1
        sizes[at] = (sizes[at] or 0) * size
        if not size and sizes[0] != sizes[1]:
            return None
    return one, other


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
    # An axis of unknown size that stays as it is counts as one element: no label depends on it.
    whole = {axis for axes, made in span if len(axes) == len(made) == 1 for axis in axes if before[axis] is None}
    old = [axis for axes, _ in span for axis in axes]
    new = [axis for _, axes in span for axis in axes]
    kept = {to for axes, made in span if whole & set(axes) for to in made}
    sizes = [1 if axis in whole else before[axis] for axis in old], [1 if axis in kept else after[axis] for axis in new]
    if None in (*sizes[0], *sizes[1]) or 0 in sizes[0]:
        walk.labels.freeze(own.labels, f"the shapes at {called} are not known before it runs")
        return None
    known = tuple([size or 0 for size in one] for one in sizes)
    if int(np.prod(known[0], dtype=np.int64)) > LARGEST_FIELD:
        walk.labels.freeze(own.labels, f"{called} makes too many numbers of its channels")
        return None
    held = own.labels.reshape([size if axis in own.axes else 1 for axis, size in zip(old, known[0])])
    read = _varying(np.broadcast_to(held, known[0]).reshape(known[1]), new)
    if read is None:
        walk.labels.freeze(own.labels, f"{called} makes one row of one channel")
    return read


def _varying(labels: Array, axes: Sequence[int]) -> Field | None:
    """The field over the axes along which the labels differ."""
    for at in range(labels.ndim - 1, -1, -1):
        first = np.take(labels, [0], axis=at)
        if labels.shape[at] == 1 or (labels == first).all():
            labels = first.squeeze(at)
            axes = [*axes[:at], *axes[at + 1 :]]
    return Field(tuple(axes), labels) if axes else None


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
            walk.labels.keep_copies(own.labels, np.take(source, places, axis=at))
            own = Field(own.axes, np.take(own.labels, places, axis=at))
            walk.labels.close(own.labels)  # what is done to this part must not be done to the channels of another
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
    size, count = tensor.size(axis), node.attributes.integer("num_outputs", len(node.proto.output))
    sizes = node.numbers(1, "split")
    if sizes is None and node.input(1) is None and size is not None:
        step = -(-size // count)
        sizes = [max(0, min(step, size - step * at)) for at in range(count)]
    if not _moves_along(tensor, axis):
        rest = [size if at != axis else None for at, size in enumerate(tensor.shape)]
        parts: list[int | None] = [*sizes] if sizes is not None else [None] * count
        return [_cut(tensor, axis, part, tuple(rest)) for part in parts]
    tensor = walk.resolved(tensor)
    if sizes is None:
        fields = walk.freeze_axis(tensor, axis, f"the sizes at {node.called} are not known before it runs")
        rest = [None if at == axis else size for at, size in enumerate(tensor.shape or ())]
        return [Tensor(tuple(rest), fields)] * count
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
    if axes is None and node.input(3) is not None:
        starts = None
    if axes is None:
        axes = list(range(tensor.rank if starts is None else len(starts)))
    axes = [axis % tensor.rank for axis in axes]
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
        return [_by_constants(walk, tensor, axis, indices.numbers.astype(np.int64) % max(size, 1))]
    fields = walk.freeze_axis(tensor, axis, f"{node.called} chooses along it when it runs")
    moved = {at: at if at < axis else at + added for at in range(tensor.rank)}
    return [Tensor(_inserted(tensor.shape or (), axis, indices.shape), tuple(one.moved(moved) for one in fields))]


def _by_constants(walk: Walk, tensor: Tensor, axis: int, indices: Array) -> Tensor:
    """The value with the places that the indices name along an axis, and the axes of the indices in its place."""
    made = chosen(walk, tensor, axis, indices.reshape(-1))
    moved = {at: at if at < axis else at + indices.ndim - 1 for at in range(tensor.rank)}
    fields = []
    for own in made.fields:
        if axis not in own.axes:
            fields.append(own.moved(moved))
            continue
        at = own.index(axis)
        axes = (*own.axes[:at], *range(axis, axis + indices.ndim), *(moved[other] for other in own.axes[at + 1 :]))
        sizes = (*own.labels.shape[:at], *indices.shape, *own.labels.shape[at + 1 :])
        fields.append(Field(axes, own.labels.reshape(sizes)))
    return _without_ones(walk, Tensor(_inserted(made.shape or (), axis, indices.shape), tuple(fields)))


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
    if not tensors or any(one.shape is None for one in tensors):
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
    beside = _side_by_side(tensors, axis)
    if beside is not None:
        return Tensor(shape, (beside,))
    parts: list[Array | None] = []
    others = []
    for tensor in tensors:
        own = tensor.field_on(axis)
        if own is None or None in sizes:
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
    flat = frozenset(at for at in range(len(shape)) if at != axis and all(_flat(one, at) for one in tensors))
    return Tensor(shape, tuple(fields), flat=flat)


def _flat(tensor: Tensor, axis: int) -> bool:
    """Whether all numbers along an axis are equal."""
    return tensor.uniform or axis in tensor.flat


def _side_by_side(tensors: Sequence[Tensor], axis: int) -> Field | None:
    """The channels of few values along an axis of which each index has its own: the states of layers and directions."""
    sizes = [one.size(axis) or SIDE_BY_SIDE for one in tensors]
    if not 1 < sum(sizes) <= SIDE_BY_SIDE or any(len(one.fields) != 1 for one in tensors):
        return None
    owns = [one.fields[0] for one in tensors]
    axes = sorted({axis, *owns[0].axes})
    if any(sorted({axis, *own.axes}) != axes for own in owns) or len(axes) < 2:
        return None
    if any(axis not in own.axes and size > 1 for own, size in zip(owns, sizes)):
        return None
    at = axes.index(axis)
    labels = [own.labels if axis in own.axes else np.expand_dims(own.labels, at) for own in owns]
    if len({one.shape[:at] + one.shape[at + 1 :] for one in labels}) > 1:
        return None
    return Field(tuple(axes), np.concatenate(labels, at))


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
    axes = target.size(0) if target is not None and target.shape else None
    if shape is None and axes is not None and tensor is not None and tensor.shape is not None:
        shape = (None,) * (axes - tensor.rank) + tuple(None if size == 1 else size for size in tensor.shape)
    if tensor is None or tensor.shape is None or shape is None:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    tensor = walk.resolved(tensor)
    more = len(shape) - tensor.rank
    fields = tuple(one.moved({axis: axis + more for axis in one.axes}) for one in tensor.fields)
    flat = frozenset(axis for axis in range(len(shape)) if axis < more or not tensor.wide(axis - more))
    return [Tensor(shape, fields, uniform=tensor.uniform or len(flat) == len(shape), flat=flat)]


def tile(walk: Walk, node: Node) -> list[Tensor]:
    """Tile: copies of a channel move with it."""
    tensor, repeats = node.input(0), node.numbers(1)
    if tensor is None or tensor.shape is None or repeats is None or len(repeats) != tensor.rank:
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
        why = f"the pads at {node.called} are not known before it runs"
        walk.freeze(tensor, why)
        return [Tensor(node.shape() or (None,) * tensor.rank)]
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
        return replace(tensor, shape=shape, uniform=False, flat=tensor.flat - {axis})
    if size is None or mode not in ("constant", "edge", "reflect", "wrap"):
        return Tensor(shape, walk.freeze_axis(tensor, axis, f"{node.called} reads it in a fixed order"))
    kept = np.arange(max(0, -before), size - max(0, -after))
    cut = chosen(walk, tensor, axis, kept)
    ends = max(before, 0), max(after, 0)
    if mode != "constant":
        places = np.pad(np.arange(len(kept)), ends, mode=mode)  # type: ignore[call-overload]
        return replace(chosen(walk, cut, axis, places), shape=shape)
    left, right = (
        Tensor(tuple(end if at == axis else one for at, one in enumerate(shape)), uniform=True) for end in ends
    )
    parts = [part for part, end in ((left, ends[0]), (cut, 1), (right, ends[1])) if end]
    return joined(walk, node, parts, axis)


def _same(names: Iterable[str], rule: Rule) -> dict[tuple[str, str], Rule]:
    return {("", name): rule for name in names}


RULES: dict[tuple[str, str], Rule] = {
    **_same(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), reshape),
    ("", "Transpose"): transpose,
    ("", "Split"): split,
    ("", "Slice"): slice_,
    ("", "Gather"): gather,
    ("", "Concat"): concat,
    ("", "Expand"): expand,
    ("", "Tile"): tile,
    **{(domain, "Pad"): pad for domain in ("", "com.microsoft")},
}  # fmt: skip

__all__ = ["RULES", "chosen", "joined", "reshaped", "transposed"]
