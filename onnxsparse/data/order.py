"""Which samples make up each batch: random access to a shuffled order, the same on every machine.

1. Every epoch has an order of its own: a sort of Philox numbers, the seed as key and the epoch in the counter.
2. Every batch has the same size. What does not fill one at the end of an epoch is left out of it; as the orders differ,
   each epoch leaves out others.
3. With fewer samples than a batch takes, rows repeat.
"""

from __future__ import annotations

import numpy as np

from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array

_EPOCHS, _PROBE = 0, 1


class Order:
    """The rows of every batch. `count` samples, or those rows that are named, in batches of `batch`."""

    def __init__(self, count: int | Array, batch: int, seed: int = 0) -> None:
        self._rows = np.arange(count) if isinstance(count, (int, np.integer)) else np.asarray(count, np.int64)
        if batch < 1 or not len(self._rows):
            raise OptionError(f"batches of {batch} cannot be made of {len(self._rows)} samples")
        self.count, self.batch, self.seed = len(self._rows), batch, checked_seed(seed)
        self._shuffled: tuple[int, Array] = (-1, self._rows)

    @property
    def per_epoch(self) -> int:
        """Batches of an epoch."""
        return max(self.count // self.batch, 1)

    def epoch(self, step: int) -> int:
        """The epoch, from 0, that a step belongs to."""
        return step // self.per_epoch

    def rows(self, step: int) -> Array:
        """The rows of batch number `step`, from 0, counted through all epochs."""
        epoch, place = divmod(step, self.per_epoch)
        start = place * self.batch
        found: Array = np.take(self._of(epoch), np.arange(start, start + self.batch), mode="wrap")
        return found

    def _of(self, epoch: int) -> Array:
        if self._shuffled[0] != epoch:
            self._shuffled = (epoch, self._rows[_permutation(self.count, self.seed, _EPOCHS, epoch)])
        return self._shuffled[1]


def hold_out(total: int, count: int, seed: int = 0) -> tuple[Array, Array]:
    """Rows to train on and rows to measure on, both in rising order; never more than half of the samples are held out.

    A single sample is both.
    """
    if total < 1 or count < 0:
        raise OptionError(f"{count} of {total} samples cannot be held out")
    if total == 1:
        return np.zeros(1, np.int64), np.zeros(min(count, 1), np.int64)
    order = _permutation(total, checked_seed(seed), _PROBE, 0)
    cut = min(count, total // 2)
    return np.sort(order[cut:]), np.sort(order[:cut])


def _permutation(count: int, seed: int, purpose: int, number: int) -> Array:
    """A sort of random numbers is what it is on every machine, which a library's shuffle does not promise."""
    counter = np.array([0, 0, purpose, number], np.uint64)
    return np.argsort(np.random.Philox(key=seed, counter=counter).random_raw(count), kind="stable")


def checked_seed(seed: int) -> int:
    if not 0 <= seed < 1 << 64:
        raise OptionError(f"a seed is a whole number from 0 to 2**64 - 1, not {seed}")
    return seed
