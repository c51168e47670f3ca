"""Moves of a random path: nodes that put the elements of a value elsewhere, in the form that its opset has."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Callable

import numpy as np

from .random_scopes import LOCAL, Ref, Scope, Val

MOST_ELEMENTS = 4096


def unsqueeze(scope: Scope, value: Val, axis: int) -> Val:
    shape = (*value.shape[:axis], 1, *value.shape[axis:])
    if scope.build.opset < 13:
        return scope.add("Unsqueeze", [value], value.kind, shape, axes=[axis])
    return scope.add("Unsqueeze", [value, scope.ints(axis)], value.kind, shape)


def squeeze(scope: Scope, value: Val, axis: int, implied: bool = False) -> Val:
    if implied and value.shape.count(1) == 1:
        return scope.add("Squeeze", [value], value.kind, [size for size in value.shape if size != 1])
    shape = (*value.shape[:axis], *value.shape[axis + 1 :])
    if scope.build.opset < 13:
        return scope.add("Squeeze", [value], value.kind, shape, axes=[axis])
    return scope.add("Squeeze", [value, scope.ints(axis)], value.kind, shape)


def cut(scope: Scope, value: Val, axis: int, start: int, stop: int) -> Val:
    shape = (*value.shape[:axis], stop - start, *value.shape[axis + 1 :])
    if scope.build.opset < 10:
        return scope.add("Slice", [value], value.kind, shape, axes=[axis], starts=[start], ends=[stop])
    return scope.add("Slice", [value, scope.ints(start), scope.ints(stop), scope.ints(axis)], value.kind, shape)


def split(scope: Scope, value: Val, axis: int, sizes: Sequence[int]) -> list[Val]:
    outs = [(value.kind, (*value.shape[:axis], size, *value.shape[axis + 1 :])) for size in sizes]
    if scope.build.opset < 13:
        return scope.many("Split", [value], outs, axis=axis, split=list(sizes))
    return scope.many("Split", [value, scope.ints(*sizes)], outs, axis=axis)


def join(scope: Scope, values: Sequence[Val], axis: int) -> Val:
    first = values[0]
    total = sum(one.shape[axis] for one in values)
    shape = (*first.shape[:axis], total, *first.shape[axis + 1 :])
    return scope.add("Concat", list(values), first.kind, shape, axis=axis)


def reshape(scope: Scope, value: Val, shape: Sequence[int], written: Sequence[int] | None = None) -> Val:
    return scope.add("Reshape", [value, scope.ints(*(written or shape))], value.kind, shape)


def transpose(scope: Scope, value: Val, perm: Sequence[int]) -> Val:
    return scope.add("Transpose", [value], value.kind, [value.shape[axis] for axis in perm], perm=list(perm))


# -- random moves


def _identity(scope: Scope, value: Val, dice: random.Random) -> Val:
    return scope.own(value)


def _transpose(scope: Scope, value: Val, dice: random.Random) -> Val:
    perm = list(range(value.rank))
    dice.shuffle(perm)
    same = [value.shape[axis] for axis in perm] == list(value.shape)
    if scope.kind == "function" and same and value.rank > 1 and dice.random() < 0.6:
        turned, plain = list(perm), list(range(value.rank))
        scope.build.tags.add("attribute of a call")
        name = scope.refer(lambda call: plain if call % 2 else turned)
        return scope.add("Transpose", [value], value.kind, value.shape, perm=Ref(f"{name}:7"))
    return transpose(scope, value, perm)


def _reshape(scope: Scope, value: Val, dice: random.Random) -> Val:
    """Merge two axes or cut one; written with 0 for an axis that stays, -1 for one that follows."""
    shape = list(value.shape)
    if len(shape) > 2 or (len(shape) == 2 and dice.random() < 0.3):
        at = dice.randrange(len(shape) - 1)
        shape[at : at + 2] = [shape[at] * shape[at + 1]]
    elif len(shape) < 5:
        at = dice.randrange(len(shape))
        parts = [part for part in (2, 3, 4, 8) if shape[at] % part == 0 and shape[at] > part]
        if parts:
            part = dice.choice(parts)
            shape[at : at + 1] = dice.choice([[part, shape[at] // part], [shape[at] // part, part]])
    written = list(shape)
    for axis in range(min(len(shape), value.rank)):
        if shape[axis] == value.shape[axis] and dice.random() < 0.4:
            written[axis] = 0
    if dice.random() < 0.5:
        written[dice.randrange(len(written))] = -1
    if dice.random() < 0.1 and shape == list(value.shape):
        turned = list(reversed(shape))  # the elements keep their order, the axes get other sizes
        return reshape(scope, value, turned)
    return reshape(scope, value, shape, written)


def _flatten(scope: Scope, value: Val, dice: random.Random) -> Val:
    if scope.build.opset < 9 and value.kind != "float32":
        return value
    axis = dice.randrange(1, value.rank) if value.rank > 1 else 1
    shape = (int(np.prod(value.shape[:axis])), int(np.prod(value.shape[axis:])))
    return scope.add("Flatten", [value], value.kind, shape, axis=axis)


def _ones(scope: Scope, value: Val, dice: random.Random) -> Val:
    ones = [axis for axis, size in enumerate(value.shape) if size == 1]
    if ones and value.rank > 2 and dice.random() < 0.6:
        return squeeze(scope, value, dice.choice(ones), dice.random() < 0.3)
    return unsqueeze(scope, value, dice.randint(0, value.rank)) if value.rank < 5 else value


def _pieces(scope: Scope, value: Val, dice: random.Random, axis: int) -> list[Val]:
    """One axis cut into pieces, by Split or by Slices."""
    size = value.shape[axis]
    if dice.random() < 0.75:
        count = dice.choice([part for part in (2, 3, 4) if size % part == 0] or [1])
        sizes = [size // count] * count
    else:
        first = dice.randrange(1, size)
        sizes = [first, size - first]
    if dice.random() < 0.5:
        if len(set(sizes)) == 1 and len(sizes) > 1 and dice.random() < 0.3 and scope.build.opset < 18:
            outs = [(value.kind, (*value.shape[:axis], one, *value.shape[axis + 1 :])) for one in sizes]
            return scope.many("Split", [value], outs, axis=axis)
        return split(scope, value, axis, sizes)
    ends = np.cumsum([0, *sizes]).tolist()
    return [cut(scope, value, axis, start, stop) for start, stop in zip(ends, ends[1:])]


def _shuffle(scope: Scope, value: Val, dice: random.Random) -> Val:
    """Pieces of an axis put together again, in the same order or in another; some twice, some not at all."""
    axes = [axis for axis, size in enumerate(value.shape) if size > 1]
    if not axes:
        return value
    scope.build.tags.add("shuffle")
    axis = dice.choice(axes)
    pieces = _pieces(scope, value, dice, axis)
    draw = dice.random()
    order = list(range(len(pieces)))
    if draw < 0.55:
        dice.shuffle(order)
    elif draw < 0.65:
        order = [dice.randrange(len(pieces)) for _ in order]
    return join(scope, [pieces[at] for at in order], axis)


def _part(scope: Scope, value: Val, dice: random.Random) -> Val:
    axes = [axis for axis, size in enumerate(value.shape) if size > 4]
    if not axes:
        return value
    axis = dice.choice(axes)
    pieces = _pieces(scope, value, dice, axis)
    return dice.choice(pieces)


def _expand(scope: Scope, value: Val, dice: random.Random) -> Val:
    """Expand to the shape that it has, along an axis of one, or by a new axis in front."""
    if scope.build.opset < 8:
        return value
    shape = list(value.shape)
    ones = [axis for axis, size in enumerate(shape) if size == 1]
    if ones and dice.random() < 0.5:
        shape[dice.choice(ones)] = 2
    elif dice.random() < 0.3 and value.size * 2 <= MOST_ELEMENTS and value.rank < 5:
        shape.insert(0, 2)
    return scope.add("Expand", [value, scope.ints(*shape)], value.kind, shape)


def _gather_rows(scope: Scope, value: Val, dice: random.Random) -> Val:
    """Rows in another order, by the indices of a constant."""
    axis = dice.randrange(value.rank)
    order = list(range(value.shape[axis]))
    if dice.random() < 0.6:
        dice.shuffle(order)
    table = value.rank > 1 and value.kind not in ("int8", "uint8")  # of integers nobody says which number is zero
    doc = "weight slots 0" if table else ""
    return scope.add("Gather", [value, scope.ints(*order)], value.kind, value.shape, axis=axis, doc=doc)


def _reverse(scope: Scope, value: Val, dice: random.Random) -> Val:
    """Backwards, or by twos: elements that stay, in an order that is not stored."""
    if scope.build.opset < 10 or value.rank == 0:
        return value
    axis = dice.randrange(value.rank)
    names = [scope.ints(number) for number in (-1, -(1 << 60), axis if dice.random() < 0.5 else axis - value.rank, -1)]
    return scope.add("Slice", [value, *names], value.kind, value.shape)


def _as_it_is(scope: Scope, value: Val, dice: random.Random) -> Val:
    """Nodes that change nothing: Dropout, CastLike, Tile by one, Pad by nothing."""
    draw = dice.random()
    opset = scope.build.opset
    if draw < 0.4 and value.kind == "float32" and opset >= 7:
        return scope.add("Dropout", [value], value.kind, value.shape)
    if draw < 0.7 and opset >= 15:
        return scope.add("CastLike", [value, value], value.kind, value.shape)
    if opset >= 13 and value.rank and value.kind in ("float32", "int8", "uint8"):
        twice = dice.random() < 0.4 and value.size * 2 <= MOST_ELEMENTS
        shape = (value.shape[0] * (1 + twice), *value.shape[1:])
        return scope.add("Tile", [value, scope.ints(1 + twice, *[1] * (value.rank - 1))], value.kind, shape)
    return scope.own(value)


Move = Callable[[Scope, Val, random.Random], Val]
MOVES: Sequence[tuple[int, Move]] = (
    (2, _identity),
    (5, _transpose),
    (5, _reshape),
    (1, _flatten),
    (3, _ones),
    (7, _shuffle),
    (2, _part),
    (2, _expand),
    (1, _gather_rows),
    (1, _reverse),
    (1, _as_it_is),
)


def move(scope: Scope, value: Val, dice: random.Random) -> Val:
    chosen = dice.choices([each for _, each in MOVES], [weight for weight, _ in MOVES])[0]
    if value.rank == 0 or value.size > MOST_ELEMENTS:
        return value
    return chosen(scope, value, dice)


__all__ = ["LOCAL", "cut", "join", "move", "reshape", "split", "squeeze", "transpose", "unsqueeze"]
