"""The record of a permutation: what moved in each tensor, as a file and in a model's metadata, and its inverse.

1. A move puts the numbers along some axes of a tensor into another order: over these axes, read as one, place i has the
   numbers from place `order[i]`. Moves of one tensor are made one after the other.
2. Tensors have the names that reports call them by: that of the initializer, behind the function or body around it.
3. The same moves fit whatever has the same tensors: another checkpoint, a teacher, a torch state dict.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import os
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onnxsparse.errors import OptionError, brief
from onnxsparse.files import write_text
from onnxsparse.math.values import Array

FORMAT = 1
METADATA = "onnxsparse.permutation"
LARGEST = 1 << 26
"""Bytes of a record that is read."""
BASE, TIMES = 1 << 20, 4
"""Bytes that a record in a model's metadata may have, and how many more for each byte of the model."""
WAY_OUT = f"take a file that `permute` wrote as it is, or remove '{METADATA}' from the metadata"


@dataclass(frozen=True, eq=False)
class Move:
    """Where the numbers over some axes of a tensor come from."""

    axes: tuple[int, ...]
    order: Array

    def __call__(self, array: Array) -> Array:
        rest = [axis for axis in range(array.ndim) if axis not in self.axes]
        turned = array.transpose([*self.axes, *rest])
        flat = turned.reshape(len(self.order), -1)[self.order]
        return flat.reshape(turned.shape).transpose(np.argsort([*self.axes, *rest]))

    def inverse(self) -> Move:
        return Move(self.axes, np.argsort(self.order))


@dataclass(frozen=True, eq=False)
class MovedTensor:
    """What moves in one tensor."""

    name: str
    shape: tuple[int, ...]
    moves: tuple[Move, ...]

    def __call__(self, array: Array) -> Array:
        """The array with its numbers in their new places; any type, the tensor's shape."""
        for move in self.moves:
            array = move(array)
        return np.ascontiguousarray(array)

    def inverse(self) -> MovedTensor:
        return MovedTensor(self.name, self.shape, tuple(move.inverse() for move in reversed(self.moves)))


@dataclass(frozen=True, eq=False)
class Permutation:
    """What moves in a model; `facts` say how it was found: pattern, effort, seed."""

    tensors: Mapping[str, MovedTensor]
    facts: Mapping[str, Any] = field(default_factory=dict)

    def inverse(self) -> Permutation:
        """The permutation that undoes this one."""
        return Permutation({name: one.inverse() for name, one in self.tensors.items()}, self.facts)

    def then(self, later: Permutation) -> Permutation:
        """This permutation, and a later one of what it made: from the first order to the last."""
        made = dict(self.tensors)
        for name, one in later.tensors.items():
            known = made.get(name)
            if known is not None:
                demand_shape(known, one.shape)
            moves = joined((*(known.moves if known else ()), *one.moves))
            made[name] = MovedTensor(name, one.shape, moves)
        return Permutation({name: one for name, one in made.items() if one.moves}, later.facts)

    def __bool__(self) -> bool:
        return bool(self.tensors)

    def apply(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Arrays by name, those that move in their new order; shapes must be as they were recorded."""
        made = dict(arrays)
        for name, one in self.tensors.items():
            if name in made:
                array = np.asarray(made[name])
                demand_shape(one, array.shape)
                made[name] = one(array)
        return made

    def checked(self, where: str) -> Permutation:
        """The same, as it is read from its own text: what was put together by hand may not fit together."""
        return Permutation(Permutation.from_json(Permutation(self.tensors).to_json(), where).tensors, self.facts)

    def to_json(self) -> str:
        """The record as text; an order that several tensors have stands there once."""
        orders: dict[bytes, int] = {}
        tensors: dict[str, Any] = {}
        for name, one in self.tensors.items():
            moves = []
            for move in one.moves:
                number = orders.setdefault(move.order.astype("<i8").tobytes(), len(orders))
                moves.append({"axes": list(move.axes), "order": number})
            tensors[name] = {"shape": list(one.shape), "moves": moves}
        listed = [np.frombuffer(data, "<i8").tolist() for data in orders]
        content = {"format": FORMAT, **self.facts, "orders": listed, "tensors": tensors}
        return json.dumps(content, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str, where: str) -> Permutation:
        """Read a record; what does not fit together is an error that names the place."""
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            raise OptionError(f"{where} is no JSON; pass a file that `permute` wrote") from None
        if not isinstance(content, dict) or not isinstance(content.get("tensors"), dict):
            raise OptionError(f"{where} has no 'tensors'; pass a file that `permute` wrote")
        written = content.get("format")
        if type(written) is not int or written != FORMAT:
            raise OptionError(f"{where} is of format {brief(written)}; this version reads {FORMAT}")
        orders = [_whole_list(one, where, "an order") for one in _listed(content.get("orders"), where, "orders")]
        tensors = {name: _tensor(name, one, orders, where) for name, one in content["tensors"].items()}
        facts = {key: value for key, value in content.items() if key not in ("format", "orders", "tensors")}
        return cls(tensors, facts)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the file that `load` reads."""
        write_text(os.fspath(path), self.to_json() + "\n", overwrite)

    def packed(self) -> str:
        """The record as a short text, for the metadata of a model."""
        return base64.b64encode(zlib.compress(self.to_json().encode(), 9)).decode("ascii")

    @classmethod
    def unpacked(cls, text: str, where: str, size: int = LARGEST) -> Permutation:
        """Read what `packed` made for a model of so many bytes."""
        limit = min(LARGEST, BASE + TIMES * size)
        try:
            stream = zlib.decompressobj()
            data = stream.decompress(base64.b64decode(text, validate=True), limit + 1)
            if len(data) > limit:
                raise OptionError(f"{where} records a permutation that is larger than the model; {WAY_OUT}")
            if not stream.eof or stream.unused_data:
                raise ValueError
            plain = data.decode("utf-8")
        except (ValueError, binascii.Error, zlib.error):
            raise OptionError(f"{where} records a permutation that is damaged; {WAY_OUT}") from None
        return cls.from_json(plain, f"the permutation recorded in {where}")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Permutation:
        """Read a file that `permute` wrote."""
        called = os.fspath(path)
        try:
            with open(called, encoding="utf-8") as file:
                text = file.read(LARGEST + 1)
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"cannot read {called}: {getattr(error, 'strerror', None) or 'it is no text'}") from None
        if len(text) > LARGEST:
            raise OptionError(f"{called} is larger than {LARGEST >> 20} MB; pass a file that `permute` wrote")
        return cls.from_json(text, called)


def joined(moves: Iterable[Move]) -> tuple[Move, ...]:
    """The same moves in as few as can be: those over the same axes become one, and one that moves nothing goes."""
    found: list[Move] = []
    for move in moves:
        place = _joining(found, move)
        if place is None:
            found.append(move)
        else:
            found[place] = Move(move.axes, found[place].order[move.order])
    return tuple(move for move in found if not np.array_equal(move.order, np.arange(len(move.order))))


def _joining(found: list[Move], move: Move) -> int | None:
    """The earlier move over the same axes, if what comes between has no axis in common with it."""
    for place in reversed(range(len(found))):
        if found[place].axes == move.axes:
            return place
        if set(found[place].axes) & set(move.axes):
            return None
    return None


def demand_shape(one: MovedTensor, shape: Iterable[int]) -> None:
    if tuple(shape) != one.shape:
        raise OptionError(
            f"the permutation moves '{one.name}' of shape {list(one.shape)}, here it has {list(shape)}; "
            "apply it to a model with the same layers"
        )


def _listed(value: Any, where: str, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise OptionError(f"{where}: {what} is no list; pass a file that `permute` wrote")
    return value


def _whole_list(value: Any, where: str, what: str) -> Array:
    listed = _listed(value, where, what)
    if not all(type(one) is int for one in listed):
        raise OptionError(f"{where}: {what} holds something else than whole numbers")
    whole = all(0 <= one < len(listed) for one in listed)  # whole numbers of JSON need not fit into int64
    if not whole or len(set(listed)) < len(listed):
        raise OptionError(f"{where}: {what} does not name every place once")
    return np.array(listed, np.int64)


def _tensor(name: str, value: Any, orders: list[Array], where: str) -> MovedTensor:
    what = f"tensor '{name[:80]}'"
    if not isinstance(value, dict):
        raise OptionError(f"{where}: {what} is no table; pass a file that `permute` wrote")
    shape = _listed(value.get("shape"), where, f"the shape of {what}")
    if not all(type(size) is int and size >= 0 for size in shape):
        raise OptionError(f"{where}: the shape of {what} holds something else than sizes")
    moves = []
    for one in _listed(value.get("moves"), where, f"the moves of {what}"):
        axes = _listed(one.get("axes") if isinstance(one, dict) else None, where, f"a move of {what}")
        number = one.get("order")
        fits = all(type(axis) is int and 0 <= axis < len(shape) for axis in axes) and len(set(axes)) == len(axes)
        fits = fits and type(number) is int and 0 <= number < len(orders)
        if not fits or math.prod(shape[axis] for axis in axes) != len(orders[number]):
            raise OptionError(f"{where}: a move of {what} does not fit its shape")
        moves.append(Move(tuple(axes), orders[number]))
    return MovedTensor(name, tuple(shape), tuple(moves))


__all__ = ["METADATA", "WAY_OUT", "Move", "MovedTensor", "Permutation", "demand_shape", "joined"]
