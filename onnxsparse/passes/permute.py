"""Permuting: stored tensors get their numbers in another order.

1. Only bytes of tensors that move change; each is a permutation of what it was, whatever its type.
2. A large tensor streams: its rows are read in the order in which they are written, as far as its moves allow it.
What it does not do: decide anything, prove anything, touch the graph, or record metadata.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from onnxsparse import progress
from onnxsparse.channel_classes.permutation import Move
from onnxsparse.errors import OnnxSparseError, PlanError
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import StoredTensor
from onnxsparse.math.values import Array
from onnxsparse.passes.model_pass import Changed, Pass

Moves = Mapping[StoredTensor, Sequence[Move]]
WHOLE = 1 << 24
"""Elements of a tensor up to which it is moved in memory."""
PIECE = 1 << 22


class Permute(Pass):
    """Sets the edit of every tensor that moves, which is computed when the model is written."""

    def __init__(self, moves: Moves) -> None:
        self._moves = moves

    def refusal(self, model: Model) -> OnnxSparseError | None:
        homes = model.flow.stores.homes
        other = next((tensor.name for tensor in self._moves if tensor not in homes), None)
        return None if other is None else PlanError(f"tensor '{other}' of the permutation is one of another model")

    def call(self, model: Model) -> Changed:
        twins = {one: alike for alike in model.flow.stores.twins() for one in alike}
        done = progress.Counter("permute", sum(tensor.size for tensor in self._moves))
        for tensor, moves in self._moves.items():
            if not any(twin.edit for twin in twins.get(tensor, ())):  # the same bytes under another name
                tensor.edit = Moved(tensor, tuple(moves), done)
        return Changed({weight: "" for weight in model.weights if weight.tensor in self._moves})


@dataclass(frozen=True)
class Moved:
    """The numbers of one tensor in their new order, in consecutive pieces, made when they are written."""

    tensor: StoredTensor
    moves: tuple[Move, ...]
    done: progress.Counter

    def __call__(self) -> Iterator[Array]:
        pieces = self._by_rows() if self.tensor.size > WHOLE and self._has_rows else self._whole()
        for piece in pieces:
            self.done.add(piece.size)
            yield piece

    def _whole(self) -> Iterator[Array]:
        array = self.tensor.array()
        for move in self.moves:
            array = move(array)
        yield np.ascontiguousarray(array).reshape(-1)

    @property
    def _has_rows(self) -> bool:
        """Whether whole rows of the first axis move, or numbers inside of each of them."""
        return all(0 not in move.axes or move.axes == (0,) or self._stays_in_rows(move) for move in self.moves)

    def _stays_in_rows(self, move: Move) -> bool:
        if move.axes[0] != 0:
            return False
        inner = len(move.order) // self.tensor.shape[0]
        return bool((move.order // inner == np.arange(len(move.order)) // inner).all())

    def _by_rows(self) -> Iterator[Array]:
        shape = self.tensor.shape
        count = max(1, PIECE // max(1, self.tensor.size // shape[0]))
        for start in range(0, shape[0], count):
            rows = np.arange(start, min(start + count, shape[0]))
            inside: list[tuple[Move, Array]] = []
            for move in reversed(self.moves):
                if move.axes == (0,):
                    rows = move.order[rows]
                else:
                    inside.append((move, rows))
            piece = self._read(rows)
            for move, at in reversed(inside):
                piece = _within(move, at, shape[0])(piece)
            yield np.ascontiguousarray(piece).reshape(-1)

    def _read(self, rows: Array) -> Array:
        width = self.tensor.size // self.tensor.shape[0]
        breaks = np.flatnonzero(np.diff(rows) != 1) + 1
        runs = [(int(run[0]), int(run[-1]) + 1) for run in np.split(rows, breaks)]
        found = [self.tensor.read(start * width, stop * width) for start, stop in runs]
        return np.concatenate(found).reshape(len(rows), *self.tensor.shape[1:])


def _within(move: Move, rows: Array, height: int) -> Move:
    """A move of some rows alone, where nothing goes from row to row."""
    if 0 not in move.axes:
        return move
    width = len(move.order) // height
    inner = move.order.reshape(height, width)[rows] - rows[:, None] * width
    return Move(move.axes, (inner + np.arange(len(rows))[:, None] * width).reshape(-1))


__all__ = ["Moved", "Moves", "Permute"]
