"""External data files of a model: which there are, what they are called beside a result, and writing them again.

1. A result with one data file has it beside it as `<result>.data` (`sparse.onnx.data` of sparse.onnx); one with several
   has them in the folder of that name. How the data is split, offsets, order and padding stay as they are: only the
   bytes of changed tensors differ.
2. A file in the way is replaced only where the result replaces the model that names it, and no other model reads it.
   Nothing is ever deleted: what the replaced model named and nothing names any more is told.
3. A file of which a tensor states the checksum is read whole before its numbers are believed, and once only; what is
   written gets the checksums of the new files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO

from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto

from onnxsparse.errors import ModelError, OnnxSparseError, OutputError
from onnxsparse.files import Digest, Staged, check_target, clear_folder, copy_range, put, sha1
from onnxsparse.graph.edit import every_tensor
from onnxsparse.graph.storage import DataFolder, Span, StoredTensor, entries_of, external_span
from onnxsparse.graph.wire import Tokens, Window, condense

ENDING = ".data"
SMALL = 1 << 20
"""Bytes of a model file that are rather read whole than without its payloads."""


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
                found.tensors.setdefault(entries_of(tensor).get("location", ""), []).append(tensor)
        return found

    @staticmethod
    def span(tensor: TensorProto, folder: DataFolder | None) -> Span:
        return external_span(tensor, folder, tensor.name)

    @property
    def paths(self) -> list[str]:
        return [self._find(location) for location in sorted(self.tensors)]

    def _find(self, location: str) -> str:
        return self.folder.find(location, location) if self.folder else location

    def demand_checksums(self) -> None:
        """Every data file is what the tensors that state a checksum say it is."""
        for tensors in self.tensors.values():
            for tensor in tensors:
                if self.folder is not None:
                    self.folder.demand_checksum(entries_of(tensor), tensor.name)

    def placed(self, target: str, source: str | None) -> dict[str, str]:
        """What each data file is called beside `target`, by its real path; an error where such a name is not free."""
        if not self.tensors:
            return {}
        if target in self.paths:
            raise OutputError(f"{target} is a data file of the model itself; choose another name")
        placed = self._named(os.path.basename(target) + ENDING)
        _demand_text(target)
        owned, same = named_by(target), source is not None and os.path.realpath(source) == target
        for new in placed.values():
            _demand_free(new, target, owned, set() if same else set(self.paths))
        return placed

    def _named(self, name: str) -> dict[str, str]:
        """`name` for a single file; for several the place that each had, in a folder of that name."""
        spelled: dict[str, str] = {}
        for location in sorted(self.tensors):
            spelled.setdefault(self._find(location), os.path.normpath(location).replace(os.sep, "/"))
        if len(spelled) < 2:
            return dict.fromkeys(spelled, name)
        if len(set(spelled.values())) < len(spelled):  # one way through a link is spelled as the way to another file
            root = os.path.realpath(self.folder.path if self.folder else "")
            spelled = {path: os.path.relpath(path, root).replace(os.sep, "/") for path in spelled}
        return {path: f"{name}/{rest}" for path, rest in _without_folder(spelled).items()}

    def write(self, target: str, placed: Mapping[str, str], staged: Staged, edits: Sequence[StoredTensor]) -> None:
        """Write every data file, to be committed, and make the tensors' entries those of the new files."""
        for source, new in placed.items():
            path = os.path.join(os.path.dirname(target), *new.split("/"))
            staged.make_folder(os.path.dirname(path))
            locations = [location for location in self.tensors if self._find(location) == source]
            tensors = [tensor for location in locations for tensor in self.tensors[location]]
            digest = sha1() if any(entries_of(tensor).get("checksum") for tensor in tensors) else None
            mine = [tensor for tensor in edits if tensor.span and tensor.span.path == source]
            _write_one(source, path, staged, mine, digest)
            for tensor in tensors:
                _point_to(tensor, new, digest.hexdigest() if digest else "")

    @contextmanager
    def restored(self) -> Iterator[None]:
        """What the entries of the tensors were before the block, they are again behind it."""
        kept = [
            (entry, entry.value)
            for tensors in self.tensors.values()
            for tensor in tensors
            for entry in tensor.external_data
        ]
        try:
            yield
        finally:
            for entry, value in kept:
                entry.value = value


def _without_folder(spelled: Mapping[str, str]) -> dict[str, str]:
    """Without the folder that an earlier result had for its data files."""
    first = {text.partition("/")[0] for text in spelled.values()}
    own = len(first) == 1 and next(iter(first)).endswith(ENDING)
    return {path: text.partition("/")[2] if own else text for path, text in spelled.items()}


def _demand_text(target: str) -> None:
    try:
        os.path.basename(target).encode("utf-8")
    except UnicodeEncodeError:
        raise OutputError(
            f"the name {os.path.basename(target)!r} is not UTF-8, and its data could not be named in an ONNX file; "
            "choose another name"
        ) from None


def _demand_free(new: str, target: str, owned: set[str], inputs: set[str]) -> None:
    """A data file may have this name if nothing has it, or only what the result replaces and nobody else reads."""
    folder, out = os.path.dirname(target), os.path.basename(target)
    place = os.path.join(folder, *new.split("/"))
    path, parent = os.path.realpath(place), os.path.join(folder, new.partition("/")[0])
    if os.path.commonpath([path, folder]) != folder:
        raise OutputError(f"the data file {new!r} would lie outside {folder}; move the link away that leads there")
    if parent != place and os.path.lexists(parent) and not os.path.isdir(parent):
        raise OutputError(
            f"{parent} is in the way of the folder for the data files of {out}; move it away or choose another name"
        )
    clear_folder(place)
    if not os.path.lexists(place):
        return
    if path in inputs:
        raise OutputError(f"{place} is data of the model that is read; choose another name for the result")
    if path not in owned or not os.path.isfile(path):
        raise OutputError(
            f"{place} is in the way: the data of {out} goes there, and it is no data of an earlier {out}; move it away "
            "or choose another name"
        )
    reader = other_reader(path, target)
    if reader is not None:
        raise OutputError(
            f"{place} is data of {reader} too, which would change; choose another name for the result, or give that "
            "model data of its own"
        )
    check_target(place, True)


def _write_one(source: str, path: str, staged: Staged, edits: Sequence[StoredTensor], digest: Digest | None) -> None:
    changes = sorted(((t.span.offset, t) for t in edits if t.span), key=lambda change: change[0])
    with open(source, "rb") as file, staged.create(path) as out:
        at = 0
        for offset, tensor in changes:
            copy_range(file.fileno(), out, at, offset - at, digest)
            at = offset + _write_edit(tensor, out, digest)
        copy_range(file.fileno(), out, at, os.path.getsize(source) - at, digest)


def _write_edit(tensor: StoredTensor, out: IO[bytes], digest: Digest | None) -> int:
    length = 0
    for numbers in tensor.edited_payload():
        put(out, numbers, digest)
        length += numbers.nbytes
    if tensor.span is None or length != tensor.span.length:
        raise OnnxSparseError(f"the new numbers of '{tensor.name}' are {length} bytes; please report this")
    return length


def _point_to(tensor: TensorProto, location: str, checksum: str) -> None:
    for entry in tensor.external_data:
        if entry.key == "location":
            entry.value = location
        elif entry.key == "checksum" and entry.value:
            entry.value = checksum


# -- other models


def named_by(model: str) -> set[str]:
    """The real paths of the data files that a model names, whether they are there or not; none if it is no model."""
    folders = {os.path.dirname(os.path.abspath(model)), os.path.dirname(os.path.realpath(model))}
    return {os.path.realpath(os.path.join(folder, text)) for text in _locations_of(model) for folder in folders}


def no_longer_named(target: str, named: set[str], written: Sequence[str]) -> list[str]:
    """Of the data files that the model at `target` named before it was replaced, those that are just left there."""
    folder = os.path.dirname(target)
    left = named - {os.path.realpath(os.path.join(folder, *new.split("/"))) for new in written}
    inside = [path for path in left if os.path.commonpath([path, folder]) == folder and os.path.isfile(path)]
    return sorted(os.path.relpath(path, folder) for path in inside)


def own_data(model: str) -> list[str]:
    """The data files that a model names under its own name, and that no other model reads."""
    real = os.path.realpath(model)
    named = [path for path in sorted(named_by(real)) if f"{path}{os.sep}".startswith(f"{real}{ENDING}{os.sep}")]
    return [path for path in named if os.path.isfile(path) and other_reader(path, real) is None]


def other_reader(path: str, target: str) -> str | None:
    """Another model than `target` that names the data file at `path`.

    A location leads into the folder of its model, or below: so the `.onnx` files of this folder and of those above it
    are looked at, without their weights, and those in which the name stands nowhere are not even parsed.
    """
    folder = os.path.dirname(path)
    while True:
        models, links = _models_in(folder, path)
        names = [name.encode("utf-8", "surrogatepass") for name in (os.path.basename(path), *links)]
        for model in models:
            if os.path.realpath(model) != target and path in _named_if(model, names):
                return model
        if folder == os.path.dirname(folder):
            return None
        folder = os.path.dirname(folder)


def _models_in(folder: str, path: str) -> tuple[list[str], list[str]]:
    """The `.onnx` files of a folder, and the names of links in it that lead to a file."""
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError:  # a folder above that we may not read
        return [], []
    models = [entry.path for entry in entries if entry.name.lower().endswith(".onnx") and entry.is_file()]
    links = [entry.name for entry in entries if entry.is_symlink() and os.path.realpath(entry.path) == path]
    return models, links


def _named_if(model: str, names: Sequence[bytes]) -> set[str]:
    small = _small(model)
    return named_by(model) if any(name in small for name in names) else set()


def _small(model: str) -> bytes:
    """A model file without its large payloads; nothing where it is no model."""
    try:
        with open(model, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            return file.read() if size <= SMALL else condense(Window(file.fileno()), size, Tokens())
    except (OSError, ModelError):
        return b""


def _locations_of(model: str) -> set[str]:
    try:
        proto = ModelProto.FromString(_small(model))
        tensors = [tensor for tensor in every_tensor(proto) if tensor.external_data]
        found = {entries_of(tensor).get("location", "") for tensor in tensors}
    except (DecodeError, ValueError):  # there is none, or it is no model: then nothing beside it is its own
        return set()
    return {location for location in found if location and "\0" not in location}
