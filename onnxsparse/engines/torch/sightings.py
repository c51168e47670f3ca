"""Where the stored float tensors of a graph are read: under which names, by which nodes, in which scopes.

Exporters say which part of the module a node came from: the newer one in their metadata
(`pkg.torch.onnx.name_scopes`), the older one in their names (`/encoder/encoder.0/norm1/LayerNormalization`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from onnx import GraphProto, NodeProto

from onnxsparse.engines.torch.layouts import Shape, squeezed
from onnxsparse.engines.torch.materialize import keys
from onnxsparse.graph.attributes import text
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import FLOAT_KINDS, StoredTensor

RECURRENT = {"LSTM": "lstm", "GRU": "gru", "RNN": "same"}
_SCOPES = "pkg.torch.onnx.name_scopes"
_PASSED = ("Identity", "Cast")
_MOVED = (*_PASSED, "Transpose", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Slice", "Split", "Concat", "Expand")
_WRAPPED = re.compile(r"^(?:(?:module|_orig_mod)\.)+|(?<=\.)_orig_mod\.")
_PARAMETRIZED = re.compile(r"parametrizations\.([^.]+)\.original$")


@dataclass(eq=False)
class Sighting:
    """A stored tensor and all that is known about it."""

    tensor: StoredTensor
    key: tuple[str, str]
    names: set[str]
    reads: list[tuple[NodeProto, int]] = field(default_factory=list)
    scopes: set[str] = field(default_factory=set)
    slots: list[tuple[str, int]] = field(default_factory=list)


@dataclass(eq=False)
class Region:
    """A whole stored tensor, or what one direction of a recurrent layer has in it."""

    sighting: Sighting
    start: int
    shape: Shape
    layouts: tuple[str, ...]
    role: tuple[str, bool | None] | None = None  # in a recurrent layer: how a name begins, and whether it is reversed
    digest: bytes = b""

    @property
    def size(self) -> int:
        total = 1
        for size in self.shape:
            total *= size
        return total

    def holds(self, local: str) -> bool:
        if self.role is None:
            return True
        return local.startswith(self.role[0]) and self.role[1] in (None, local.endswith("_reverse"))


class Sightings:
    """All of a model, and who reads what."""

    def __init__(self, model: Model) -> None:
        self.all = {
            tensor: Sighting(tensor, key, {plain(tensor.name)})
            for tensor, key in keys(model.flow.stores).items()
            if tensor.kind in FLOAT_KINDS and tensor.readable and tensor.size
        }
        self.carried: dict[str, list[tuple[Sighting, bool]]] = {}
        self.readers: dict[str, list[NodeProto]] = {}
        for tensor, sighting in self.all.items():
            home = model.flow.stores.homes[tensor]
            if isinstance(home.container, GraphProto):
                name = home.node.output[0] if home.node is not None and home.node.output else tensor.name
                self.carried.setdefault(name, []).append((sighting, True))
        for node in _nodes(model.proto.graph):
            self._walk(node)

    def _walk(self, node: NodeProto) -> None:
        moved = []
        for slot, name in enumerate(node.input):
            self.readers.setdefault(name, []).append(node)
            for sighting, direct in self.carried.get(name, ()):
                sighting.reads.append((node, slot))
                sighting.scopes.add(scope_of(node))
                if direct:
                    sighting.slots.append((node.op_type, slot))
                moved.append((sighting, direct and node.op_type in _PASSED))
        if not moved or node.op_type not in _MOVED:
            return
        for output in node.output:
            self.carried.setdefault(output, []).extend(moved)
        if node.op_type == "Identity":
            moved[0][0].names.add(plain(node.output[0]))

    def stored(self, node: NodeProto, slot: int) -> Sighting | None:
        """The one stored tensor that a node reads there."""
        found = self.carried.get(node.input[slot], []) if slot < len(node.input) else []
        return found[0][0] if len(found) == 1 else None

    def beside(self, node: NodeProto) -> list[Sighting]:
        """The stored tensors that a node reads, and those that are added to its result."""
        added = [one for name in node.output for one in self.readers.get(name, ()) if one.op_type == "Add"]
        names = [name for one in (node, *added) for name in one.input]
        return [sighting for name in names for sighting, _ in self.carried.get(name, ())]


def regions(sighting: Sighting) -> Iterator[Region]:
    """The places where a parameter can lie in a stored tensor."""
    recurrent = next(((op, slot) for op, slot in sighting.slots if op in RECURRENT and slot in (1, 2, 3)), None)
    shape = sighting.tensor.shape
    if recurrent is None or len(shape) != (2 if recurrent[1] == 3 else 3):
        yield Region(sighting, 0, squeezed(shape), ("same", "transposed", "swapped"))
        return
    layouts = (RECURRENT[recurrent[0]],)
    each = sighting.tensor.size // shape[0]
    for direction in range(shape[0]):
        start = direction * each
        backward = direction == 1 if shape[0] > 1 else None
        if recurrent[1] < 3:
            role = "weight_ih" if recurrent[1] == 1 else "weight_hh"
            yield Region(sighting, start, squeezed(shape[1:]), layouts, (role, backward))
        else:
            half = each // 2
            yield Region(sighting, start, (half,), layouts, ("bias_ih", backward))
            yield Region(sighting, start + half, (half,), layouts, ("bias_hh", backward))


def plain(name: str) -> str:
    """The name of a tensor without what wrappers and parametrizations put into it."""
    return _PARAMETRIZED.sub(r"\1", _WRAPPED.sub("", name))


def scope_of(node: NodeProto) -> str:
    """The path of the module that a node came from; "" where nothing says so."""
    for entry in node.metadata_props if hasattr(node, "metadata_props") else ():
        if entry.key == _SCOPES:
            listed = re.findall(r"'([^']*)'", text(entry.value))
            return plain(listed[-2] + ".")[:-1] if len(listed) > 1 else ""
    return _path(text(node.name))


def _path(name: str) -> str:
    """`/layers/layers.0/layers.0.0/conv1/Conv` is `layers.0.0.conv1`: a child of a list repeats the list."""
    path, before = "", ""
    for step in name.split("/")[1:-1]:
        path += step[len(before) :] if before and step.startswith(before + ".") else f".{step}"
        before = step
    return plain(path[1:] + ".")[:-1]


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for body in _bodies(attribute):
                yield from _nodes(body)


def _bodies(attribute: Any) -> Iterator[GraphProto]:
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs
