"""Measured sensitivity: how far the outputs of a model move when one layer alone gets other numbers, by forward runs.

    mean over outputs of  (mean square of the move / variance of the output)

on the first samples. That is the unit in which gradients predict it, so that curves of both kinds add up.

1. What comes before the layer is run once; what follows it, for each set of numbers.
2. Outputs that come from a squashing function are taken before it, as gradients take them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

import numpy as np

from onnxsparse.calibration.moments import Samples
from onnxsparse.calibration.sensitivity import PROBED
from onnxsparse.calibration.streams import Cut, Store, Stream
from onnxsparse.engines.random_projection import scales_of, targets_of
from onnxsparse.graph.edit import FLOATS
from onnxsparse.graph.model import Model
from onnxsparse.math.values import Array


class Measure:
    """The outputs of the dense net for the first samples, and how far other numbers move them."""

    def __init__(self, cut: Cut, samples: Samples, store: Store) -> None:
        self._cut, self._store = cut, store
        self.feeds = samples.feeds[: first_batches(samples.sizes)]
        self._count = max(sum(samples.sizes[: len(self.feeds)]), 1)
        names = [name for name in _targets(cut.model) if name in cut.place]
        self._dense = list(Stream(cut, self.feeds, store).values(names))
        self._ahead = Stream(cut, self.feeds, store)
        self._scales, self.notes = scales_of(self._dense, self._count)

    def before(self, place: int) -> Stream:
        """The samples in the dense net, before a node. Going forward, every node runs once."""
        if self._ahead.done > place:
            self._ahead = Stream(self._cut, self.feeds, self._store)
        self._ahead.run_to(place)
        return self._ahead

    def moved(self, place: int, numbers: Mapping[str, Array]) -> float:
        """By how much the outputs move when stored tensors that no node before `place` reads get these numbers,
        squared."""
        fork = self.before(place).fork(numbers)
        names = [name for name in self._scales if self._cut.place[name] >= fork.done]
        if not names:
            return 0.0
        pairs = zip(self._dense, fork.values(names))
        total = sum(self._squares(name, dense[name], moved[name]) for dense, moved in pairs for name in names)
        return total / self._count

    def _squares(self, name: str, dense: Array, moved: Array) -> float:
        with np.errstate(invalid="ignore", over="ignore"):
            squares = np.square((moved.astype(np.float64) - dense) * self._scales[name])
        return float(np.where(np.isfinite(dense), np.nan_to_num(squares, nan=np.inf), 0.0).sum())


def first_batches(sizes: Sequence[int]) -> int:
    """How many batches hold the first samples: one at least."""
    sums = np.cumsum(sizes)
    return max(1, len(list(takewhile(lambda total: total <= PROBED, sums))))


def _targets(model: Model) -> list[str]:
    """Those of the projections that gradients are taken of."""
    floats = any(value.type.tensor_type.elem_type in FLOATS for value in model.proto.graph.output)
    return targets_of(model.proto if floats else model.copy_proto())


__all__ = ["Measure", "first_batches"]
