"""Training data with random access, and the shuffled order in which samples make up batches.

1. An array whose first axis counts the samples is taken by rows.
2. An array that is not as long, but has the whole shape that the model declares, is the same for every sample.
3. Arrays that are no input of the model are left alone, but for the labels.
4. Samples along another axis than the first are turned; those that are sequences have their steps along the second.
5. NaN and infinity are an error wherever they are met: at once in data of few bytes, else when a sample is taken.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import cached_property
from typing import Any

import numpy as np

from onnxsparse.data.array_files import Column, Turned
from onnxsparse.data.field import LABELS, Field, demand_type
from onnxsparse.data.sources import Source
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array

NUMBERS = "numbers are learned with --loss mse or l1"
USUAL = (LABELS, "label", "targets", "target", "y")
"""Names under which labels are looked for when the user names none."""

LOOKED_AT, LARGEST = 32, 2**63 - 1
CHEAP, BLOCK = 1 << 26, 1 << 17
"""Bytes of data that are looked through at once, and of what is taken at a time for that."""

PROBE, LEAST, SHARE = 256, 32, 20
"""How many samples at most and at least only measure, and which part of them: one in so many."""

SPREAD, FEWEST = 4096, 64
"""How many samples, and how few, stand for data that is larger."""

Batch = dict[str, Array]


class Samples:
    """Samples by number. `take` gives arrays as the model takes them; `shared` names what is the same for all.

    `numbers` says whether labels are numbers or classes; with None they may be either, by their type.
    """

    def __init__(
        self,
        source: Source,
        fields: Sequence[Field],
        labels: str | None = None,
        want: bool = False,
        shared: Sequence[str] = (),
        numbers: bool | None = False,
    ) -> None:
        self.numbers = bool(numbers)
        self._any_kind = numbers is None
        self.fields = tuple(field for field in fields if not field.optional or source.has(field.name))
        self._known_shared = shared
        self.called, self.names = source.called, [str(name) for name in source.names]
        self.notes: list[str] = source.notes
        self._columns = {field.name: self._checked(source, field) for field in self.fields}
        self._whole: dict[str, Array] = {}
        self.complete: Callable[[Batch], Batch] = dict
        """Adds what a model computes for each batch, such as proposals."""
        self._labels: Column | None = None
        demanded = want or labels is not None
        found = _labels_of(source, self.fields, labels, demanded)
        column = None if found is None else source.column(found)
        self.count = self._counted(column if demanded else None)
        self._drawn: Array | None = None
        self.shared = tuple(field.name for field in self.fields if not self._is_by_rows(field))
        self.notes += [_shared_note(name, self.called, self._columns[name]) for name in self.shared]
        if column is not None and found is not None:
            self._accept(column, found, demanded)

    @property
    def has_labels(self) -> bool:
        return self._labels is not None

    def drawn(self, count: int, seed: int) -> Samples:
        """So many of these samples, in an order of their own, drawn by a seed; all of them where there are no more."""
        some = copy(self)
        some._drawn = self._numbers(drawn_rows(self.count, count, seed))
        some.count = len(some._drawn)
        return some

    def part(self, start: int, stop: int) -> Samples:
        """The samples from one place to before another."""
        some = copy(self)
        some._drawn = self._numbers(np.arange(start, min(stop, self.count)))
        some.count = len(some._drawn)
        return some

    def _numbers(self, rows: Array) -> Array:
        """The numbers that samples have in the source."""
        rows = np.asarray(rows, dtype=np.int64)
        return rows if self._drawn is None else self._drawn[rows]

    def take(self, rows: Array, first: int = 0) -> Batch:
        """The samples of these numbers: one C-contiguous array for each input, and the labels under `LABELS`.

        `first` is the number under which errors tell of the first of all samples.
        """
        rows = self._numbers(rows)
        batch = {f.name: self._same(f) if f.name in self.shared else self._taken(f, rows) for f in self.fields}
        if self._labels is not None:
            batch.setdefault(LABELS, self._labels_of(rows))
        by_rows = {name: array for name, array in batch.items() if name not in self.shared}
        demand_finite(by_rows, self.called, rows + first)
        return self.complete(batch)

    def look_through(self, limit: float = CHEAP) -> None:
        """Have all samples looked at, or the first ones where all are more bytes than that."""
        few = self._row_bytes * self.count <= limit
        for _ in self._in_blocks(range(self.count if few else min(self.count, LOOKED_AT))):
            pass

    def through(self, rows: int) -> Iterator[Batch]:
        """All samples in their order; the last batch may be smaller."""
        for start in range(0, self.count, rows):
            yield self.take(np.arange(start, min(start + rows, self.count)))

    def labels(self, rows: Array) -> Array:
        """The labels alone: classes as int64, numbers as float32."""
        return self._labels_of(self._numbers(rows))

    def _labels_of(self, rows: Array) -> Array:
        assert self._labels is not None
        kind = np.float32 if self.numbers else np.int64
        found = np.asarray(self._labels[rows])
        if kind is np.int64 and found.dtype == np.uint64 and (found > LARGEST).any():
            raise OptionError(f"label {found.max()} of {self.called} is the number of no class")
        with np.errstate(over="ignore"):  # what becomes infinite by it is found by `demand_finite`
            return np.asarray(found, kind, order="C")

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over names, types and shapes, and all samples, or many at even distances where all are too many."""
        digest = hashlib.sha256(str(self.count).encode())
        apart = 1
        if self._row_bytes * self.count > CHEAP:
            apart = max(1, self.count // max(FEWEST, min(SPREAD, CHEAP // self._row_bytes)))
        for batch in self._in_blocks(range((self.count - 1) % apart, self.count, apart)):
            add_to(digest, batch)
        return digest.hexdigest()

    @property
    def _row_bytes(self) -> int:
        """Of one sample, as the model takes it."""
        by_rows = [field for field in self.fields if field.name not in self.shared]
        inputs = sum(f.numpy.itemsize * math.prod(self._columns[f.name].shape[1:]) for f in by_rows)
        return inputs + (8 * math.prod(self._labels.shape[1:]) if self._labels is not None else 0)

    def _in_blocks(self, rows: range) -> Iterator[Batch]:
        size = max(1, BLOCK // max(1, self._row_bytes))
        for start in range(0, len(rows), size):
            some = rows[start : start + size]
            yield self.take(np.arange(some.start, some.stop, some.step))

    def _taken(self, field: Field, rows: Any) -> Array:
        column = self._columns[field.name]
        if self._is_one_for_all(field) and rows is not ...:
            rows = np.zeros_like(rows)
        with np.errstate(over="ignore"):  # what becomes infinite by it is found by `demand_finite`
            return np.asarray(column[rows], field.numpy, order="C")

    def _same(self, field: Field) -> Array:
        """What is the same for all samples, read once."""
        if field.name not in self._whole:
            found = {field.name: self._taken(field, ...)}
            demand_finite(found, self.called)
            self._whole.update(found)
        return self._whole[field.name]

    def _checked(self, source: Source, field: Field) -> Column:
        column = source.demand(field.name, "an input of the model")
        note = demand_type(field, column.dtype, source.called)
        self.notes += [note] if note else []
        if field.is_turned(column.shape):
            column = Turned(column, field.axis)
            along = f"the samples of '{field.name}' lie along axis {field.axis}, which the model names as theirs"
            self.notes += [] if field.given else [along]
        field.demand_shape(column.shape, source.called)
        return column

    def _counted(self, labels: Column | None) -> int:
        by_rows = {field: self._columns[field.name] for field in self.fields if self._may_be_rows(field)}
        sure = {f.name: c.shape[0] for f, c in by_rows.items() if not f.is_whole(c.shape)}
        if labels is not None and labels.shape:
            sure["the labels"] = labels.shape[0]
        counts = sure or {field.name: column.shape[0] for field, column in by_rows.items()}
        if not counts:
            raise OptionError(
                f"no input of the model has samples along its first axis, so {self.called} cannot hold any"
            )
        first = next(iter(counts))
        for name, count in counts.items():
            if count != counts[first]:
                raise OptionError(f"{self.called} has {counts[first]} samples of '{first}', but {count} of '{name}'")
        if not counts[first]:
            raise OptionError(f"{self.called} has no samples: its arrays are empty along their first axis")
        return counts[first]

    def _may_be_rows(self, field: Field) -> bool:
        shape = self._columns[field.name].shape
        return field.is_sample(shape) and not (field.name in self._known_shared and field.is_whole(shape))

    def _is_by_rows(self, field: Field) -> bool:
        rows = self._may_be_rows(field) and self._columns[field.name].shape[0] == self.count
        return rows or self._is_one_for_all(field)

    def _is_one_for_all(self, field: Field) -> bool:
        """Whether samples that are not first in the model all take the only one that there is."""
        shape = self._columns[field.name].shape
        return bool(field.axis) and field.is_whole(shape) and shape[0] == 1 and self.count > 1

    def _accept(self, column: Column, name: str, demanded: bool) -> None:
        """Take the labels; those that nobody asked for may also be of no use."""
        if self._any_kind:
            self.numbers = column.dtype.kind == "f"
        problem = _problem(column, self.count, self.numbers)
        if problem and demanded:
            raise OptionError(f"labels '{name}' of {self.called} {problem}")
        if problem:
            self.notes.append(f"'{name}' of {self.called} is not used as labels: they {problem}")
            return
        self._labels = column


def _labels_of(source: Source, fields: Iterable[Field], labels: str | None, demanded: bool) -> str | None:
    inputs = {field.name for field in fields}
    if LABELS in inputs and labels not in (None, LABELS):
        raise OptionError(f"the model has an input '{LABELS}', which is then what the labels are; leave '{labels}' out")
    if labels is not None:
        source.demand(labels, "the labels", typed=True)
        return labels
    usual = [name for name in USUAL if (name == LABELS or name not in inputs) and source.has(name)]
    if usual or not demanded:
        return usual[0] if usual else None
    source.demand(LABELS, "the labels; name theirs, or train without labels")
    return None


def _problem(column: Column, count: int, numbers: bool) -> str:
    if numbers and column.dtype.kind not in "buif":
        return f"are {column.dtype}, not numbers; save them as float32"
    if not numbers and column.dtype.kind not in "bui":
        return f"are {column.dtype}, not the numbers of classes; {_advice(column, count)}"
    if not column.shape or column.shape[0] != count:
        return f"have shape {list(column.shape)}, but there are {count} samples"
    return ""


def _advice(column: Column, count: int) -> str:
    """What labels that are no classes look like, and what to do with them."""
    rows = np.asarray(column[: min(count, LOOKED_AT)]) if column.dtype.kind == "f" and column.shape else None
    if rows is None or not rows.size or not np.isin(rows, (0, 1)).all():
        whole = rows is not None and rows.size and np.array_equal(rows, np.round(rows))
        return "save them as int64 if they are, or learn numbers with --loss mse or l1" if whole else NUMBERS
    if rows.ndim > 1 and rows.shape[-1] > 1 and (rows.sum(axis=-1) == 1).all():
        return "these are one-hot rows: save their .argmax(-1) as int64 (or learn yes and no with --loss bce)"
    return "yes and no are learned with --loss bce; if they are classes, save them as int64"


def _shared_note(name: str, source: str, column: Column) -> str:
    return (
        f"'{name}' of {source} is the same for every sample: its shape is {list(column.shape)}, as the model declares"
    )


def demand_finite(batch: Batch, source: str, numbers: Array | None = None) -> None:
    """NaN and infinity in training data come from a mistake, and every weight would be NaN after one step.

    `numbers` are those of the samples, where the first axis counts samples.
    """
    for name, array in batch.items():
        if array.dtype.kind not in "fc" or np.isfinite(array).all():
            continue
        where = tuple(int(place[0]) for place in np.nonzero(~np.isfinite(array)))
        row = f" in sample {numbers[where[0]]}" if numbers is not None and where else ""
        raise OptionError(f"array '{name}' of {source} holds NaN or infinity{row}; clean the data first")


def add_to(digest: Any, batch: Batch) -> None:
    """Add a batch to a digest: names, types, shapes and bytes."""
    for name in sorted(batch):
        array = batch[name]
        digest.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        digest.update(array.tobytes())


# -- Which samples make up each batch: random access to a shuffled order, the same on every machine.
#
# 1. Every epoch has an order of its own: a sort of Philox numbers, the seed as key and the epoch in the counter.
# 2. Every batch has the same size. What does not fill one at the end of an epoch is left out of it; as the orders
#    differ, each epoch leaves out others.
# 3. With fewer samples than a batch takes, rows repeat.


_EPOCHS, _PROBE, _DRAWN = 0, 1, 2


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


def drawn_rows(total: int, count: int, seed: int) -> Array:
    """So many of all rows, in the order in which a seed draws them: files are often sorted by class."""
    return _permutation(total, checked_seed(seed), _DRAWN, 0)[:count]


def _permutation(count: int, seed: int, purpose: int, number: int) -> Array:
    """A sort of random numbers is what it is on every machine, which a library's shuffle does not promise."""
    counter = np.array([0, 0, purpose, number], np.uint64)
    return np.argsort(np.random.Philox(key=seed, counter=counter).random_raw(count), kind="stable")


def checked_seed(seed: int) -> int:
    if not 0 <= seed < 1 << 64:
        raise OptionError(f"a seed is a whole number from 0 to 2**64 - 1, not {seed}")
    return seed


def held_out(count: int) -> int:
    """How many of so many samples only measure."""
    wanted = min(PROBE, max(LEAST, count // SHARE))
    return 0 if count == 1 else min(wanted, count // 2)
