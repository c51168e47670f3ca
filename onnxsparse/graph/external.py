"""Data files beside a model: which there are, and writing them again with some tensors changed.

The layout of every file (offsets, order, padding) stays as it is; only the bytes of changed tensors differ.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO

from google.protobuf.message import DecodeError
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from onnxsparse.errors import ModelError, OutputError
from onnxsparse.graph.output import Staged, check_target, copy_range, put
from onnxsparse.graph.storage import DataFolder, Span, StoredTensor, external_span
from onnxsparse.graph.wire import Tokens, Window, condense


def every_tensor(proto: ModelProto) -> Iterator[TensorProto]:
    """All tensors of a model, wherever they stand."""
    yield from _graph_tensors(proto.graph)
    for function in proto.functions:
        yield from _node_tensors(function.node)
    for training in proto.training_info:
        yield from _graph_tensors(training.initialization)
        yield from _graph_tensors(training.algorithm)


def _graph_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Sequence[NodeProto]) -> Iterator[TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            yield from _attribute_tensors(attribute)


def _attribute_tensors(attribute: AttributeProto) -> Iterator[TensorProto]:
    if attribute.type in (AttributeProto.TENSOR, AttributeProto.TENSORS):
        yield from [attribute.t, *attribute.tensors] if attribute.HasField("t") else attribute.tensors
    elif attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
        for graph in [attribute.g, *attribute.graphs] if attribute.HasField("g") else attribute.graphs:
            yield from _graph_tensors(graph)
    elif attribute.type in (AttributeProto.SPARSE_TENSOR, AttributeProto.SPARSE_TENSORS):
        for sparse in [attribute.sparse_tensor, *attribute.sparse_tensors]:
            yield sparse.values
            yield sparse.indices


def _entries(proto: TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in proto.external_data}


@dataclass
class ExternalFiles:
    """The data files of one model, by the location its tensors name."""

    folder: DataFolder | None
    tensors: dict[str, list[TensorProto]] = field(default_factory=dict)

    @classmethod
    def of(cls, proto: ModelProto, folder: DataFolder | None) -> ExternalFiles:
        found = cls(folder)
        for tensor in every_tensor(proto):
            if tensor.data_location == TensorProto.EXTERNAL:
                cls.span(tensor, folder)
                found.tensors.setdefault(_entries(tensor).get("location", ""), []).append(tensor)
        return found

    @staticmethod
    def span(tensor: TensorProto, folder: DataFolder | None) -> Span:
        return external_span(tensor, folder, tensor.name)

    @property
    def paths(self) -> list[str]:
        return [self._find(location) for location in sorted(self.tensors)]

    def _find(self, location: str) -> str:
        return self.folder.find(location, location) if self.folder else location

    def write(
        self, target: str, source: str | None, overwrite: bool, staged: Staged, edited: Sequence[StoredTensor]
    ) -> None:
        """Write every data file beside `target`; a name taken by anything but `target`'s own data is changed."""
        if not self.tensors:
            return
        if os.path.realpath(target) in {os.path.realpath(path) for path in self.paths}:
            raise OutputError(f"{target} is a data file of the model itself; choose another name")
        folder, owned = os.path.dirname(os.path.abspath(target)), _locations_of(target)
        for location in sorted(self.tensors):
            new = location
            if os.path.lexists(os.path.join(folder, location)) and location not in owned:
                new = _renamed(location, os.path.basename(source or ""), os.path.basename(target))
            path = os.path.join(folder, new)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            check_target(path, overwrite)
            self._write_one(self._find(location), path, staged, edited)
            self._point_to(location, new)

    def _write_one(self, source: str, path: str, staged: Staged, edited: Sequence[StoredTensor]) -> None:
        changes = sorted(((t.span.offset, t) for t in edited if t.span and t.span.path == source), key=lambda c: c[0])
        with open(source, "rb") as file, staged.create(path) as out:
            at = 0
            for offset, tensor in changes:
                copy_range(file.fileno(), out, at, offset - at)
                at = offset + _write_edit(tensor, out)
            copy_range(file.fileno(), out, at, os.path.getsize(source) - at)

    def _point_to(self, location: str, new: str) -> None:
        for tensor in self.tensors[location] if new != location else ():
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = new


def _write_edit(tensor: StoredTensor, out: IO[bytes]) -> int:
    length = 0
    for numbers in tensor.edited():
        put(out, numbers)
        length += numbers.nbytes
    return length


def _locations_of(target: str) -> set[str]:
    """The data files of the model that `target` would replace: these may be replaced with it."""
    try:
        with open(target, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            proto = ModelProto.FromString(condense(Window(file.fileno()), size, Tokens()))
    except (OSError, DecodeError, ModelError):  # there is none, or it is no model: then nothing beside it is its own
        return set()
    return {_entries(tensor).get("location", "") for tensor in every_tensor(proto) if tensor.external_data}


def _renamed(location: str, source: str, target: str) -> str:
    """`model.onnx.data` of model.onnx becomes `sparse.onnx.data` for sparse.onnx."""
    folder, name = os.path.split(location)
    stem, new_stem = os.path.splitext(source)[0], os.path.splitext(target)[0]
    for old, new in ((source, target), (stem, new_stem)):
        if old and name.startswith(old):
            return os.path.join(folder, new + name[len(old) :])
    return os.path.join(folder, f"{target}.{name}")
