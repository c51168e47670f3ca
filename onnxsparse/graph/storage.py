"""Tensor storage: where the numbers of one stored tensor are; reading and replacing them without loading the rest.

A tensor's numbers are in one of four places, which a pass never has to know:

    payload    a span of the model file (its TensorProto holds a token of `wire`)
    external   a span of a data file beside the model
    raw        the raw_data bytes of the TensorProto
    typed      float_data, int32_data, int64_data, uint64_data or double_data of the TensorProto

Numbers are handed out in their stored form: bfloat16 as uint16 bits, 4-bit integers as bytes of one number each (a file
has two in a byte, the first in the lower half), everything else as numpy's own type.
"""

from __future__ import annotations

import hashlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxsparse.errors import ModelError
from onnxsparse.graph.layout import Shape, size_of

Array = np.ndarray[Any, Any]
Edit = Callable[[], Iterator[Array]]

UINT4, INT4 = 21, 22
"""Of TensorProto.DataType; versions of onnx that have no such names read them all the same."""

# TensorProto data type -> (our name, numpy type of the stored form, field of the typed form)
_TYPES: dict[int, tuple[str, str, str]] = {
    TensorProto.FLOAT: ("float32", "<f4", "float_data"),
    TensorProto.DOUBLE: ("float64", "<f8", "double_data"),
    TensorProto.FLOAT16: ("float16", "<f2", "int32_data"),
    TensorProto.BFLOAT16: ("bfloat16", "<u2", "int32_data"),
    TensorProto.INT8: ("int8", "i1", "int32_data"),
    TensorProto.UINT8: ("uint8", "u1", "int32_data"),
    TensorProto.INT16: ("int16", "<i2", "int32_data"),
    TensorProto.UINT16: ("uint16", "<u2", "int32_data"),
    TensorProto.INT32: ("int32", "<i4", "int32_data"),
    TensorProto.INT64: ("int64", "<i8", "int64_data"),
    TensorProto.UINT32: ("uint32", "<u4", "uint64_data"),
    TensorProto.UINT64: ("uint64", "<u8", "uint64_data"),
    TensorProto.BOOL: ("bool", "?", "int32_data"),
    UINT4: ("uint4", "u1", "int32_data"),
    INT4: ("int4", "i1", "int32_data"),
}
PACKED_KINDS = ("int4", "uint4")
WEIGHT_KINDS = ("float64", "float32", "float16", "bfloat16", "int8", "uint8", *PACKED_KINDS)
MOST_DIMS = 16
FLOAT_KINDS = ("float64", "float32", "float16", "bfloat16")


def kind_of(data_type: int) -> str:
    """Our name of an ONNX element type; types we do not read keep ONNX's own name in lower case."""
    if data_type in _TYPES:
        return _TYPES[data_type][0]
    known = data_type in TensorProto.DataType.values()
    return TensorProto.DataType.Name(data_type).lower() if known else f"element type {data_type}"


@dataclass(frozen=True)
class Span:
    """`length` bytes from `offset` of a file."""

    path: str
    offset: int
    length: int

    def read(self, start: int, stop: int, into: Array | None = None) -> Array:
        """Bytes start to stop of the span, as a new array or at the start of `into`."""
        # A new array is not zeroed first, as a bytearray would be.
        data: Array = np.empty(stop - start, np.uint8) if into is None else into[: stop - start]
        with open(self.path, "rb", buffering=0) as file:
            file.seek(self.offset + start)
            if _fill(file, data.data) < len(data):
                raise ModelError(f"{self.path} ends inside a tensor's data; it is cut short or was changed meanwhile")
        return data


def _fill(file: Any, view: memoryview) -> int:
    done = 0
    while done < len(view):
        count = file.readinto(view[done:])
        if not count:
            break
        done += count
    return done


@dataclass(eq=False)
class StoredTensor:
    """One tensor of the file: its proto, its name in the scope it is defined in, and where its numbers are."""

    proto: TensorProto = field(repr=False)
    name: str = ""
    span: Span | None = None
    external: bool = False
    problem: str = ""
    edit: Edit | None = field(default=None, repr=False)
    before_reading: Callable[[], None] | None = field(default=None, repr=False)
    """What is to be checked before numbers are read, once: the checksum of the data file, where one is stated."""
    _held: bytes | None = field(default=None, repr=False)

    @property
    def kind(self) -> str:
        return kind_of(self.proto.data_type)

    @property
    def shape(self) -> Shape:
        return tuple(self.proto.dims)

    @property
    def size(self) -> int:
        return size_of(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(_TYPES[self.proto.data_type][1])

    @property
    def packed(self) -> bool:
        """Whether a byte of the file holds two numbers."""
        return self.kind in PACKED_KINDS

    @property
    def nbytes(self) -> int:
        """What the numbers take in the file; 0 where they cannot be read."""
        if not self.readable:
            return 0
        return (self.size + 1) // 2 if self.packed else self.size * self.dtype.itemsize

    @property
    def rank_problem(self) -> str:
        many = len(self.proto.dims)
        return f"it has {many} dimensions, more than the {MOST_DIMS} that are supported" if many > MOST_DIMS else ""

    @property
    def readable(self) -> bool:
        return self.proto.data_type in _TYPES and not self.problem

    def check(self) -> None:
        """The data must have as many elements as the dims say."""
        if any(dim < 0 for dim in self.shape):
            raise ModelError(f"tensor '{self.name}' has a negative dimension {list(self.shape)}")
        if self.proto.data_type not in _TYPES:
            return
        have = self._element_count()
        if have is not None and have != self.size:
            raise ModelError(
                f"tensor '{self.name}' of shape {list(self.shape)} needs {self.size} elements, its data has {have:g}"
            )

    def _element_count(self) -> float | None:
        if not self.span and not self.proto.HasField("raw_data"):
            return self._unpacked_count(len(self._typed_field()))
        length = self.span.length if self.span else len(self.proto.raw_data)
        return self._unpacked_count(length) if self.packed else _whole(length / self.dtype.itemsize)

    def _unpacked_count(self, count: int) -> int:
        """The numbers in so many bytes or fields; half of the last byte is empty where the size is odd."""
        return 2 * count - self.size % 2 if self.packed and count else count

    def read(self, start: int = 0, stop: int | None = None, into: Array | None = None) -> Array:
        """Elements start to stop in memory order, as a new writable array; `into` is memory (bytes) to reuse for it."""
        stop = self.size if stop is None else stop
        if self.packed:
            return unpacked(self._halves(start // 2, (stop + 1) // 2), self.kind)[start % 2 :][: stop - start]
        width = self.dtype.itemsize
        if self.span:
            self._check_once()
            return _native(self.span.read(start * width, stop * width, into).view(self.dtype))
        if self.proto.HasField("raw_data"):
            return _native(np.frombuffer(bytearray(self._raw(start, stop)[start * width : stop * width]), self.dtype))
        return self._typed(start, stop)

    def _halves(self, start: int, stop: int) -> Array:
        """Bytes start to stop of packed numbers."""
        if self.span:
            self._check_once()
            return self.span.read(start, stop)
        if self.proto.HasField("raw_data"):
            return np.frombuffer(self._raw(2 * start, 2 * stop)[start:stop], np.uint8)
        return np.array(self._typed_field()[start:stop], np.int64).astype(np.uint8)

    def _check_once(self) -> None:
        if self.before_reading is not None:
            self.before_reading()
            self.before_reading = None

    def _raw(self, start: int, stop: int) -> bytes:
        """The raw bytes of the proto, which hands out a copy of all of them each time: held while read in pieces."""
        raw = self._held or self.proto.raw_data
        self._held = raw if stop < self.size else None
        return raw

    def array(self) -> Array:
        return self.read().reshape(self.shape)

    def _typed_field(self) -> Any:
        return getattr(self.proto, _TYPES[self.proto.data_type][2])

    def _typed(self, start: int, stop: int) -> Array:
        values = np.array(self._typed_field()[start:stop])
        if self.kind in ("float16", "bfloat16"):
            return values.astype(np.uint16).view(self.dtype)
        return values.astype(self.dtype)

    def store(self, values: Array) -> None:
        """Put new numbers into the proto, in the form they are stored in."""
        values, self._held = packed(values) if self.packed else values, None
        if self.proto.HasField("raw_data"):
            kept = values if self.packed else values.astype(self.dtype, copy=False)
            self.proto.raw_data = kept.tobytes()
            return
        stored = values.view(np.uint16) if self.kind in ("float16", "bfloat16") else values
        self._typed_field()[:] = stored.reshape(-1).tolist()

    def stored(self) -> Callable[[], None]:
        """What puts the numbers of the proto back as they are now."""
        before = self.proto.SerializeToString()

        def put_back() -> None:
            self.proto.ParseFromString(before)

        return put_back

    def store_edit(self) -> None:
        self.store(np.concatenate([piece.copy() for piece in self.edited()]))
        self.edit = None

    def edited(self) -> Iterator[Array]:
        """The new numbers, in consecutive pieces."""
        if self.edit is None:
            yield self.read()
        else:
            yield from self.edit()

    def edited_payload(self) -> Iterator[Array]:
        """The new numbers as the file holds them, in consecutive pieces."""
        if not self.packed:
            yield from self.edited()
            return
        left = np.empty(0, self.dtype)
        for piece in self.edited():
            numbers = np.concatenate([left, piece.reshape(-1)])
            even = numbers.size - numbers.size % 2
            left = numbers[even:].copy()
            yield packed(numbers[:even])
        if left.size:
            yield packed(left)


def packed(values: Array) -> Array:
    """4-bit integers, two in a byte: the first in the lower half, and zero in the half that an odd size leaves."""
    halves = values.reshape(-1).astype(np.uint8) & 0x0F
    halves = np.append(halves, np.uint8(0)) if halves.size % 2 else halves
    return np.asarray(halves[0::2] | halves[1::2] << 4)


def unpacked(data: Array, kind: str) -> Array:
    """The numbers of packed bytes, one in a byte."""
    halves = np.empty(2 * data.size, np.uint8)
    halves[0::2], halves[1::2] = data & 0x0F, data >> 4
    # The sign of a half stands in its fourth bit.
    return ((halves ^ 8).view(np.int8) - np.int8(8)) if kind == "int4" else halves


def _whole(count: float) -> float:
    return int(count) if count == math.floor(count) else count


def _native(array: Array) -> Array:
    return array if sys.byteorder == "little" else array.astype(array.dtype.newbyteorder("="))


@dataclass(frozen=True)
class DataFolder:
    """The folder that a model's data files must lie in; `moved` names files that wait under another name."""

    path: str
    moved: Mapping[str, str] = field(default_factory=dict)
    model: str = ""
    sums: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    """The SHA-1 of data files that were read for it already, by real path."""

    def demand_checksum(self, entries: Mapping[str, str], name: str) -> None:
        """A data file is what a tensor in it says, if it states a checksum; the file is read whole for it, once."""
        stated = entries.get("checksum", "").strip()
        if not stated:
            return
        path = self.find(entries.get("location", ""), name)
        if path not in self.sums:
            self.sums[path] = sha1_of(path)
        if self.sums[path] != stated.lower():
            raise ModelError(
                f"{path} is not what the model was saved with: its SHA-1 is {self.sums[path]}, tensor '{name}' states "
                f"{stated[:40]}; fetch the file again, or take the checksums out of the model if it was changed on "
                "purpose"
            )

    def find(self, location: str, name: str) -> str:
        """The real path of a data file; it must lie inside the folder."""
        if not location or "\0" in location:
            raise ModelError(f"tensor '{name}' has its data in another file but does not say which")
        root = os.path.realpath(self.path)
        path = os.path.realpath(os.path.join(root, location))
        if os.path.isabs(location) or os.path.commonpath([root, path]) != root:
            raise ModelError(
                f"tensor '{name}' points outside the model's folder ({location!r}); move the data beside the model"
            )
        if self.model and path == os.path.realpath(self.model):
            raise ModelError(f"tensor '{name}' has its data inside the .onnx file itself; give it a file of its own")
        path = self.moved.get(path, path)
        if not os.path.isfile(path):
            raise ModelError(
                f"tensor '{name}' has its data in {location!r}, which is not there; put it beside the model"
            )
        return path


def entries_of(proto: TensorProto) -> dict[str, str]:
    """Where a tensor says that its data is: location, offset, length, checksum."""
    return {entry.key: entry.value for entry in proto.external_data}


def external_span(proto: TensorProto, folder: DataFolder | None, name: str) -> Span:
    """The span that a tensor's external_data names; it must lie inside the file."""
    entries = entries_of(proto)
    if folder is None:
        raise ModelError(
            f"tensor '{name}' has its data in a file beside the model; pass the model's path instead of a ModelProto"
        )
    path = folder.find(entries.get("location", ""), name)
    offset, size = _number(entries, "offset", name, 0), os.path.getsize(path)
    length = _number(entries, "length", name, max(size - offset, 0))
    if offset + length > size:
        raise ModelError(f"tensor '{name}' reads bytes {offset} to {offset + length} of {path}, which has only {size}")
    return Span(path, offset, length)


def sha1_of(path: str) -> str:
    """The SHA-1 of a file, the digest that ONNX names for data files."""
    digest, buffer = hashlib.sha1(usedforsecurity=False), memoryview(bytearray(1 << 20))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


def _number(entries: dict[str, str], key: str, name: str, default: int) -> int:
    text = entries.get(key) or str(default)
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ModelError(f"tensor '{name}' has an external-data {key} that is no number: {text[:40]!r}")
    return int(text)
