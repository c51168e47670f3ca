"""Where a detector is cut before its post-processing: the last values that weights make, and proposals behind these.

1. The *heads* are the values that a node with weights makes, or leads to, and behind which only nodes without weights
   are left: logits and box offsets, before they are decoded, ranked and suppressed.
2. Layers behind a choice (NonMaxSuppression, TopK) are a second stage. What was chosen, its proposals, is *given*: no
   gradient passes it. In front of RoiAlign that are the boxes, where all of its levels come from the same ones.
3. What only asks for the size of a value does not depend on its numbers; but how many were chosen is given, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property

from onnx import ModelProto, NodeProto, TensorProto

from onnxsparse.errors import OptionError, nearest
from onnxsparse.graph.attributes import IdentityKey
from onnxsparse.graph.edit import COUNTING, FLOATS, SIZES, bodies, downstream, functions_of, reads, upstream
from onnxsparse.graph.storage import StoredTensor
from onnxsparse.graph.stores import Home

CHOOSING = {*COUNTING, "TopK", "ArgMax", "ArgMin"}
"""Operators that choose among values: which ones come out has no gradient, and is another thing for other weights."""
REGIONS = {"RoiAlign", "MaxRoiPool"}
"""Operators that read boxes, and which picture each is of, behind the features that they pool."""
_WHOLE = {"And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Or", "Xor", "IsNaN", "IsInf"}
_STANDARD = ("", "ai.onnx", "com.microsoft")
ROOT = ""


@dataclass(frozen=True)
class CutPoints:
    """The values where a model is cut: its heads, and those that are given to what lies behind a choice."""

    heads: tuple[str, ...]
    given: tuple[str, ...] = ()


class CutSearch:
    """The search for them in a main graph, by the tensors that train and where these are."""

    def __init__(self, model: ModelProto, homes: Mapping[StoredTensor, Home], trained: Iterable[StoredTensor]) -> None:
        self._graph, self._model = model.graph, model
        self._nodes = [node for node in model.graph.node if node.op_type not in SIZES]
        inputs = {value.name for value in model.graph.input} - {tensor.name for tensor in model.graph.initializer}
        self._data = downstream(model.graph, inputs, sizes=False)
        tensors = list(trained)
        stored = downstream(model.graph, [tensor.name for tensor in tensors], sizes=False) - self._data
        inner = any(IdentityKey(homes[tensor].container) != IdentityKey(model.graph) for tensor in tensors)
        functions = {name for _, name, *_ in functions_of(model)} if inner else set()
        self._weighted = {
            IdentityKey(node)
            for node in self._nodes
            if any(name in self._data for name in node.output)
            and (
                any(name in stored for name in reads(node))
                or (inner and (node.op_type in functions or any(True for _ in bodies(node))))
            )
        }

    def auto(self) -> CutPoints:
        """The heads of the whole model."""
        given = self._given([value.name for value in self._graph.output])
        return CutPoints(tuple(self._heads(given)), given)

    def named(self, names: Sequence[str]) -> CutPoints:
        """These values, which have to be there and to depend on weights and on inputs."""
        made = {name for node in self._graph.node for name in node.output if name}
        for name in names:
            if name not in made:
                raise OptionError(f"--until: no node of the model makes {name[:80]!r}{nearest(name, made)}")
            if name not in self._moving(()):
                raise OptionError(f"--until: no weight has a say in '{name[:80]}', so nothing can be trained there")
        return CutPoints(tuple(dict.fromkeys(names)), self._given(names, names))

    @property
    def chooses(self) -> NodeProto | None:
        """The first node behind weights that has no gradient because it chooses, where there is one."""
        return next(iter(self._choices), None)

    @property
    def chosen(self) -> set[str]:
        """The values behind such nodes: for other weights their numbers are of other things."""
        return downstream(self._graph, [name for node in self._choices for name in node.output if name])

    @cached_property
    def _choices(self) -> list[NodeProto]:
        moving = self._moving(())
        return [node for node in self._nodes if _chooses(node) and any(name in moving for name in reads(node))]

    # -- what depends on weights, and what leads to some

    def _moving(self, given: Collection[str]) -> set[str]:
        """What depends on inputs by way of weights, and not through what is given."""
        found: set[str] = set()
        for node in self._nodes:
            if IdentityKey(node) in self._weighted or any(name in found for name in reads(node)):
                found |= {name for name in node.output if name and name not in given}
        return found & self._data

    def _leading(self, given: Collection[str], ends: Iterable[str] = (), sizes: bool = False) -> set[str]:
        """What a node with weights still comes behind, and not through what is given; and what leads to `ends`."""
        found = set(ends)
        for node in reversed(self._graph.node if sizes else self._nodes):
            if self._inner(node, found, given):
                found |= set(reads(node))
        return found

    def _inner(self, node: NodeProto, leading: Collection[str], given: Collection[str]) -> bool:
        after = any(name in leading and name not in given for name in node.output)
        return after or IdentityKey(node) in self._weighted

    # -- heads

    def _heads(self, given: Collection[str]) -> list[str]:
        moving, leading = self._moving(given), self._leading(given)
        needed = upstream(self._graph, [value.name for value in self._graph.output])
        inner = [node for node in self._nodes if self._inner(node, leading, given)]
        own = [name for node in inner if not _is_whole(node) for name in node.output if name in moving & needed]
        behind = {IdentityKey(node) for node in inner}
        read = {name for node in self._nodes if IdentityKey(node) not in behind for name in reads(node)}
        read |= {value.name for value in self._graph.output}
        return list(dict.fromkeys(name for name in own if name in read))

    # -- what a second stage is given

    def _given(self, outputs: Sequence[str], ends: Sequence[str] = ()) -> tuple[str, ...]:
        needed = upstream(self._graph, outputs)
        found: list[str] = self._proposals(needed)
        moving, leading = self._moving(found), self._leading(found, ends, sizes=True)
        for node in self._nodes:
            if _chooses(node) and any(name in moving for name in reads(node)):
                found += [name for name in node.output if name in leading & needed and name not in found]
        return tuple(found)

    def _proposals(self, needed: AbstractSet[str]) -> list[str]:
        """The boxes that all RoiAlign nodes read, as near to these as they are one value; else what each reads."""
        chosen = downstream(self._graph, [name for node in self._choices for name in node.output if name])
        moving = self._moving(()) | chosen
        boxes = [
            name
            for node in self._nodes
            if node.op_type in REGIONS and needed & set(node.output)
            for name in node.input[1:]
            if name in moving
        ]
        if not boxes:
            return []
        before, common = self._dominators(moving), boxes[0]
        for name in boxes[1:]:
            common = _meeting(before, common, name)
        return [common] if common in chosen else list(dict.fromkeys(boxes))

    def _dominators(self, moving: Collection[str]) -> dict[str, tuple[str, int]]:
        """By value: the nearest one that all its ways from weights go through, and how deep it lies."""
        found: dict[str, tuple[str, int]] = {ROOT: (ROOT, 0)}
        for node in self._graph.node:
            sources = [name for name in reads(node) if name in found]
            near = sources[0] if sources else ROOT
            for name in sources[1:]:
                near = _meeting(found, near, name)
            for name in node.output:
                if name in moving:
                    found[name] = near, found[near][1] + 1
        return found


def _meeting(before: Mapping[str, tuple[str, int]], one: str, other: str) -> str:
    while one != other:
        if before[one][1] >= before[other][1]:
            one = before[one][0]
        else:
            other = before[other][0]
    return one


def _chooses(node: NodeProto) -> bool:
    return node.op_type in CHOOSING or (node.domain not in _STANDARD and "NMS" in node.op_type)


def _is_whole(node: NodeProto) -> bool:
    """Whether it gives whole numbers or truth values."""
    to = next((one.i for one in node.attribute if one.name == "to"), TensorProto.FLOAT)
    return _chooses(node) or node.op_type in _WHOLE or (node.op_type == "Cast" and to not in FLOATS)
