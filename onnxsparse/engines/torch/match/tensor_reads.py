"""Where the stored float tensors of a graph are read: by which nodes, under which names and exporter scopes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from onnx import GraphProto, NodeProto

from onnxsparse.graph.attributes import IdentityKey
from onnxsparse.graph.edit import bodies
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import FLOAT_KINDS, Array, StoredTensor
from onnxsparse.graph.stores import keys
from onnxsparse.graph.torch_match import Shape, plain, scope_of, squeezed
from onnxsparse.math.values import from_bfloat16

RECURRENT = {"LSTM": "lstm", "GRU": "gru", "RNN": "same"}
_ROUNDED = ("QuantizeLinear", "DequantizeLinear")
_PASSED = ("Identity", "Cast", *_ROUNDED)
_CUT = ("Slice", "Split")
_MOVED = (*_PASSED, *_CUT, "Transpose", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Concat", "Expand")
_MEASURED = ("Shape", "Size")


@dataclass(eq=False)
class Use:
    """A node that reads a stored tensor, or a part of it, directly or after it was moved; `label` is its name there."""

    node: NodeProto
    slot: int
    label: str
    whole: bool


@dataclass(eq=False)
class Sighting:
    """A stored tensor and all that is known about it."""

    tensor: StoredTensor
    key: tuple[str, str]
    names: set[str]
    own_names: set[str] = field(default_factory=set)  # without those that it was given by Identity
    reads: list[Use] = field(default_factory=list)
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


@dataclass(frozen=True, eq=False)
class Carried:
    """A stored tensor under a name of the graph; `direct` as long as its elements lie as they are stored."""

    sighting: Sighting
    direct: bool
    label: str
    whole: bool = True


class Sightings:
    """All of a model, and who reads what."""

    def __init__(self, model: Model) -> None:
        self.all = {
            tensor: Sighting(tensor, key, {plain(tensor.name)})
            for tensor, key in keys(model.flow.stores).items()
            if tensor.kind in FLOAT_KINDS and tensor.readable and tensor.size
        }
        self.carried: dict[str, list[Carried]] = {}
        self.readers: dict[str, list[NodeProto]] = {}
        self.makers: dict[str, NodeProto] = {}
        for tensor, sighting in self.all.items():
            home = model.flow.stores.homes[tensor]
            if isinstance(home.container, GraphProto):
                name = home.node.output[0] if home.node is not None and home.node.output else tensor.name
                self.carried.setdefault(name, []).append(Carried(sighting, True, plain(tensor.name)))
        self.nodes = list(_nodes(model.proto.graph))
        self.scopes = {IdentityKey(node): scope_of(node) for node in self.nodes}
        for node in self.nodes:
            self._walk(node)

    def _walk(self, node: NodeProto) -> None:
        moved = []
        for slot, name in enumerate(node.input):
            self.readers.setdefault(name, []).append(node)
            for one in self.carried.get(name, ()) if slot == 0 or node.op_type not in _ROUNDED else ():
                one.sighting.reads.append(Use(node, slot, one.label, one.whole))
                if one.direct:
                    one.sighting.slots.append((node.op_type, slot))
                passed, cut = node.op_type in _PASSED, node.op_type in _CUT
                moved.append(replace(one, direct=one.direct and passed, whole=one.whole and not cut))
        for output in node.output:
            self.makers[output] = node
        if not moved or node.op_type not in _MOVED:
            return
        if node.op_type == "Identity":
            moved = [replace(one, label=plain(node.output[0])) for one in moved]
            moved[0].sighting.names.add(moved[0].label)
        for output in node.output:
            self.carried.setdefault(output, []).extend(moved)

    def rename(self, naming: Naming) -> None:
        """Names and scopes as the module has them."""
        self.scopes = {key: naming.scope(scope) for key, scope in self.scopes.items()}
        for sighting in self.all.values():
            sighting.own_names = {naming.name(plain(sighting.tensor.name))}
            sighting.names = {naming.name(name) for name in sighting.names}
            for use in sighting.reads:
                use.label = naming.name(use.label)

    @cached_property
    def called(self) -> set[str]:
        """Every module that nodes came from, and those that it is a part of; asked for once they have their names."""
        found = set()
        for scope in set(self.scopes.values()):
            steps = scope.split(".") if scope else []
            found |= {".".join(steps[: count + 1]) for count in range(len(steps))}
        return found

    def scopes_of(self, sighting: Sighting) -> set[str]:
        found = {self.scopes[IdentityKey(use.node)] for use in sighting.reads}
        return {scope for scope in found if scope is not None}

    def uses(self, sighting: Sighting) -> list[Use]:
        """The nodes that compute with a tensor, or leave it as it is for good."""
        reads = [use for use in sighting.reads if use.node.op_type not in _MEASURED]
        return [use for use in reads if use.node.op_type not in _MOVED or not self._read(use.node)]

    def _read(self, node: NodeProto) -> bool:
        return any(name in self.readers for name in node.output)

    def stored(self, node: NodeProto, slot: int) -> Sighting | None:
        """The one stored tensor that a node reads there."""
        found = self.carried.get(node.input[slot], []) if slot < len(node.input) else []
        return found[0].sighting if len(found) == 1 else None

    def around(self, node: NodeProto) -> list[NodeProto]:
        """The node, those that add to its result, and the one to whose result it adds."""
        added = [one for name in node.output for one in self.readers.get(name, ()) if one.op_type == "Add"]
        makers = [self.makers[name] for name in node.input if name in self.makers and node.op_type == "Add"]
        return [node, *added, *(one for one in makers if one.op_type == "MatMul")]

    def beside(self, node: NodeProto) -> list[Sighting]:
        """The stored tensors that a node reads, and those that are added to its result."""
        names = [name for one in self.around(node) for name in one.input]
        return [one.sighting for name in names for one in self.carried.get(name, ())]


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


def real(flat: Array, kind: str) -> Array:
    """Stored numbers as float64; those of bfloat16 are bits."""
    numbers: Array = from_bfloat16(flat) if kind == "bfloat16" else flat
    return numbers.astype(np.float64)


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for body in bodies(node):
            yield from _nodes(body)


@dataclass(frozen=True)
class Naming:
    """How names and scopes of a file are turned into those of the module at hand.

    `theirs` and `mine` are what the names of the file, and those of the module, have before what both share.
    """

    theirs: str
    mine: str
    paths: Collection[str]

    def name(self, name: str) -> str:
        if self.theirs:
            return name[len(self.theirs) :] if name.startswith(self.theirs) else name
        return self.mine + name

    def scope(self, scope: str | None) -> str | None:
        """None for what is outside of the module."""
        if scope is None:
            return None
        dotted = f"{scope}." if scope else ""
        if self.theirs and not dotted.startswith(self.theirs):
            return None
        found = dotted[len(self.theirs) :] if self.theirs else self.mine + dotted
        return self._once(found[:-1] if found else "")

    def _once(self, scope: str) -> str | None:
        """A module that is called again has `_1` after its name; where that is another one, nothing is known."""
        first = ".".join(re.sub(r"_\d+$", "", step) for step in scope.split("."))
        if first == scope or first not in self.paths:
            return scope
        return None if scope in self.paths else first
