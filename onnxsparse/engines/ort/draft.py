"""The working copy of a model that is prepared for training, and the samples that it is prepared with.

A *preparation* is a function that changes a `Draft`, and nothing else; `prepare` lists them in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from onnxsparse.errors import OptionError
from onnxsparse.graph.edit import copied, keep
from onnxsparse.math.values import Array


class Samples:
    """The samples that a graph is prepared with: one at a time as the user's file takes them, or many at once.

    1. An array whose first axis is longer than the declared first size holds samples along it, and so does one whose
       first size is not declared.
    2. An array of exactly the declared shape, whose first size is fixed, is shared by all samples (a state, a mask).
    3. A number without axes is shared; given as a row of numbers, each sample has its own.
    4. Where every array has exactly the declared shape, the first axes are the samples: the file takes so many at once.
    """

    def __init__(self, graph: GraphProto, arrays: Mapping[str, Array]) -> None:
        stored = {tensor.name for tensor in graph.initializer}
        declared = [value for value in graph.input if value.name not in stored]
        missing = [value.name for value in declared if value.name not in arrays]
        if missing:
            raise OptionError(f"the samples have no array for the input '{missing[0]}' of the model")
        self.arrays = {value.name: np.asarray(arrays[value.name]) for value in declared}
        self._unit = {value.name: _unit(value, self.arrays[value.name]) for value in declared}
        if not any(self._unit.values()):
            self._unit = {name: len(array) if array.ndim else 0 for name, array in self.arrays.items()}
        self.unit = max(self._unit.values(), default=0) or 1
        self._ranks = {value.name: _rank(value) for value in declared}

    @property
    def count(self) -> int:
        """How many runs of the user's file the samples are good for."""
        return min((len(self.arrays[name]) // unit for name, unit in self._unit.items() if unit), default=1)

    def sampled(self, name: str) -> bool:
        """Whether the input differs from sample to sample."""
        return bool(self._unit[name])

    def one(self, index: int) -> dict[str, Array]:
        """What a single run of the user's file takes."""
        return {name: self._part(name, [index]) for name in self.arrays}

    def many(self, batch: int, start: int = 0) -> dict[str, Array]:
        """`batch` samples in one run, counted round."""
        return {name: self._part(name, self.places(batch, start)) for name in self.arrays}

    def places(self, batch: int, start: int = 0) -> list[int]:
        return [(start + step) % self.count for step in range(batch)]

    def without(self, names: set[str]) -> None:
        for name in names:
            del self.arrays[name], self._unit[name]

    def _part(self, name: str, places: list[int]) -> Array:
        array, unit = self.arrays[name], self._unit[name]
        if not unit:
            return array
        if self._ranks[name] == 0:
            return np.asarray(array[places[0]])
        parts = [array[place * unit : (place + 1) * unit] for place in places]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _rank(value: ValueInfoProto) -> int | None:
    kind = value.type.tensor_type
    return len(kind.shape.dim) if kind.HasField("shape") else None


def _unit(value: ValueInfoProto, array: Array) -> int:
    """How much of the first axis belongs to one sample; 0 where the array is shared."""
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type") or kind.elem_type == TensorProto.STRING:
        raise OptionError(
            f"the input '{value.name}' of the model is no tensor of numbers, which cannot be trained with"
        )
    if array.ndim == 0:
        return 0
    if not kind.HasField("shape"):
        return 1
    if len(kind.shape.dim) == 0:
        return 1
    size = kind.shape.dim[0].dim_value
    if size <= 0:
        return 1
    return 0 if len(array) == size else size


@dataclass
class Draft:
    """A copy of the user's model. `wanted` are the tags of the tensors to train, `tags` holds those that are there:
    initializers of the main graph by name. It is meant for `batch` samples at once and takes `width` as it is now."""

    model: ModelProto
    samples: Samples
    wanted: frozenset[str] = frozenset()
    batch: int = 1
    width: int = 1
    tags: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def graph(self) -> GraphProto:
        return self.model.graph

    @property
    def opset(self) -> int:
        return next((entry.version for entry in self.model.opset_import if entry.domain in ("", "ai.onnx")), 1)

    def copy(self, batch: int, width: int) -> Draft:
        """The same again, for another batch."""
        return replace(
            self, model=copied(self.model), batch=batch, width=width, tags=dict(self.tags), notes=list(self.notes)
        )

    def starts(self) -> list[int]:
        """Where the first few feeds begin; the last is the first turned round when there are too few samples."""
        count = self.samples.count
        whole = list(range(0, max(1, count - self.width + 1), self.width))[:8]
        return whole if len(whole) > 1 else [0, count // 2] if count > 1 else [0]

    def feeds(self) -> list[dict[str, Array]]:
        """What the graph takes, a few times."""
        return [self.samples.many(self.width, start) for start in self.starts()]

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def tensors(self) -> dict[str, TensorProto]:
        return {tensor.name: tensor for tensor in self.graph.initializer}

    def place(self, nodes: Sequence[NodeProto]) -> None:
        """The nodes of the graph are these now."""
        keep(self.graph.node, nodes)


Preparation = Callable[[Draft], None]
"""Changes the copy in place."""
