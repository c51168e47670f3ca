"""Every class of a model put into another order by dice, and back."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto

from onnxsparse.channels.classes import Channels, analyse
from onnxsparse.channels.permutation import Move
from onnxsparse.graph.model import Model
from tests.channels import judge
from tests.channels.net import Trap


def shuffled(proto: ModelProto, seed: int = 0) -> tuple[ModelProto, ModelProto, Channels]:
    """The model with the channels of every class in another order, the same moved back, and the classes."""
    there, back = (Model.open(proto) for _ in range(2))
    found = analyse(there)
    generator = np.random.default_rng(seed)
    orders = {one.number: generator.permutation(one.size) for one in found.classes}
    moves = {tensor: [Move(*move) for move in some] for tensor, some in found.rearranged(orders).items()}
    for tensor, some in moves.items():
        values = tensor.array()
        for move in some:
            values = move(values)
        tensor.store(np.ascontiguousarray(values))
    moved = ModelProto()
    moved.CopyFrom(there.proto)
    for tensor, some in moves.items():
        values = tensor.array()
        for move in reversed(some):
            values = move.inverse()(values)
        tensor.store(np.ascontiguousarray(values))
    del back
    return moved, there.proto, found


def demand(trap: Trap, seeds: int = 3) -> None:
    """Outputs stay the same for any order, the inverse gives the same bytes, and what must move moves."""
    moved: set[str] = set()
    for seed in range(seeds):
        permuted, again, _ = shuffled(trap.model, seed)
        wrong = judge.judge(trap.model, permuted, trap.feeds)
        assert not wrong, (trap.name, seed, wrong)
        assert judge.same_bytes(trap.model, again), trap.name
        moved |= judge.moved(trap.model, permuted, trap.reductions)
    assert set(trap.must_move) <= moved, (trap.name, set(trap.must_move) - moved)
    assert not set(trap.must_stay) & moved, (trap.name, set(trap.must_stay) & moved)
