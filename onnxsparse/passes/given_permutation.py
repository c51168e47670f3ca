"""A given permutation in another model: found by names or shapes, and held to the channel classes there.

1. Tensors are found by name, or where none has its name, or too few have, by shape in the order of the graph. A matrix
   may lie the other way round.
2. The moves of all that was found say which channel comes to the place of each one. That has to be an order of each
   class of the model; what else moves with a class follows from the class.
3. What is no such order is refused: it would change the outputs. So is a record of which only a part is found: each of
   its orders has to be that of channels here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxsparse.channel_classes.classes import Channels
from onnxsparse.channel_classes.permutation import METADATA, Move, MovedTensor, Permutation
from onnxsparse.errors import OptionError
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import StoredTensor
from onnxsparse.math.values import Array
from onnxsparse.passes.permute import Moves
from onnxsparse.planning.request import path_of

Orders = dict[int, Array]
SHOWN = 5
"""Names of missing tensors in a message."""


def record_of(source: Any) -> tuple[Permutation, str]:
    """The permutation in a file, in the metadata of a model, or at hand, and what messages call it."""
    if isinstance(source, Permutation):
        return source.checked("the permutation"), "the permutation"
    if isinstance(source, (str, os.PathLike)):
        path = path_of(source, "apply")
        if not path.endswith(".onnx"):
            return Permutation.load(path), path
    where = os.fspath(source) if isinstance(source, (str, os.PathLike)) else "the model of --apply"
    found = recorded(Model.open(source), where)
    if found is None:
        raise OptionError(f"--apply {where}: it records no permutation; pass a model that `permute` wrote")
    return found, where


def files_of(source: Any) -> list[str]:
    """The files that `record_of` reads of a path."""
    if not isinstance(source, (str, os.PathLike)):
        return []
    path = os.fspath(source)
    return Model.open(path).inputs if path.endswith(".onnx") and os.path.isfile(path) else [path]


def recorded(model: Model, where: str) -> Permutation | None:
    """What the metadata of a model says has moved in it."""
    text = model.metadata.get(METADATA)
    return None if text is None else Permutation.unpacked(text, where, model.file_size)


@dataclass(frozen=True, eq=False)
class Applied:
    """The order of each class that a record means, and its tensors that the model has not."""

    orders: Orders
    left: tuple[str, ...]


def applied_to(channels: Channels, permutation: Permutation, where: str) -> Applied:
    """What a record means in a model; an error where that is no order of its classes, or only a part is there."""
    matched = _matched(channels, permutation, where)
    orders, missing = _meant(channels, permutation, matched, where)
    if missing:  # an exporter may keep some names: those of biases, but not of the matrices that it transposed
        left = [permutation.tensors[name] for name in _left(permutation, matched)]
        matched = {**matched, **_in_order([one for one in channels.by_tensor if one not in matched], left)}
        orders, missing = _meant(channels, permutation, matched, where)
    if missing:
        listed = ", ".join(f"'{name}'" for name in missing[:SHOWN])
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        raise OptionError(
            f"{where}: the model has only a part of what it moves; neither these are here nor anything in their order: "
            f"{listed}{more}; apply it to a model with the same layers"
        )
    return Applied(orders, _left(permutation, matched))


def _meant(
    channels: Channels, permutation: Permutation, matched: Mapping[StoredTensor, MovedTensor], where: str
) -> tuple[Orders, list[str]]:
    """The order of each class that the moves of these tensors mean, and what of the record moves nothing here."""
    orders = _orders(channels, _new_channels(channels, matched, where), where)
    moves = moves_of(channels, orders)
    for tensor, one in matched.items():
        made = MovedTensor(one.name, tensor.shape, tuple(moves.get(tensor, ())))
        if not alike(one, made):
            raise OptionError(f"{where}: its moves of '{tensor.name}' do not fit those of the layers around it here")
    left = [permutation.tensors[name] for name in _left(permutation, matched)]
    return orders, _missing(moves, matched, left)


def _missing(moves: Moves, matched: Mapping[StoredTensor, MovedTensor], left: Sequence[MovedTensor]) -> list[str]:
    """Tensors of a record whose order nothing has here, neither tensors of the same names nor others."""
    known = {move.order.tobytes() for one in matched.values() for move in one.moves}
    others = [tensor for tensor in moves if tensor not in matched]
    missing = []
    for one in left:
        if {move.order.tobytes() for move in one.moves} <= known:
            continue
        same = next((tensor for tensor in others if _moves_as(one, tensor, moves[tensor])), None)
        if same is None:
            missing.append(one.name)
        else:
            others.remove(same)
    return missing


def _moves_as(one: MovedTensor, tensor: StoredTensor, moves: Sequence[Move]) -> bool:
    """Whether a tensor moves as a record says of another one."""
    fitting = _turned(one, tensor)
    return fitting is not None and alike(fitting, MovedTensor(one.name, tensor.shape, tuple(moves)))


def moves_of(channels: Channels, orders: Mapping[int, Array]) -> Moves:
    found = channels.rearranged(orders)
    return {tensor: [Move(tuple(axes), order) for axes, order in moves] for tensor, moves in found.items()}


def _matched(channels: Channels, permutation: Permutation, where: str) -> dict[StoredTensor, MovedTensor]:
    """Which tensor of the model each one of the record is: by name, or where none has its name, in order by shape."""
    names = {member.name: member.tensor for member in channels.members}
    found: dict[StoredTensor, MovedTensor] = {}
    for name, one in permutation.tensors.items():
        if name in names:
            fitting = _turned(one, names[name])
            if fitting is None:
                raise OptionError(
                    f"{where}: it moves '{name}' of shape {list(one.shape)}, here it has {list(names[name].shape)}; "
                    "apply it to a model with the same layers"
                )
            found[names[name]] = fitting
    found = found or _in_order(list(channels.by_tensor), list(permutation.tensors.values()))
    if not found and permutation:
        raise OptionError(
            f"{where}: none of its {len(permutation.tensors)} tensors is in the model, by name or by shape"
        )
    return found


def _left(permutation: Permutation, matched: Mapping[StoredTensor, MovedTensor]) -> tuple[str, ...]:
    known = {one.name for one in matched.values()}
    return tuple(name for name in permutation.tensors if name not in known)


def _in_order(tensors: Sequence[StoredTensor], wanted: Sequence[MovedTensor]) -> dict[StoredTensor, MovedTensor]:
    """Tensors of both in the order of the graph, where as many have each shape."""
    found: dict[StoredTensor, MovedTensor] = {}
    have: dict[tuple[int, ...], list[StoredTensor]] = {}
    for tensor in tensors:
        have.setdefault(tuple(sorted(tensor.shape)), []).append(tensor)
    need: dict[tuple[int, ...], list[MovedTensor]] = {}
    for one in wanted:
        need.setdefault(tuple(sorted(one.shape)), []).append(one)
    for shape, some in need.items():
        if len(some) == len(have.get(shape, ())):
            for one, tensor in zip(some, have[shape]):
                fitting = _turned(one, tensor)
                if fitting is not None:
                    found[tensor] = fitting
    return found


def _turned(one: MovedTensor, tensor: StoredTensor) -> MovedTensor | None:
    """The moves for a tensor of the same shape, or for a matrix that is stored the other way round."""
    if one.shape == tensor.shape:
        return one
    if len(one.shape) == 2 and one.shape[::-1] == tensor.shape and all(len(move.axes) == 1 for move in one.moves):
        moves = tuple(Move((1 - move.axes[0],), move.order) for move in one.moves)
        return MovedTensor(one.name, tensor.shape, moves)
    return None


def _new_channels(channels: Channels, matched: Mapping[StoredTensor, MovedTensor], where: str) -> dict[int, int]:
    """The channel that comes to the place of each one, as the moves of all tensors say."""
    new: dict[int, int] = {}
    for tensor, one in matched.items():
        for member in channels.by_tensor.get(tensor, ()):
            labels = member.labels.reshape(-1)
            moved = _moved_labels(one, member.axes, member.labels)
            if moved is None:
                continue
            for old, now in zip(labels.tolist(), moved.reshape(-1).tolist()):
                if new.setdefault(old, now) != now:
                    raise OptionError(
                        f"{where}: its moves of '{tensor.name}' do not fit those of the layers around it here"
                    )
    return {old: now for old, now in new.items() if old != now}


def _moved_labels(one: MovedTensor, axes: tuple[int, ...], labels: Array) -> Array | None:
    """Labels over some axes of a tensor after its moves along these; None where a move reaches beyond them."""
    order = sorted(range(len(axes)), key=axes.__getitem__)
    kept = [axes[at] for at in order]
    array = labels.transpose(order)
    for move in one.moves:
        if not set(move.axes) & set(kept):
            continue
        if not set(move.axes) <= set(kept):
            return None
        array = Move(tuple(kept.index(axis) for axis in move.axes), move.order)(array)
    return array.transpose(np.argsort(order))


def _orders(channels: Channels, new: Mapping[int, int], where: str) -> Orders:
    """The order of each class; what moves has to be in one, and to stay in it."""
    orders: Orders = {}
    left = dict(new)
    for one in channels.classes:
        own = one.channels.tolist()
        wanted = np.array([left.pop(channel, channel) for channel in own])
        if np.array_equal(wanted, one.channels):
            continue
        if not np.array_equal(np.sort(wanted), one.channels):
            raise OptionError(f"{where}: it takes channels of '{one.members[0].name}' to where others are here")
        orders[one.number] = np.searchsorted(one.channels, wanted)
    if left:
        channel = next(iter(left))
        member = next(one for one in channels.members if (one.labels == channel).any())
        why = channels.reasons.get(channel) or channels.why(member)
        raise OptionError(
            f"{where}: it moves channels of '{member.name}' that stay where they are in this model: {why}"
        )
    return orders


def alike(one: MovedTensor, other: MovedTensor) -> bool:
    """Whether both make the same of a tensor."""
    if one.shape != other.shape:
        return False
    axes = sorted({axis for move in (*one.moves, *other.moves) for axis in move.axes})
    places = np.arange(int(np.prod([one.shape[axis] for axis in axes], dtype=np.int64)))
    shape = [size if axis in axes else 1 for axis, size in enumerate(one.shape)]
    first, second = (MovedTensor("", tuple(shape), each.moves)(places.reshape(shape)) for each in (one, other))
    return bool(np.array_equal(first, second))


__all__ = ["Applied", "Orders", "alike", "applied_to", "files_of", "moves_of", "record_of", "recorded"]
