"""Data files beside a model: which there are, and writing them again with some tensors changed.

The layout of every file (offsets, order, padding) stays as it is; only the bytes of changed tensors differ.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO

from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto

from onnxsparse.errors import ModelError, OutputError
from onnxsparse.graph.every import every_tensor
from onnxsparse.graph.output import Staged, check_target, copy_range, put
from onnxsparse.graph.storage import DataFolder, Span, StoredTensor, external_span
from onnxsparse.graph.wire import Tokens, Window, condense


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
        for location, new in self._placed(target, source).items():
            path = os.path.join(os.path.dirname(target), new)
            staged.make_folder(os.path.dirname(path))
            check_target(path, overwrite)
            self._write_one(self._find(location), path, staged, edited)
            self._point_to(location, new)

    def _placed(self, target: str, source: str | None) -> dict[str, str]:
        """The new location of each data file: inside the target's folder, no two alike, none that the model reads."""
        folder, inputs = os.path.dirname(target), {os.path.realpath(path) for path in self.paths}
        if target in inputs:
            raise OutputError(f"{target} is a data file of the model itself; choose another name")
        owned = inputs if source is not None and os.path.realpath(source) == target else set()
        owned |= {os.path.realpath(os.path.join(folder, location)) for location in _locations_of(target)} - inputs
        placed: dict[str, str] = {}
        taken = {target} | (inputs - owned)
        for location in sorted(self.tensors):
            placed[location] = _free(location, folder, taken, owned, os.path.basename(source or ""), target)
            taken.add(os.path.realpath(os.path.join(folder, placed[location])))
        return placed

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


def _free(location: str, folder: str, taken: set[str], owned: set[str], source: str, target: str) -> str:
    """The location itself where nothing else has its name, else one made from the target's name."""
    plain = os.path.normpath(location)
    renamed = _renamed(plain, source, os.path.basename(target))
    candidates = [plain, renamed, *(f"{renamed}.{number}" for number in range(1, len(taken) + 2))]
    for candidate in candidates:
        path = os.path.realpath(os.path.join(folder, candidate))
        if os.path.commonpath([path, folder]) != folder:
            raise OutputError(f"the data file {location!r} would lie outside {folder}; move it beside the model")
        if path not in taken and (candidate != plain or path in owned or not os.path.lexists(path)):
            return candidate if candidate != plain else location
    raise OutputError(f"no free name for the data file {location!r} beside {target}")


def _renamed(location: str, source: str, target: str) -> str:
    """`model.onnx.data` of model.onnx becomes `sparse.onnx.data` for sparse.onnx."""
    folder, name = os.path.split(location)
    stem, new_stem = os.path.splitext(source)[0], os.path.splitext(target)[0]
    for old, new in ((source, target), (stem, new_stem)):
        if old and name.startswith(old):
            return os.path.join(folder, new + name[len(old) :])
    return os.path.join(folder, f"{target}.{name}")
