"""Streaming training data from a generator function, in batches of the right size; and checks of labels.

1. The function is called again whenever what it yielded is used up; every call is a pass. A pass without samples is an
   error. Rows left at the end of a pass are followed by the first of the next: no sample is lost.
2. `batch(k, rows)` can be asked for any k. Later ones are reached by reading on, earlier ones by beginning again, so a
   resumed run sees what it would have seen if the function yields the same every time. `fingerprint` tells.
3. What is yielded is a mapping of arrays by the names of the inputs, or a sequence in their order, the labels last.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from onnxsparse.data.field import IGNORED, LABELS, Field, all_ignored
from onnxsparse.data.samples import Batch, Samples, add_to
from onnxsparse.data.sources import InMemory
from onnxsparse.data.user_functions import running
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array

LabelCheck = Callable[[Array, int], int]
_END = object()


class Piece(NamedTuple):
    """Some samples, as they were yielded or what is left of them."""

    rows: int
    batch: Batch


class Stream:
    """Batches in the order in which a function yields samples. `made` is what its first call gave."""

    def __init__(
        self,
        make: Callable[[], Any],
        made: Any,
        called: str,
        fields: Sequence[Field],
        labels: str | None = None,
        want: bool = False,
        numbers: bool | None = False,
    ) -> None:
        self._numbers = numbers
        self.fields, self.called = tuple(fields), called
        self.passes, self._called_again = 0, False
        self._make, self._labels, self._want = make, labels, want
        self._check: LabelCheck | None = None
        self._used = 0
        self._held_out, self._known = 0, False
        self.complete: Callable[[Batch], Batch] = dict
        """Adds what a model computes for each batch, such as proposals."""
        self.shared: tuple[str, ...] = ()
        self._opened: Iterator[Any] | None = self._over(made)
        first = self._look()
        self.shared, self.notes, self.has_labels = first.shared, first.notes, first.has_labels
        self.names, self.numbers = first.names, first.numbers
        self._want, self._known = first.has_labels, True
        self.fingerprint = self._look_closer(first)
        self._begin()

    def check_with(self, check: LabelCheck) -> None:
        """Look at the labels of all samples as they come: `check(labels, number of the first one in its pass)`.

        It gives how many of them count; where none does, in what is held out or in a whole pass, that is an error.
        """
        self._check = check

    def batch(self, step: int, rows: int) -> Batch:
        """Batch number `step`, of exactly `rows` samples; all calls have to name the same `rows`."""
        if step * rows < self._given:
            self._begin()
        for _ in self._read(step * rows - self._given):
            pass
        return self.complete(self._joined(list(self._read(rows))))

    def probe(self, count: int) -> Batch:
        """The first samples, at most `count`; training does without them from now on, unless there are no others."""
        self._held_out, found, pieces = 0, [], self._pass()
        for piece in pieces:
            found.append(_cut(piece, 0, min(piece.rows, count), self.shared))
            count -= found[-1].rows
            if not count:
                break
        if not found:
            raise self._empty()
        self._demand_used(f"the first {sum(map(_rows, found))} samples of {self.called}")
        if (piece.rows > found[-1].rows or next(pieces, None) is not None) and not count:
            self._held_out = sum(map(_rows, found))
        else:
            self.notes.append(
                f"{self.called} yields too few samples to leave some out: all are trained on and measured"
            )
        self._begin()
        return self.complete(self._joined(found))

    def through(self, rows: int) -> Iterator[Batch]:
        """All samples of one pass, whether held out or not; the last batch may be smaller."""
        held: list[Piece] = []
        for piece in self._pass():
            start = 0
            while start < piece.rows:
                stop = min(start + rows - sum(map(_rows, held)), piece.rows)
                held.append(_cut(piece, start, stop, self.shared))
                start = stop
                if sum(map(_rows, held)) == rows:
                    yield self._joined(held)
                    held = []
        if held:
            yield self._joined(held)

    def _begin(self) -> None:
        self._given = self.passes = 0
        self._pieces = self._endless()
        self._rest: Piece | None = None

    def _read(self, rows: int) -> Iterator[Piece]:
        """The next `rows` samples in pieces; what is left of the last one is kept."""
        self._given += rows
        while rows:
            piece = self._rest or next(self._pieces)
            count = min(piece.rows, rows)
            self._rest = _cut(piece, count, piece.rows, self.shared) if count < piece.rows else None
            rows -= count
            yield _cut(piece, 0, count, self.shared)

    def _endless(self) -> Iterator[Piece]:
        while True:
            self.passes += 1
            nothing, skip = True, self._held_out
            for piece in self._pass():
                if piece.rows > skip:
                    nothing = False
                    yield _cut(piece, skip, piece.rows, self.shared)
                skip = max(skip - piece.rows, 0)
            if nothing:
                raise self._empty()

    def _empty(self) -> OptionError:
        again = " when it is called again; every call has to begin anew" if self._called_again else ""
        return OptionError(f"{self.called} yields no samples{again}")

    def _pass(self) -> Iterator[Piece]:
        """What one call of the function yields."""
        opened, self._opened = self._opened, None
        if opened is None:
            self._called_again = True
            with running(self.called):
                made = self._make()
            opened = self._over(made)
        start = self._used = 0
        for item in self._items(opened):
            samples = self._understood(item)
            rows = np.arange(samples.count)
            if self._check is not None:
                self._used += self._check(samples.labels(rows), start)
            batch = samples.take(rows, start)
            start += samples.count
            yield Piece(samples.count, batch)
        if start:
            self._demand_used(self.called)

    def _demand_used(self, where: str) -> None:
        if self._check is not None and not self._used:
            raise all_ignored(where)

    def _over(self, made: Any) -> Iterator[Any]:
        with running(self.called):
            if hasattr(made, "__iter__") or hasattr(made, "__getitem__"):
                return iter(made)
        raise OptionError(f"{self.called} gives {type(made).__name__}; it has to yield dictionaries of arrays")

    def _items(self, items: Iterator[Any]) -> Iterator[Any]:
        while True:
            with running(self.called):
                item = next(items, _END)
            if item is _END:
                return
            yield item

    def _look(self) -> Samples:
        """The first piece, which is yielded once more."""
        assert self._opened is not None
        first = next(self._items(self._opened), _END)
        if first is _END:
            raise self._empty()
        self._opened = chain([first], self._opened)
        return self._understood(first)

    def _look_closer(self, first: Samples) -> str:
        batch = first.take(np.arange(first.count))
        digest = hashlib.sha256()
        add_to(digest, batch)
        return digest.hexdigest()

    def _understood(self, item: Any) -> Samples:
        source = InMemory(by_name(item, self.fields, self._labels, self.called), self.called)
        samples = Samples(source, self.fields, self._labels, self._want, self.shared, self._numbers)
        if self._known and samples.shared != self.shared:
            odd = next(iter(set(samples.shared) ^ set(self.shared)))
            raise OptionError(f"{self.called} yields '{odd}' once for each sample and once for all of them")
        return samples

    def _joined(self, pieces: Sequence[Piece]) -> Batch:
        first = pieces[0].batch
        if len(pieces) == 1:
            return first
        return {name: first[name] if name in self.shared else self._concatenated(name, pieces) for name in first}

    def _concatenated(self, name: str, pieces: Sequence[Piece]) -> Array:
        arrays = [piece.batch[name] for piece in pieces]
        for array in arrays:
            if array.shape[1:] != arrays[0].shape[1:]:
                raise OptionError(
                    f"{self.called} yields samples of '{name}' of shape {list(arrays[0].shape[1:])} and of "
                    f"{list(array.shape[1:])}; make them alike, by padding or cropping"
                )
        return np.concatenate(arrays)


def _rows(piece: Piece) -> int:
    return piece.rows


def _cut(piece: Piece, start: int, stop: int, shared: Sequence[str]) -> Piece:
    if start == 0 and stop == piece.rows:
        return piece
    cut = {name: array if name in shared else array[start:stop] for name, array in piece.batch.items()}
    return Piece(stop - start, cut)


def by_name(item: Any, fields: Sequence[Field], labels: str | None, called: str) -> Mapping[str, Any]:
    """Arrays by name, also where they came in the order of the inputs, the labels last."""
    if isinstance(item, Mapping):
        return item
    fields = [field for field in fields if not field.optional]
    if len(fields) == 1 and hasattr(item, "shape"):
        return {fields[0].name: item}
    names = [*(field.name for field in fields), labels or LABELS]
    if isinstance(item, (tuple, list)) and len(fields) <= len(item) <= len(names):
        return dict(zip(names, item))
    size = f" of {len(item)}" if isinstance(item, (tuple, list)) else ""
    raise OptionError(
        f"{called} gives {type(item).__name__}{size}; "
        f"it has to give dictionaries with the arrays {', '.join(names[:-1])}, or these in order"
    )


# -- Labels are numbers of classes from 0, or -100 for what is to be left out of the loss.


LABEL_BLOCK = 1 << 16
BOUNDLESS = 1 << 63
"""More classes than any model tells apart: any number from 0 is one."""


def check_labels(samples: Samples | Stream, classes: int) -> None:
    """Every label of all samples is one of the classes; those of a stream are checked as they come."""
    if not samples.has_labels:
        raise OptionError(f"{samples.called} has no labels; name their array, or train without labels")
    if isinstance(samples, Stream):
        samples.check_with(lambda labels, start: check_block(labels, start, classes, samples.called))
        return
    used = 0
    for start in range(0, samples.count, LABEL_BLOCK):
        block = samples.labels(np.arange(start, min(start + LABEL_BLOCK, samples.count)))
        used += check_block(block, start, classes, samples.called)
    if not used:
        raise all_ignored(samples.called)


def check_block(labels: Array, start: int, classes: int, source: str) -> int:
    """How many labels are used; the first that is no class is an error. `start` is the number of the first sample."""
    ignored = labels == IGNORED
    wrong = ((labels < 0) | (labels > classes - 1)) & ~ignored
    if wrong.any():
        place = np.argwhere(wrong)[0]
        which = "none of the classes, which count from 0"
        if classes < BOUNDLESS:
            which = f"none of the model's {classes} classes, which count from 0 to {classes - 1}"
        raise OptionError(
            f"label {labels[tuple(place)]} of sample {start + place[0]} of {source} is {which} "
            f"({IGNORED} leaves a sample out)"
        )
    return int(labels.size - np.count_nonzero(ignored))
