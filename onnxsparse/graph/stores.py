"""Index of the stored tensors of a model: each is made once, whichever way the graph reaches it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Union

import numpy as np
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, SparseTensorProto, TensorProto

from onnxsparse.errors import ModelError
from onnxsparse.graph.attributes import Attributes, IdentityKey, label
from onnxsparse.graph.layout import Shape
from onnxsparse.graph.storage import Array, DataFolder, Span, StoredTensor, entries_of, external_span

Container = Union[GraphProto, FunctionProto]
MARK = "onnxsparse:"


@dataclass(eq=False)
class FloatsAttribute(StoredTensor):
    """A Constant whose numbers are a list of floats in the attribute itself."""

    attribute: AttributeProto | None = None

    def store(self, values: Array) -> None:
        if self.attribute is not None:
            self.attribute.floats[:] = values.tolist()

    def stored(self) -> Callable[[], None]:
        before = [] if self.attribute is None else list(self.attribute.floats)

        def put_back() -> None:
            if self.attribute is not None:
                self.attribute.floats[:] = before

        return put_back

    def become_tensor(self) -> None:
        """Hold the same numbers as a tensor, which can carry a name and a doc string."""
        if self.attribute is None or self.attribute.type != AttributeProto.FLOATS:
            return
        self.attribute.t.CopyFrom(self.proto)
        self.attribute.name, self.attribute.type = "value", AttributeProto.TENSOR
        self.attribute.ClearField("floats")
        self.proto = self.attribute.t


@dataclass(frozen=True, eq=False)
class Home:
    """Where a tensor is defined: the scope's title, the graph or function, and the Constant node if there is one.

    `number` counts the stored tensors of the model in the order in which they are met.
    """

    number: int
    scope: str
    storage: str
    container: Container
    node: NodeProto | None = None

    @property
    def tag(self) -> str:
        """What the tensor is called while it trains: in doc strings of copies of the model, in checkpoints."""
        return f"{MARK}{self.number}"


class Stores:
    def __init__(self, spans: Mapping[bytes, Span], folder: DataFolder | None) -> None:
        self._spans, self._folder = spans, folder
        self._made: dict[IdentityKey, StoredTensor] = {}
        self.homes: dict[StoredTensor, Home] = {}

    def of(
        self,
        proto: TensorProto,
        name: str,
        scope: str,
        storage: str,
        container: Container,
        node: NodeProto | None = None,
    ) -> StoredTensor:
        found = self._made.get(IdentityKey(proto))
        if found is None:
            found = self._open(proto, name)
            self._record(proto, found, self._home(scope, storage, container, node))
        return found

    def twins(self) -> list[list[StoredTensor]]:
        """Tensors with several names for the same bytes of a data file: changing one changes the others."""
        regions: dict[tuple[Span | None, str, Shape], list[StoredTensor]] = {}
        for _, _, _, tensor in _places(self.homes):
            regions.setdefault((tensor.span, tensor.kind, tensor.shape), []).append(tensor)
        return [twins for twins in regions.values() if len(twins) > 1]

    def overlapping(self, everything: Iterable[TensorProto]) -> dict[StoredTensor, str]:
        """Tensors that share some bytes of a data file with another one of the model, and the other's name."""
        outside = [one for one in everything if one.data_location == TensorProto.EXTERNAL]
        unseen = [one for one in outside if IdentityKey(one) not in self._made]
        others = [self._open(proto, proto.name or "a tensor outside the graph") for proto in unseen]
        placed = sorted([*_places(self.homes), *_places(others)], key=lambda place: place[:3])
        found: dict[StoredTensor, str] = {}
        reach, owner = ("", 0), None
        for path, offset, length, tensor in placed:
            alike = owner in self.homes and tensor in self.homes and owner is not None and _same(owner, tensor)
            if owner is not None and path == reach[0] and offset < reach[1] and not alike:
                found.setdefault(tensor, owner.name)
                found.setdefault(owner, tensor.name)
            if path != reach[0] or offset + length > reach[1]:
                reach, owner = (path, offset + length), tensor
        return {tensor: name for tensor, name in found.items() if tensor in self.homes}

    def sharing(self, everything: Iterable[TensorProto]) -> set[StoredTensor]:
        """Tensors of which a part or all of the bytes belong to another tensor, too."""
        return {tensor for twins in self.twins() for tensor in twins if tensor.external} | {
            *self.overlapping(everything)
        }

    def once(self, edited: Sequence[StoredTensor], everything: Iterable[TensorProto]) -> list[StoredTensor]:
        """Of tensors with new numbers, one for each place in a data file; their other names see the same numbers.

        Names that would get different numbers, and tensors that share only a part of their bytes, are errors.
        """
        shared = self.overlapping(everything)
        places: dict[Span | None, StoredTensor] = {}
        for tensor in edited:
            if tensor in shared:
                raise _in_one_place(tensor, shared[tensor], "share some of their bytes in")
            first = places.setdefault(tensor.span, tensor)
            if first is not tensor and first.edit is not tensor.edit and _digest(first) != _digest(tensor):
                raise _in_one_place(first, tensor.name, "are the same bytes of")
        return list(places.values())

    def _home(self, scope: str, storage: str, container: Container, node: NodeProto | None = None) -> Home:
        """That of the next tensor."""
        return Home(len(self.homes), scope, storage, container, node)

    def _record(self, owner: object, stored: StoredTensor, home: Home) -> None:
        self._made[IdentityKey(owner)] = stored
        self.homes[stored] = home

    def _open(self, proto: TensorProto, name: str) -> StoredTensor:
        stored = StoredTensor(proto, name)
        stored.problem = stored.rank_problem
        if proto.data_location == TensorProto.EXTERNAL:
            stored.span, stored.external = external_span(proto, self._folder, name), True
            if self._folder is not None and entries_of(proto).get("checksum"):
                stored.before_reading = partial(self._folder.demand_checksum, entries_of(proto), name)
        else:
            stored.span = self.token_span(proto)
        stored.check()
        return stored

    def token_span(self, proto: TensorProto) -> Span | None:
        """A payload that was left in the file has a token in its place."""
        if proto.HasField("raw_data"):
            raw = proto.raw_data if len(proto.raw_data) == 16 else b""
            return self._spans.get(raw)
        if len(proto.float_data) == 4 or len(proto.double_data) == 2:
            bare = TensorProto(float_data=proto.float_data, double_data=proto.double_data)
            return self._spans.get(bare.SerializeToString()[2:])
        return None

    def of_sparse(self, proto: SparseTensorProto, scope: str, container: Container) -> StoredTensor:
        name = proto.values.name
        stored = self._made.get(IdentityKey(proto))
        if stored is None:
            dense = TensorProto(name=name, data_type=proto.values.data_type, dims=proto.dims)
            stored = StoredTensor(
                dense, name, problem="it is stored as a sparse tensor already; store it dense to prune it"
            )
            self._record(proto, stored, self._home(scope, "sparse_initializer", container))
        return stored

    def of_constant(
        self, node: NodeProto, attributes: Attributes, scope: str, container: Container
    ) -> StoredTensor | None:
        """The tensor of a Constant node; lists of floats are tensors too."""
        name = node.output[0] if node.output else ""
        for key, attribute in attributes.table.items():
            if attribute is None:
                continue
            if attribute.type == AttributeProto.TENSOR:
                return self.of(
                    attribute.t, self._constant_name(node, key, name), scope, "Constant node", container, node
                )
            if attribute.type == AttributeProto.SPARSE_TENSOR:
                return self.of_sparse(attribute.sparse_tensor, scope, container)
            listed = self._of_list(attribute, name, self._home(scope, "Constant node", container, node))
            if listed is not None:
                return listed
        return None

    def _constant_name(self, node: NodeProto, key: str, name: str) -> str:
        return name or f"{label(node)}.{key}"

    def _of_list(self, attribute: AttributeProto, name: str, home: Home) -> StoredTensor | None:
        if IdentityKey(attribute) in self._made:
            return self._made[IdentityKey(attribute)]
        kinds = {
            AttributeProto.FLOATS: (TensorProto.FLOAT, "floats"),
            AttributeProto.INTS: (TensorProto.INT64, "ints"),
            AttributeProto.FLOAT: (TensorProto.FLOAT, "f"),
            AttributeProto.INT: (TensorProto.INT64, "i"),
        }
        if attribute.type not in kinds:
            return None
        data_type, field = kinds[attribute.type]
        listed = field in ("floats", "ints")
        values = list(getattr(attribute, field)) if listed else [getattr(attribute, field)]
        proto = TensorProto(name=name, data_type=data_type, dims=[len(values)] if listed else [])
        (proto.float_data if data_type == TensorProto.FLOAT else proto.int64_data).extend(values)
        stored = FloatsAttribute(proto, name, attribute=attribute)
        self._record(attribute, stored, home)
        return stored


def keys(stores: Stores) -> dict[StoredTensor, tuple[str, str]]:
    """Scope and name of every stored tensor; where a file repeats both, a number tells them apart."""
    found: dict[StoredTensor, tuple[str, str]] = {}
    seen: dict[tuple[str, str], int] = {}
    for tensor, home in stores.homes.items():
        key = (home.scope, tensor.name)
        seen[key] = seen.get(key, 0) + 1
        found[tensor] = key if seen[key] == 1 else (f"{home.scope}#{seen[key]}", tensor.name)
    return found


def _same(one: StoredTensor, other: StoredTensor) -> bool:
    return (one.span, one.kind, one.shape) == (other.span, other.kind, other.shape)


def _digest(tensor: StoredTensor) -> bytes:
    found = hashlib.sha256()
    for numbers in tensor.edited():
        found.update(np.ascontiguousarray(numbers).view(np.uint8).data)
    return found.digest()


def _in_one_place(tensor: StoredTensor, other: str, how: str) -> ModelError:
    path = tensor.span.path if tensor.span else "a data file"
    return ModelError(
        f"tensors '{tensor.name}' and '{other}' {how} {path}, and cannot have different numbers; nothing was written: "
        "save the model with data of its own for each"
    )


def _places(tensors: Iterable[StoredTensor]) -> Iterator[tuple[str, int, int, StoredTensor]]:
    for tensor in tensors:
        if tensor.external and tensor.span is not None and tensor.span.length:
            yield tensor.span.path, tensor.span.offset, tensor.span.length, tensor
