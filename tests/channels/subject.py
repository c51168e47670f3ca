"""What is judged: a random order for every channel class of a model, and its record."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Callable

import numpy as np
from onnx import ModelProto

from onnxsparse.channel_classes.classes import Channels, analyse
from onnxsparse.channel_classes.permutation import Move, MovedTensor, Permutation
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import StoredTensor
from onnxsparse.graph.stores import keys
from tests.channels.net import Array


@dataclasses.dataclass(frozen=True)
class Permuted:
    model: ModelProto
    channels: Channels
    permutation: Permutation


def randomly_permuted(
    model: ModelProto, seed: int, only: int | None = None, shapes: Mapping[str, Sequence[int]] | None = None
) -> Permuted:
    """Every class, or only one of them, in a random order; `shapes` of inputs where the model leaves sizes open."""
    opened = _opened(model)
    channels = analyse(opened, shapes)
    dice = np.random.default_rng(seed)
    orders = {one.number: dice.permutation(one.size) for one in channels.classes}
    if only is not None:
        orders = {only: orders[only]}
    moves = channels.rearranged(orders)
    moved = {}
    for member in channels.members:
        if member.tensor in moves:
            made = tuple(Move(axes, order) for axes, order in moves[member.tensor])
            moved[member.name] = MovedTensor(member.name, member.tensor.shape, made)
    record = Permutation.from_json(Permutation(moved).to_json(), "a test")
    return Permuted(_moved(opened, record), channels, record)


def moved_back(permuted: Permuted) -> ModelProto:
    """The permuted model after the inverse of what is recorded."""
    opened = _opened(permuted.model)
    return _moved(opened, permuted.permutation.inverse())


def _opened(model: ModelProto) -> Model:
    proto = ModelProto()
    proto.CopyFrom(model)
    return Model.over(proto)


def _moved(opened: Model, permutation: Permutation) -> ModelProto:
    stored = keys(opened.flow.stores)
    named = {f"{title}/{name}" if title else name: tensor for tensor, (title, name) in stored.items()}
    for name, one in permutation.tensors.items():
        named[name].edit = _edit(named[name], one)
    return opened.take_proto()


def _edit(tensor: StoredTensor, moved: MovedTensor) -> Callable[[], Iterator[Array]]:
    def made() -> Iterator[Array]:
        yield moved(tensor.array()).reshape(-1)

    return made
