"""Samples as a model is fed with them: in batches that it takes, laid out as it declares, as often as asked for.

1. A file that fixes how many samples it takes gets as many; what is missing in the last batch is filled with the
   samples that are there.
2. Keys and values of earlier tokens that the samples do not have are empty: there are no earlier tokens.
3. Where an output is an input's next value (a state), a run of the float model carries it from step to step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto
from onnx.helper import tensor_dtype_to_np_dtype

from onnxsparse import progress
from onnxsparse.data import LABELS, Data, Samples
from onnxsparse.data.samples import Batch
from onnxsparse.engines.inference import Feed, Session
from onnxsparse.errors import ModelError, OptionError
from onnxsparse.math.values import Array
from onnxsparse.planning.model_inputs import past_axis

BATCH, MOST = 32, 100_000
"""Samples at a time, and how many a function may yield that nobody limits."""
NUMBERS = 1 << 20
"""Of inputs at a time: what is observed of a network on images is a hundred times as much, and held at once."""


@dataclass(frozen=True)
class Given:
    """One batch with the samples first and perhaps labels; `count` of them are no fillers."""

    arrays: Batch
    count: int


class Feeds:
    """All samples of some data, or the first `limit`, for a model.

    `axes` are those of the samples by input where they are not first, `states` the output that each state comes from.
    """

    def __init__(
        self,
        proto: ModelProto,
        data: Data,
        limit: int | None = None,
        axes: Mapping[str, int] | None = None,
        states: Mapping[str, str] | None = None,
        stage: str = "calibrate",
        parts: int = 1,
    ) -> None:
        """`parts`: samples that take several batches make up so many at least, where that is open."""
        self.data, self.limit, self.stage = data, limit, stage
        self.axes, self.states = dict(axes or {}), dict(states or {})
        self.count = min(limit or data.count, data.count) if isinstance(data, Samples) else limit or 0
        """How many samples there are; of what a function yields that is known when all came once."""
        self._proto, self._kinds = proto, _shapes(proto)
        fixed = [shape[self.axes.get(name, 0)] for name, shape in self._kinds.items() if shape and self._by_rows(name)]
        self.fixed = next((size for size in fixed if size), 0)
        """How many samples the model takes at a time; 0 where that is open."""
        single = any(shape == [] and self._by_rows(name) for name, shape in self._kinds.items())
        self.size = self.fixed or (1 if single else self._few())
        if self.count > self.size and not self.fixed:
            self.size = min(self.size, -(-self.count // parts))
        fed = {field.name for field in data.fields} | set(self.states)
        past = {name: shape or () for name, shape in self._kinds.items() if name not in fed}
        self._empty = {
            name: shape for name, shape in past.items() if past_axis(name, shape, self.axes.get(name, 0)) is not None
        }
        """What is empty, and its shape."""
        bare = next((name for name, shape in self._kinds.items() if shape is None and name not in self.states), "")
        if self.states and bare:
            raise OptionError(f"the input '{bare}' declares no shape, so it cannot be told which axis counts steps")

    def _few(self) -> int:
        """As many samples as are held at once: fewer where they are large."""
        shapes = [shape for name, shape in self._kinds.items() if shape and self._by_rows(name)]
        largest = max((math.prod(size or 1 for size in shape) for shape in shapes), default=1)
        return min(BATCH, max(NUMBERS // largest, 1))

    def batches(self) -> Iterator[Given]:
        """Every sample once."""
        seen = 0
        for batch in self.data.through(self.size):
            count = self._rows(batch)
            wanted = min(count, self.limit - seen) if self.limit else count
            seen += wanted
            if not self.limit and not isinstance(self.data, Samples) and seen > MOST:
                raise OptionError(f"{self.data.called} yields more than {MOST} samples; say how many with --samples")
            rows = np.resize(np.arange(wanted), self.fixed or wanted)
            yield Given(batch if len(rows) == count == wanted else self._cut(batch, rows), wanted)
            if self.stage:
                progress.advance(self.stage, seen, max(self.count, seen))
            if self.limit and seen >= self.limit:
                break
        self.count = seen

    def __iter__(self) -> Iterator[Feed]:
        """What the model is run on, one run after the other."""
        carry = Session(self._proto) if self.states else None
        for given in self.batches():
            if carry is None:
                yield self.feed(given.arrays)
            else:
                yield from (feed for feed, _ in self._sequence(given.arrays, carry))

    def runs(self, batch: Batch, session: Session) -> list[dict[str, Any]]:
        """What a model gives on a batch; of a sequence, at each of its steps, by the model's own states."""
        if not self.states:
            return [session.run(self.feed(batch))]
        return [outputs for _, outputs in self._sequence(batch, session)]

    def steps(self, batch: Batch) -> list[Batch]:
        """A batch of sequences as a batch for each step; any other as it is."""
        if not self.states:
            return [batch]
        stepped = {name for name, one in batch.items() if self._stepped(name, one)}
        count = max((batch[name].shape[1] for name in stepped), default=1)
        return [
            {name: one[:, step] if name in stepped else one for name, one in batch.items()} for step in range(count)
        ]

    def feed(self, batch: Batch) -> Feed:
        """A batch as the model takes it."""
        found = {name: self._as_declared(name, array) for name, array in batch.items() if name in self._kinds}
        return found if not self._empty else {**self._past(self._rows(batch)), **found}

    @property
    def notes(self) -> list[str]:
        """What is said of the samples, and of what they do not have."""
        more = f" and {len(self._empty) - 1} more" if len(self._empty) > 1 else ""
        none = (
            [f"'{next(iter(self._empty))}'{more} are empty: the samples have no earlier tokens"] if self._empty else []
        )
        return [*self.data.notes, *none]

    def _past(self, rows: int) -> Feed:
        """Keys and values of no tokens."""
        kinds = {value.name: value.type.tensor_type.elem_type for value in self._proto.graph.input}
        found = {}
        for name, sizes in self._empty.items():
            shape = [rows if axis == self.axes.get(name, 0) else size or 0 for axis, size in enumerate(sizes)]
            found[name] = np.zeros(shape, tensor_dtype_to_np_dtype(kinds[name]))
        return found

    def _as_declared(self, name: str, array: Array) -> Array:
        if self._kinds[name] == [] and array.ndim:
            return np.asarray(array[0])
        axis = self.axes.get(name, 0)
        return np.ascontiguousarray(np.moveaxis(array, 0, axis)) if axis and self._by_rows(name) else array

    def _sequence(self, batch: Batch, session: Session) -> Iterator[tuple[Feed, dict[str, Any]]]:
        """What each step is fed, and what comes out."""
        carried = {name: self._beginning(name, batch) for name in self.states}
        for here in self.steps(batch):
            feed = {**self.feed(here), **carried}
            outputs = session.run(feed)
            yield feed, outputs
            carried = {name: outputs[output] for name, output in self.states.items()}

    def _stepped(self, name: str, array: Array) -> bool:
        """Whether a batch has it for each step: labels have, where they have more than one axis."""
        if name == LABELS:
            return array.ndim > 1
        shape = self._kinds.get(name)
        return name not in self.states and shape is not None and array.ndim > max(1, len(shape))

    def _beginning(self, name: str, batch: Batch) -> Array:
        if name in batch:
            return self._as_declared(name, batch[name])
        declared, axis = self._kinds[name], self.axes.get(name, 0)
        sizes = [self._rows(batch) if at == axis else size for at, size in enumerate(declared or ())]
        if declared is None or not all(sizes):
            raise OptionError(
                f"the sizes of the state '{name}' are not all declared: put what it begins with into the data"
            )
        kind = next(value.type.tensor_type.elem_type for value in self._proto.graph.input if value.name == name)
        return np.zeros([size or 0 for size in sizes], tensor_dtype_to_np_dtype(kind))

    def _rows(self, batch: Batch) -> int:
        return next(len(array) for name, array in batch.items() if name in self._kinds and self._by_rows(name))

    def _by_rows(self, name: str) -> bool:
        return name not in self.data.shared and any(field.name == name for field in self.data.fields)

    def _cut(self, batch: Batch, rows: Array) -> Batch:
        return {name: one[rows] if name == LABELS or self._by_rows(name) else one for name, one in batch.items()}


def _shapes(proto: ModelProto) -> dict[str, Sequence[int | None] | None]:
    """Sizes by input that is fed; None where a dimension is free, or for all where nothing is known of them."""
    stored = {tensor.name for tensor in proto.graph.initializer}
    found: dict[str, Sequence[int | None] | None] = {}
    for value in proto.graph.input:
        kind = value.type.tensor_type
        if not value.type.HasField("tensor_type"):
            raise ModelError(f"input '{value.name}' of the model is no tensor, which samples cannot hold")
        if value.name not in stored:
            found[value.name] = (
                [dim.dim_value if dim.dim_value > 0 else None for dim in kind.shape.dim]
                if kind.HasField("shape")
                else None
            )
    return found


__all__ = ["Feeds", "Given"]
