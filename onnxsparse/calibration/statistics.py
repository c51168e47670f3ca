"""Statistics of values: what is kept of all samples, additive, so that batches, processes and resumed runs agree.

`add` takes one batch; `merge` takes what another process found; `state` is what a checkpoint holds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np

from onnxsparse.math.values import Array


class Statistics(ABC):
    """What is known of one value."""

    @abstractmethod
    def add(self, batch: Array) -> None:
        """Take one batch of it."""

    @abstractmethod
    def merge(self, other: Statistics) -> None:
        """Take what was found elsewhere, as if its batches had come here."""

    @abstractmethod
    def state(self) -> dict[str, Array]:
        """All that is known, as arrays."""

    @abstractmethod
    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on from a state."""


class Range(Statistics):
    """The least and the greatest number."""

    def __init__(self) -> None:
        self.low, self.high, self.count = np.inf, -np.inf, 0

    def add(self, batch: Array) -> None:
        if batch.size:
            self.low, self.high = min(self.low, float(batch.min())), max(self.high, float(batch.max()))
            self.count += batch.size

    def merge(self, other: Statistics) -> None:
        assert isinstance(other, Range)
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.count += other.count

    def state(self) -> dict[str, Array]:
        return {"range": np.array([self.low, self.high]), "count": np.array(self.count)}

    def restore(self, state: Mapping[str, Array]) -> None:
        self.low, self.high = (float(one) for one in state["range"])
        self.count = int(state["count"])
