"""Batches of a run: which samples train at which step, and which are held out for measuring.

1. Arrays are asked for by number, so a resumed run needs nothing but the step. What a function yields is read on to it.
2. A fixed share of the samples is held out and measures how the training goes (the probe).
3. Of several processes each takes its own part of every batch.
4. Steps per epoch that do not fit the data are said: of arrays at once, of a function when its first pass is over.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from onnxsparse.data import LABELS, Data, Order, Samples, Stream, hold_out
from onnxsparse.data.samples import LEAST, PROBE, held_out
from onnxsparse.engines.engine import Batch
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array

FEW = 64


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The samples held out, as data of their own: `take` gives those of some numbers, counted from 0."""

    count: int
    has_labels: bool
    numbers: bool
    called: str
    names: list[str]
    data: Samples | Mapping[str, Array]
    places: Array
    shared: Collection[str]

    def take(self, rows: Array) -> dict[str, Array]:
        if isinstance(self.data, Samples):
            return self.data.take(self.places[rows])
        return {name: array if name in self.shared else array[rows] for name, array in self.data.items()}


class Feeding:
    """Batches of `batch` samples, of which this is process `rank` of `count` to take its part.

    Without `hold` all samples train, and none measures.
    """

    def __init__(
        self,
        data: Data,
        batch: int,
        seed: int,
        steps_per_epoch: int | None = None,
        rank: int = 0,
        count: int = 1,
        hold: bool = True,
    ) -> None:
        if batch % count:
            raise OptionError(f"a batch of {batch} cannot be shared by {count} processes; take a multiple of {count}")
        self._data, self.size, self._asked = data, batch, steps_per_epoch
        self._rank, self._count = rank, count
        self._before, self._ended = -1, False
        self._order: Order | None = None
        if isinstance(data, Samples):
            rows = np.arange(data.count)
            train, held = hold_out(data.count, held_out(data.count) or 1, seed) if hold else (rows, rows[:0])
            if batch > max(len(train), LEAST):
                raise OptionError(
                    f"a batch of {batch} cannot be made of the {len(train)} samples to train on; "
                    f"--batch-size is at most {max(len(train), LEAST)}"
                )
            self._order, self._held = Order(train, batch, seed), held
            few = (
                f"only {data.count} samples along the first axis, of which {len(held)} measure: the losses say little; "
                "take more if you can"
            )
            self.notes = [
                *data.notes,
                *([few] if hold and data.count < FEW else []),
                *self._misfit(max(1, len(train) // batch), f"{len(train)} samples"),
            ]
        else:
            self._probe = Batch(data.probe(PROBE))
            self.notes = list(data.notes)

    def _misfit(self, steps: int, data: str) -> list[str]:
        """What to say where an epoch has other steps than the user thinks."""
        if self._asked is None or self._asked == steps:
            return []
        what = "some samples come more than once in what counts as one" if self._asked > steps else "what counts as one"
        share = "" if self._asked > steps else f" is {self._asked / steps:.2g} of one"
        return [f"{self._asked} steps per epoch do not fit the data: {data} make {steps} of {self.size}; {what}{share}"]

    @property
    def count(self) -> int | None:
        """How many samples there are in all, where that is known."""
        return self._data.count if isinstance(self._data, Samples) else None

    @property
    def trained(self) -> int | None:
        """How many samples train, where that is known."""
        return self.count if self.count is None else self.count - len(self._held)

    @property
    def shared(self) -> set[str]:
        """Inputs that are the same for every sample."""
        return set(self._data.shared)

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
        """This process's part of a batch."""
        if self._order is None:
            return self._own(self._whole(step))
        return self._taken(self._order.rows(step)[self._part])

    @property
    def _part(self) -> slice:
        size = self.size // self._count
        return slice(self._rank * size, (self._rank + 1) * size)

    def _own(self, batch: Batch) -> Batch:
        if self._count == 1:
            return batch
        shared, part = set(self._data.shared), self._part
        return Batch({name: array if name in shared else array[part] for name, array in batch.arrays.items()})

    def _taken(self, rows: Array) -> Batch:
        assert isinstance(self._data, Samples)
        return Batch(self._data.take(rows), rows)

    def _whole(self, step: int) -> Batch:
        if isinstance(self._data, Stream):
            return Batch(self._streamed(self._data, step))
        assert self._order is not None
        return self._taken(self._order.rows(step))

    def _streamed(self, data: Stream, step: int) -> dict[str, Array]:
        found = data.batch(step, self.size)
        if data.passes > 1 and not self._ended:
            self._ended = True
            # The pass ended within this batch; of one that was jumped over nobody knows where.
            if step == self._before + 1 and self._asked not in (step, step + 1):
                self.notes += self._misfit(max(step, 1), f"the samples of {data.called}")
        self._before = step
        return found

    def probe(self) -> Iterator[Batch]:
        """The samples that only measure, in batches; the last one is filled up from the first."""
        if isinstance(self._data, Stream):
            yield from map(self._own, self._cut(self._probe))
            return
        for start in range(0, len(self._held), self.size):
            rows = np.take(self._held, np.arange(start, start + self.size), mode="wrap")
            yield self._taken(rows[self._part])

    def held_out(self) -> HeldOut:
        """The samples that only measure, each of them once."""
        data, shared = self._data, self.shared
        if isinstance(data, Samples):
            labelled, held = data.has_labels, self._held
            return HeldOut(len(held), labelled, data.numbers, data.called, data.names, data, held, shared)
        some = self._probe.arrays
        count = max((len(array) for name, array in some.items() if name not in shared), default=1)
        kind = some[LABELS].dtype.kind if LABELS in some else ""
        return HeldOut(count, bool(kind), kind == "f", data.called, list(some), some, np.arange(count), shared)

    def everything(self) -> Iterator[Batch]:
        """Every sample once, in the order of the data; the last batch is filled up from the first samples."""
        count = self.count
        assert count is not None
        assert isinstance(self._data, Samples)
        for start in range(0, count, self.size):
            yield self._taken(np.arange(start, start + self.size) % count)

    def first(self, count: int) -> dict[str, Array]:
        """Some samples to make the graph with."""
        batches = [self._whole(step).arrays for step in range(-(-count // self.size))]
        shared = set(self._data.shared)
        return {
            name: array if name in shared else np.concatenate([one[name] for one in batches])
            for name, array in batches[0].items()
        }

    def _cut(self, batch: Batch) -> Iterator[Batch]:
        shared = set(self._data.shared)
        count = max((len(array) for name, array in batch.arrays.items() if name not in shared), default=1)
        for start in range(0, count, self.size):
            rows = np.arange(start, start + self.size) % count
            yield Batch({name: array if name in shared else array[rows] for name, array in batch.arrays.items()})


__all__ = ["LABELS", "Feeding", "HeldOut", "held_out"]
