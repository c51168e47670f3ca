"""Solvers: what the kept weights of a layer become. `parse` of the package makes one of a word.

1. With the score obs masks and weights are found in rounds, each mask by what its removal costs after the last refit.
2. With any other score the mask is chosen once, from the dense numbers; the solver is what comes after.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse.math.values import Array, Reading, Values
from onnxsparse.patterns.nm import NOfM
from onnxsparse.patterns.unstructured import Unstructured
from onnxsparse.plugins import Plugin
from onnxsparse.scores import InputScore, Obs, Score
from onnxsparse.solvers.choosing import Part, goals, groups_of
from onnxsparse.solvers.least_squares import EXACT
from onnxsparse.solvers.rounds import EXCHANGES, Choose, Fitted, Layer, importance, joined, kinds, rounds


class Solver(Plugin, ABC):
    """From a layer, what goes of each of its weights and what goes first, to its mask and new numbers."""

    kind: ClassVar[str] = "solvers"
    does: ClassVar[str] = "refitted"
    """What it does to the kept numbers, in a word; nothing where they stay."""

    @abstractmethod
    def solve(self, layer: Layer, parts: Sequence[Part], drops: Sequence[int], score: Score, joint: bool) -> Fitted:
        """Drop so many units of each part; `joint`: of all unstructured parts together."""


@dataclass(frozen=True)
class Zero(Solver):
    """Kept weights and the bias stay as they are."""

    name: ClassVar[str] = "zero"
    does: ClassVar[str] = ""

    def solve(self, layer: Layer, parts: Sequence[Part], drops: Sequence[int], score: Score, joint: bool) -> Fitted:
        mask = one_mask(layer, parts, drops, score, joint)
        return Fitted(mask, np.where(mask, layer.dense, 0.0), np.zeros(len(mask)))


@dataclass(frozen=True)
class Bias(Solver):
    """Kept weights stay as they are, and the bias makes up for the mean of what is missing."""

    name: ClassVar[str] = "bias"
    does: ClassVar[str] = "bias moved"

    def solve(self, layer: Layer, parts: Sequence[Part], drops: Sequence[int], score: Score, joint: bool) -> Fitted:
        mask = one_mask(layer, parts, drops, score, joint)
        rows = np.where(mask, layer.dense, 0.0)
        return Fitted(mask, rows, layer.bias(rows))


@dataclass(frozen=True)
class LeastSquares(Solver):
    """Kept weights by least squares; with the score obs in rounds of removal and refit."""

    name: ClassVar[str] = "least-squares"

    def solve(self, layer: Layer, parts: Sequence[Part], drops: Sequence[int], score: Score, joint: bool) -> Fitted:
        if isinstance(score, Obs):
            steps = goals(parts, drops, layer.count, joint)
            return last(rounds(layer, steps, groups_of(parts), exchanges_of(layer, parts)))
        return refitted(layer, one_mask(layer, parts, drops, score, joint))


def refitted(layer: Layer, mask: Array) -> Fitted:
    """The weights under a mask by least squares."""
    refits = layer.refits()
    found = [(one.block, one.under(mask[one.block.outputs], layer.dense[one.block.outputs], False)) for one in refits]
    rows, _ = joined(layer, found, mask)
    return Fitted(mask, rows, layer.bias(rows), kinds(refits))


def exchanges_of(layer: Layer, parts: Sequence[Part]) -> int:
    """How many exchanges follow the rounds. None in large layers, by a rule of shapes: they gain next to nothing there
    (a CNN with layers of 1152 inputs), and each takes as long as two rounds; none where weights go together, either."""
    rows, size = layer.dense.shape
    alone = all(isinstance(part.pattern, (Unstructured, NOfM, type(None))) for part in parts)
    return EXCHANGES if alone and rows * float(size) ** 3 <= EXACT else 0


def one_mask(layer: Layer, parts: Sequence[Part], drops: Sequence[int], score: Score, joint: bool) -> Array:
    """The mask that a score makes of the dense numbers."""
    choose: Choose = goals(parts, drops, 1, joint)[-1]
    return choose(dense_importance(layer, parts, score))


def dense_importance(layer: Layer, parts: Sequence[Part], score: Score) -> Array:
    """The importance of every dense weight by a score, nothing for those that are zero."""
    if isinstance(score, Obs):
        groups = groups_of(parts)
        _, costs = joined(layer, [(refit.block, refit.start()) for refit in layer.refits(groups)])
        return importance(layer, costs, np.ones(layer.dense.shape, bool))
    found, norms = np.zeros(layer.dense.shape), layer.norms
    for part in parts:
        own = score.bind(part.name)
        if isinstance(own, InputScore):
            own = own.of_inputs(part.as_axes(norms))
        values = Values(np.ascontiguousarray(part.as_axes(layer.dense)), Reading("float64"))
        found[:, part.columns] = part.as_rows(own.value(values).astype(np.float64))
    return found


def last(found: Iterable[Fitted]) -> Fitted:
    """The end of the rounds."""
    *_, end = found
    return end


__all__ = ["Bias", "LeastSquares", "Solver", "Zero", "dense_importance", "last", "one_mask", "refitted"]
