"""The protobuf wire format, as far as large tensors need it.

A model file is almost all weights. `condense` copies a serialized model without them: every large tensor payload
(raw_data, packed float_data or double_data) is replaced by a 16-byte token and the lengths around it are made to fit,
so that the small rest parses as an ordinary ModelProto. `expand` is its inverse: it takes the serialized small model
and returns the pieces of the full file, payloads being named by their tokens. Nothing large is ever in memory.

What it does not do: it never changes a field, and it reads only where a large payload can be.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Union

from onnxsparse.errors import ModelError

LARGE = 4096
TOKEN_SIZE = 16
DEEPEST = 100
PAYLOAD = "payload"

# message -> field number -> what a length-delimited field holds, on the way to tensors (onnx.proto)
FIELDS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {4: PAYLOAD, 9: PAYLOAD, 10: PAYLOAD},
}

Read = Callable[[int, int], bytes]


class Window:
    """Reads a file at any place through one buffered block, without mapping it."""

    def __init__(self, descriptor: int, block: int = 1 << 16) -> None:
        self._descriptor, self._block = descriptor, block
        self._start, self._data = 0, b""

    def __call__(self, start: int, stop: int) -> bytes:
        if start < self._start or stop > self._start + len(self._data):
            self._start = start
            self._data = os.pread(self._descriptor, max(self._block, stop - start), start)
        return self._data[start - self._start : stop - self._start]


@dataclass
class Tokens:
    """Hands out tokens for payloads. The salt makes a token that is real data as unlikely as a broken hash."""

    salt: bytes = field(default_factory=lambda: _finite(os.urandom(8)))
    spans: dict[bytes, tuple[int, int]] = field(default_factory=dict)

    def issue(self, start: int, stop: int) -> bytes:
        token = self.salt + _finite(len(self.spans).to_bytes(8, "little"))
        self.spans[token] = (start, stop)
        return token


def _finite(data: bytes) -> bytes:
    """Spread 6 bytes over 8 so that they are ordinary numbers as two floats and as one double."""
    low, high = int.from_bytes(data[:3], "little"), int.from_bytes(data[3:6], "little")
    return ((low & 0x7FFFFF) | 0x46000000).to_bytes(4, "little") + ((high & 0x7FFFFF) | 0x46000000).to_bytes(
        4, "little"
    )


@dataclass(frozen=True)
class _Field:
    number: int
    wire: int
    key: int  # where the key starts
    start: int  # where the body starts
    stop: int


def _varint(read: Read, at: int, limit: int) -> tuple[int, int]:
    value, shift = 0, 0
    for offset, byte in enumerate(read(at, min(at + 10, limit))):
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + offset + 1
        shift += 7
    raise ModelError("the file is cut short or is not an ONNX model (a number runs past the end)")


def _next_field(read: Read, at: int, limit: int) -> _Field:
    key, start = _varint(read, at, limit)
    wire = key & 7
    if wire == 2:
        length, start = _varint(read, start, limit)
        stop = start + length
    elif wire == 0:
        stop = _varint(read, start, limit)[1]
    elif wire in (1, 5):
        stop = start + (8 if wire == 1 else 4)
    else:
        raise ModelError("the file is not an ONNX model (a field has a type that ONNX does not use)")
    if stop > limit:
        raise ModelError("the file is cut short or is not an ONNX model (a field runs past the end)")
    return _Field(key >> 3, wire, at, start, stop)


def encode(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def condense(read: Read, size: int, tokens: Tokens) -> bytes:
    """Return the serialized model with every large payload replaced by a token."""
    return bytes(_condense(read, 0, size, "model", tokens, 0))


def _condense(read: Read, start: int, stop: int, message: str, tokens: Tokens, depth: int) -> bytearray:
    out, copied, at = bytearray(), start, start
    single = message != "tensor" or _one_payload(read, start, stop)
    while at < stop:
        entry = _next_field(read, at, stop)
        child = FIELDS[message].get(entry.number) if entry.wire == 2 else None
        if child and single and entry.stop - entry.start >= LARGE and depth < DEEPEST:
            body = _body(read, entry, child, tokens, depth)
            key = read(entry.key, entry.key + len(encode(entry.number << 3 | 2)))
            out += read(copied, entry.key) + key + encode(len(body)) + body
            copied = entry.stop
        at = entry.stop
    out += read(copied, stop)
    return out


def _body(read: Read, entry: _Field, child: str, tokens: Tokens, depth: int) -> bytes | bytearray:
    if child == PAYLOAD:
        return tokens.issue(entry.start, entry.stop)
    return _condense(read, entry.start, entry.stop, child, tokens, depth + 1)


def _one_payload(read: Read, start: int, stop: int) -> bool:
    """A tensor whose data is spread over several fields is left whole."""
    seen, at = 0, start
    while at < stop:
        entry = _next_field(read, at, stop)
        seen += entry.number in FIELDS["tensor"]
        at = entry.stop
    return seen == 1


@dataclass(frozen=True)
class Hole:
    """A place in the full file where a payload of `length` bytes stands."""

    token: bytes
    length: int


Piece = Union[bytes, Hole]


def expand(small: bytes, tokens: Tokens, lengths: dict[bytes, int]) -> list[Piece]:
    """Return the pieces of the full file for a serialized small model."""
    places = _places(small, tokens)
    if not places:
        return [small]
    return _Expander(small, places, lengths).message(0, len(small), "model")[0]


def _places(small: bytes, tokens: Tokens) -> list[int]:
    places, at = [], small.find(tokens.salt)
    while at >= 0:
        if small[at : at + TOKEN_SIZE] in tokens.spans:
            places.append(at)
        at = small.find(tokens.salt, at + 1)
    return places


class _Expander:
    def __init__(self, small: bytes, places: list[int], lengths: dict[bytes, int]) -> None:
        self._small, self._places, self._lengths = small, places, lengths

    def _read(self, start: int, stop: int) -> bytes:
        return self._small[start:stop]

    def _holds_token(self, start: int, stop: int) -> bool:
        index = bisect_left(self._places, start)
        return index < len(self._places) and self._places[index] < stop

    def message(self, start: int, stop: int, message: str) -> tuple[list[Piece], int]:
        pieces: list[Piece] = []
        total, copied, at = 0, start, start
        while at < stop:
            entry = _next_field(self._read, at, stop)
            child = FIELDS[message].get(entry.number) if entry.wire == 2 else None
            if child and self._holds_token(entry.start, entry.stop):
                inner, length = self._body(entry, child)
                head = self._small[copied : entry.key] + encode(entry.number << 3 | 2) + encode(length)
                pieces += [head, *inner]
                total += len(head) + length
                copied = entry.stop
            at = entry.stop
        pieces.append(self._small[copied:stop])
        return pieces, total + stop - copied

    def _body(self, entry: _Field, child: str) -> tuple[list[Piece], int]:
        if child != PAYLOAD:
            return self.message(entry.start, entry.stop, child)
        token = self._small[entry.start : entry.stop]
        length = self._lengths.get(token)
        return ([token], len(token)) if length is None else ([Hole(token, length)], length)
