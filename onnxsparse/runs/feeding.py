"""The batches of a run: which samples train at which step, and which only measure.

1. Arrays are asked for by number, so a resumed run needs nothing but the step. What a function yields is read on to it.
2. A fixed share of the samples is held out and measures how the training goes (the probe).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxsparse.data import LABELS, Data, Order, Samples, Stream, hold_out
from onnxsparse.engines.engine import Batch
from onnxsparse.values import Array

PROBE, LEAST, SHARE = 256, 32, 20


class Feeding:
    """Batches of `batch` samples."""

    def __init__(self, data: Data, batch: int, seed: int, steps_per_epoch: int | None = None) -> None:
        self._data, self.size, self._asked = data, batch, steps_per_epoch
        self.notes = list(data.notes)
        self._order: Order | None = None
        if isinstance(data, Samples):
            train, held = hold_out(data.count, min(PROBE, max(LEAST, data.count // SHARE)), seed)
            self._order, self._held = Order(train, batch, seed), held
            self._check_length(len(train))
        else:
            self._probe = Batch(data.probe(PROBE))

    def _check_length(self, count: int) -> None:
        if self._asked is not None and self._asked > max(1, count // self.size):
            self.notes.append(
                f"{self._asked} steps of {self.size} samples are more than an epoch: {count} samples make "
                f"{max(1, count // self.size)} steps, so some come more than once in what counts as one"
            )
        elif self._asked is not None and self._asked < count // self.size:
            self.notes.append(
                f"{self._asked} steps of {self.size} samples are less than an epoch of {count} samples: "
                f"what counts as one here is {self._asked * self.size / count:.2f} of one"
            )

    @property
    def count(self) -> int | None:
        """How many samples there are in all, where that is known."""
        return self._data.count if isinstance(self._data, Samples) else None

    @property
    def per_epoch(self) -> int | None:
        """Steps of an epoch; unknown for a function, until the user says it."""
        if self._asked is not None:
            return self._asked
        return None if self._order is None else self._order.per_epoch

    @property
    def fingerprint(self) -> str:
        return self._data.fingerprint

    def batch(self, step: int) -> Batch:
        if isinstance(self._data, Stream):
            return Batch(self._data.batch(step, self.size))
        assert self._order is not None
        rows = self._order.rows(step)
        return Batch(self._data.take(rows), rows)

    def probe(self) -> Iterator[Batch]:
        """The samples that only measure, in batches; the last one is filled up from the first."""
        if isinstance(self._data, Stream):
            yield from _cut(self._probe, self.size)
            return
        for start in range(0, len(self._held), self.size):
            rows = np.take(self._held, np.arange(start, start + self.size), mode="wrap")
            yield Batch(self._data.take(rows), rows)

    def everything(self) -> Iterator[Batch]:
        """Every sample once, in the order of the data; the last batch is filled up from the first samples."""
        count = self.count
        assert count is not None
        assert isinstance(self._data, Samples)
        for start in range(0, count, self.size):
            rows = np.arange(start, start + self.size) % count
            yield Batch(self._data.take(rows), rows)

    def first(self, count: int) -> dict[str, Array]:
        """Some samples to make the graph with."""
        batches = [self.batch(step).arrays for step in range(-(-count // self.size))]
        first = batches[0]
        names = [name for name in first if all(len(one[name]) == self.size for one in batches if one[name].ndim)]
        shared = set(self._data.shared)
        return {
            name: first[name] if name in shared or name not in names else np.concatenate([one[name] for one in batches])
            for name in first
        }


def _cut(batch: Batch, size: int) -> Iterator[Batch]:
    count = max(len(array) for array in batch.arrays.values() if array.ndim)
    for start in range(0, count, size):
        rows = np.arange(start, start + size) % count
        yield Batch({name: array[rows] if len(array) == count else array for name, array in batch.arrays.items()})


__all__ = ["LABELS", "Feeding"]
