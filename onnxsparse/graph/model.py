"""An opened ONNX file: its graph without the large tensors, every stored tensor, and an atomic save.

`Model.proto` is a ModelProto of the model's own; large tensors are tokens in it and stay in the file until they are
read. A pass sets `StoredTensor.edit` (new numbers, same type and shape) or changes the graph; `save` writes the file
with everything else byte for byte as it was, `take_proto` returns it whole in memory.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Protocol, Union

from google.protobuf.message import DecodeError, EncodeError
from onnx import ModelProto, StringStringEntryProto, TensorProto

from onnxsparse.errors import ModelError, OptionError, OutputError, absent, brief
from onnxsparse.files import Staged, check_target, copy_range, finish, put
from onnxsparse.graph.attributes import text
from onnxsparse.graph.cross_check import refuse_unseen
from onnxsparse.graph.edit import every_tensor
from onnxsparse.graph.evaluator import Evaluator
from onnxsparse.graph.external import ExternalFiles, named_by, no_longer_named
from onnxsparse.graph.flow import Flow
from onnxsparse.graph.storage import DataFolder, Span, StoredTensor
from onnxsparse.graph.stores import Stores
from onnxsparse.graph.weights import Weight
from onnxsparse.graph.wire import Hole, Piece, Tokens, Window, condense, encode, expand

Source = Union[str, "os.PathLike[str]", ModelProto]
PAGE = 4096


class _Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...


LARGEST_FILE = 2**31 - 1
LINKED = "{} is a link into another folder: the data lies beside {}, where runtimes look for it by that name only"
LEFT = "data that {} names no more was left where it is; delete it if nothing else reads it: {}"


class Model:
    """One opened model. A pass opens its own, so nothing a caller holds is ever changed."""

    def __init__(self, proto: ModelProto, path: str | None, tokens: Tokens, folder: DataFolder | None = None) -> None:
        self.proto, self.path, self._tokens = proto, path, tokens
        self._spans = {token: Span(path or "", start, stop - start) for token, (start, stop) in tokens.spans.items()}
        self._folder = folder or (DataFolder(os.path.dirname(os.path.abspath(path)), model=path) if path else None)
        self._flow: Flow | None = None
        self._evaluator: Evaluator | None = None
        self._replaced: list[Callable[[], None]] | None = None  # inside of `restored`: what puts numbers back
        self.sizes: dict[str, int] = {}
        """Sizes of dynamic dimensions that the user gave, by their name or as INPUT.AXIS."""
        self._stamps = {name: _stamp(name) for name in ([path] if path else [])}
        if path:
            self._stamps.update({name: _stamp(name) for name in ExternalFiles.of(proto, self._folder).paths})

    @classmethod
    def over(cls, proto: ModelProto) -> Model:
        """A model over a ModelProto of the caller's, to read only."""
        return cls(proto, None, Tokens())

    @classmethod
    def open(cls, source: Source, folder: DataFolder | None = None) -> Model:
        if isinstance(source, ModelProto):
            copy = ModelProto()
            copy.CopyFrom(source)
            return cls(_checked(copy, "the model"), None, Tokens())
        if not isinstance(source, (str, os.PathLike)):
            raise OptionError(f"a model is a path or a ModelProto, not {brief(source)}")
        path = os.fspath(source)
        finish(path)
        tokens = Tokens()
        return cls(_checked(_parse(path, tokens), path), path, tokens, folder)

    def another(self) -> Model:
        """A second model over the same files, whose graph may change; large tensors stay where they are."""
        copy = ModelProto()
        copy.CopyFrom(self.proto)
        found = Model(copy, self.path, self._tokens, self._folder)
        found.sizes.update(self.sizes)
        return found

    @property
    def flow(self) -> Flow:
        if self._flow is None:
            self._flow = Flow(self.proto, Stores(self._spans, self._folder)).walk()
        return self._flow

    @property
    def evaluator(self) -> Evaluator:
        """The second opinion on where constants arrive, over the same stored tensors as `flow`."""
        if self._evaluator is None:
            self._evaluator = Evaluator(self.proto, self.flow.stores)
            refuse_unseen(self.flow.weights, self._evaluator)
        return self._evaluator

    @property
    def weights(self) -> list[Weight]:
        _ = self.evaluator
        return self.flow.weights

    def forget(self) -> None:
        """The graph was changed: whatever was found in it must be found again."""
        self._flow = self._evaluator = None

    @property
    def metadata(self) -> dict[str, str]:
        return {text(entry.key): text(entry.value) for entry in self.proto.metadata_props}

    def set_metadata(self, values: dict[str, str]) -> None:
        """Change the values of entries that are there, in place, and append the others."""
        rest = dict(values)
        for entry in self.proto.metadata_props:
            if entry.key in rest:
                entry.value = rest.pop(entry.key)
        for key, value in rest.items():
            self.proto.metadata_props.add(key=key, value=value)

    def drop_metadata(self, prefix: str) -> None:
        kept = [entry for entry in self.proto.metadata_props if not text(entry.key).startswith(prefix)]
        if len(kept) < len(self.proto.metadata_props):
            del self.proto.metadata_props[:]
            self.proto.metadata_props.extend(kept)

    def drop_metadata_key(self, key: str) -> None:
        for index, entry in enumerate(self.proto.metadata_props):
            if entry.key == key:
                del self.proto.metadata_props[index]
                return

    def sha256(self, whole: bool = False) -> str:
        """The digest of the file as it was opened (`sha256sum` gives the same). With data files beside it, of the file
        and, for each of them, its size and one page in every megabyte: to read it all would cost more than pruning.
        `whole`: every page."""
        if self.path is None:
            return hashlib.sha256(_serialized(self.proto)).hexdigest()
        digest = hashlib.sha256()
        for block in _blocks(self.path):
            digest.update(block)
        for path in ExternalFiles.of(self.proto, self._folder).paths:
            _digest_pages(path, digest, PAGE if whole else 1 << 20)
        return digest.hexdigest()

    def digest(self) -> str:
        """What a file is recognised by: SHA-256 of its size and one page in every 256 kB, and so for its data files;
        all of a file of up to 16 MB. Reading everything would take a third of the time of pruning."""
        digest = hashlib.sha256()
        if self.path is None:
            held = memoryview(_serialized(self.proto))
            digest.update(f"{len(held)}\n".encode())
            for at in range(0, len(held), _stride(len(held))):
                digest.update(held[at : at + PAGE])
            return digest.hexdigest()
        for path in (self.path, *ExternalFiles.of(self.proto, self._folder).paths):
            _digest_pages(path, digest, _stride(os.path.getsize(path)))
        return digest.hexdigest()

    @property
    def file_size(self) -> int:
        if self.path is None:
            return int(self.proto.ByteSize())
        return sum(os.path.getsize(path) for path in [self.path, *ExternalFiles.of(self.proto, self._folder).paths])

    # -- writing

    def demand_room(self, target: str) -> None:
        """Say before the work starts what would stop the model's data from being written beside `target`."""
        ExternalFiles.of(self.proto, self._folder).placed(os.path.realpath(target), self.path)

    def demand_checksums(self) -> None:
        """All data files are what the tensors that state a checksum say they are."""
        ExternalFiles.of(self.proto, self._folder).demand_checksums()

    def save(self, target: str, overwrite: bool, staged: Staged) -> list[str]:
        """Write the model to `target` (through a link) and its data files beside it, to be committed.

        Returns what has to be said: data files of the model that was there, which nothing names any more.
        """
        check_target(target, overwrite)
        self._store_edits_in_proto()
        real = os.path.realpath(target)
        named = named_by(real)
        written = self._write(real, staged)
        self._check_unchanged()
        left = no_longer_named(real, named, written)
        said = [LEFT.format(os.path.basename(real), ", ".join(left[:3]) + _and_more(len(left) - 3))] if left else []
        elsewhere = written and os.path.dirname(os.path.abspath(target)) != os.path.dirname(real)
        return [*said, LINKED.format(target, real)] if elsewhere and os.path.islink(target) else said

    def _check_unchanged(self) -> None:
        """What was read must be one state of the files: nobody may have changed them meanwhile."""
        for path, stamp in self._stamps.items():
            if _stamp(path) != stamp:
                raise ModelError(f"{path} was changed while it was being read; nothing was written, run it again")

    @property
    def inputs(self) -> list[str]:
        """The files the model is read from."""
        return list(self._stamps)

    def _write(self, target: str, staged: Staged) -> Sequence[str]:
        """Write the data files and the model; return what the data files are called from there."""
        files = ExternalFiles.of(self.proto, self._folder)
        placed = files.placed(target, self.path)
        files.demand_checksums()
        with files.restored():
            files.write(target, placed, staged, self._edited(external=True))
            small = _serialized(self.proto)
        lengths = {token: span.length for token, span in self._spans.items()}
        pieces = expand(small, self._tokens, lengths)
        if sum(piece.length if isinstance(piece, Hole) else len(piece) for piece in pieces) > LARGEST_FILE:
            raise OutputError(
                "the result is over 2 GB, which one ONNX file cannot hold; store the weights as external data first"
            )
        with staged.create(target) as file:
            self._write_pieces(pieces, file)
        return list(placed.values())

    def _write_pieces(self, pieces: Iterable[Piece], file: IO[bytes]) -> None:
        edited = {tensor.span: tensor for tensor in self._edited(external=False)}
        if self.path is None:
            for piece in pieces:
                assert isinstance(piece, bytes)
                put(file, piece)
            return
        with open(self.path, "rb") as source:
            for piece in pieces:
                self._write_piece(piece, source.fileno(), file, edited)

    def _write_piece(self, piece: Piece, source: int, file: IO[bytes], edited: dict[Span | None, StoredTensor]) -> None:
        if isinstance(piece, bytes):
            put(file, piece)
            return
        span = self._spans[piece.token]
        if span in edited:
            for numbers in edited[span].edited_payload():
                put(file, numbers)
        else:
            copy_range(source, file, span.offset, span.length)

    def _edited(self, external: bool) -> list[StoredTensor]:
        """The tensors whose new numbers are to be written: bytes that have several names once."""
        if self._flow is None:
            return []
        stores = self._flow.stores
        edited = [one for one in stores.homes if one.edit and one.span and one.external == external]
        return stores.once(edited, every_tensor(self.proto)) if external and edited else edited

    def _store_edits_in_proto(self) -> None:
        for tensor in self._flow.stores.homes if self._flow else ():
            if tensor.edit and tensor.span is None:
                if self._replaced is not None:
                    self._replaced.append(tensor.stored())
                tensor.store_edit()

    def take_proto(self) -> ModelProto:
        """The whole model in memory, its data included; inside of `restored` a copy. Else the model is used up."""
        if self._replaced is not None:
            return self.copy_proto()
        self._store_edits_in_proto()
        return self._filled(self.proto)

    def copy_proto(self) -> ModelProto:
        """The same as a copy; the model can be used on, and what was edited in it is still an edit."""
        with self.restored():
            self._store_edits_in_proto()
            copy = ModelProto()
            copy.CopyFrom(self.proto)
        return self._filled(copy)

    def _filled(self, proto: ModelProto) -> ModelProto:
        self.demand_checksums()
        edited = {tensor.span: tensor for tensor in [*self._edited(False), *self._edited(True)]}
        for tensor in every_tensor(proto):
            self._fill(tensor, edited)
        return proto

    def complete(self, proto: ModelProto) -> None:
        """Fill in, in place, the numbers of a part of the model that was put together from its nodes and tensors."""
        for tensor in every_tensor(proto):
            self._fill(tensor, {})

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Undo at the end what is done inside to numbers and metadata, so that one walk serves several results.

        The nodes of the graph must not be changed inside. Numbers are kept only of tensors that stand in the graph
        itself and have edits when they are stored: see `_store_edits_in_proto`.
        """
        edits = [(tensor, tensor.edit) for tensor in self.flow.stores.homes]
        metadata = [StringStringEntryProto.FromString(one.SerializeToString()) for one in self.proto.metadata_props]
        outer, self._replaced = self._replaced, []
        try:
            yield
        finally:
            for put_back in reversed(self._replaced):
                put_back()
            self._replaced = outer
            for tensor, edit in edits:
                tensor.edit = edit
            del self.proto.metadata_props[:]
            self.proto.metadata_props.extend(metadata)

    def _fill(self, proto: TensorProto, edited: dict[Span | None, StoredTensor]) -> None:
        if proto.data_location == TensorProto.EXTERNAL:
            span: Span | None = ExternalFiles.span(proto, self._folder)
            del proto.external_data[:]
            proto.ClearField("data_location")
        else:
            span = Stores(self._spans, self._folder).token_span(proto)
        if span is None:
            return
        data = (
            b"".join(piece.tobytes() for piece in edited[span].edited_payload())
            if span in edited
            else span.read(0, span.length).tobytes()
        )
        _set_payload(proto, data)


def _and_more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""


def _blocks(path: str) -> Iterator[memoryview]:
    with open(path, "rb", buffering=0) as file:
        buffer = memoryview(bytearray(1 << 20))
        while count := file.readinto(buffer):
            yield buffer[:count]


def _stride(size: int) -> int:
    """How far apart the pages are that a file is recognised by: side by side in a small one."""
    return 1 << 18 if size > 1 << 24 else PAGE


def _digest_pages(path: str, digest: _Digest, every: int = 1 << 20) -> None:
    size = os.path.getsize(path)
    digest.update(f"{size}\n".encode())
    with open(path, "rb", buffering=0) as file:
        for at in range(0, size, every):
            digest.update(os.pread(file.fileno(), PAGE, at))


def _set_payload(proto: TensorProto, data: bytes) -> None:
    for field in ("float_data", "double_data"):
        if len(getattr(proto, field)):
            number = TensorProto.DESCRIPTOR.fields_by_name[field].number
            proto.ClearField(field)
            proto.MergeFromString(_packed(number, data))
            return
    proto.raw_data = data


def _packed(number: int, data: bytes) -> bytes:
    return encode(number << 3 | 2) + encode(len(data)) + data


def _stamp(path: str) -> tuple[int, int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return status.st_ino, status.st_mtime_ns, status.st_size


def _parse(path: str, tokens: Tokens) -> ModelProto:
    if os.path.isdir(path):
        raise ModelError(f"{path} is a folder; name the .onnx file in it")
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        stub = path.startswith("zoo:")
        raise ModelError(absent(path) if stub else f"cannot read {path}: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ModelError(f"{path} is not an ordinary file; save the model to one first")
        return _parsed(path, descriptor, tokens)
    finally:
        os.close(descriptor)


def _parsed(path: str, descriptor: int, tokens: Tokens) -> ModelProto:
    proto = ModelProto()
    try:
        proto.ParseFromString(condense(Window(descriptor), os.fstat(descriptor).st_size, tokens))
    except (DecodeError, ModelError) as error:
        raise ModelError(f"{path} is not an ONNX model: {_guess(descriptor, error)}") from error
    return proto


_TELLTALES = (
    (b"", "it is empty"),
    (b"version https://git-lfs", "it is a Git LFS pointer; fetch the file itself with `git lfs pull`"),
    (b"<", "it looks like HTML or XML, perhaps an error page of a download"),
    (b"PK\x03\x04", "it is a zip archive, perhaps a PyTorch checkpoint; export it to ONNX first"),
    (b"\x89HDF", "it is an HDF5 file, perhaps a Keras model; export it to ONNX first"),
    (b"{", "it looks like JSON"),
)


def _guess(descriptor: int, error: Exception) -> str:
    start = os.pread(descriptor, 64, 0).lstrip()
    for telltale, meaning in _TELLTALES:
        if start.startswith(telltale) and (telltale or not start):
            return meaning
    return str(error) if isinstance(error, ModelError) else "it is cut short, damaged, or of another format"


def _checked(proto: ModelProto, where: str) -> ModelProto:
    if not proto.HasField("graph") or not (len(proto.graph.node) or len(proto.graph.initializer)):
        raise ModelError(f"{where} is not an ONNX model: it holds no graph")
    return proto


def _serialized(proto: ModelProto) -> bytes:
    try:
        return bytes(proto.SerializeToString())
    except (EncodeError, ValueError) as error:
        raise OutputError(
            "the model is over 2 GB in memory, more than one ONNX file holds; pass the path of one with external data"
        ) from error
