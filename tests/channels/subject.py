"""What is judged: a random order for every channel class of a model, and the permutation that `permute` chooses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Callable

import numpy as np
from onnx import ModelProto

from onnxsparse.channels.classes import Channels, analyse
from onnxsparse.channels.permutation import Move
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import StoredTensor
from tests.channels.net import Array


def randomly_permuted(model: ModelProto, seed: int, one: int | None = None) -> tuple[ModelProto, Channels]:
    """Every class (or one of them) in a random order, and the classes."""
    proto = ModelProto()
    proto.CopyFrom(model)
    opened = Model.over(proto)
    channels = analyse(opened)
    dice = np.random.default_rng(seed)
    orders = {each.number: dice.permutation(each.size) for each in channels.classes}
    if one is not None:
        orders = {one: orders[one]}
    for tensor, moves in channels.rearranged(orders).items():
        tensor.edit = _edit(tensor, [Move(axes, order) for axes, order in moves])
    return opened.take_proto(), channels


def _edit(tensor: StoredTensor, moves: list[Move]) -> Callable[[], Iterator[Array]]:
    def made() -> Iterator[Array]:
        values = tensor.array()
        for move in moves:
            values = move(values)
        yield np.ascontiguousarray(values).reshape(-1)

    return made
