"""Walk over a graph that gives every index of every axis a label and unites those that are one channel.

1. It reads a copy of the model without its weights: functions inlined, inputs of fixed sizes, shapes inferred, every
   stored tensor named by its tag.
2. An operator has a rule in `rules/`: what it unites, closes or freezes, and the fields of its results. One without a
   rule freezes what it reads, with its name as the reason, and nothing else.
3. Inputs and outputs of the model are positional: they stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, numpy_helper

from onnxsparse.channel_classes.labels import Labels
from onnxsparse.channel_classes.shapes import asked_again, computed, shapes_in, symbols_in
from onnxsparse.channel_classes.tensors import Axes, Field, Sizes, StoredLabels, Tensor, View, collapsed
from onnxsparse.errors import ModelError
from onnxsparse.graph.attributes import Attributes, label
from onnxsparse.graph.shape_values import LARGEST, evaluate
from onnxsparse.math.values import Array

FEW = 4
"""Fewer channels than the patterns have that they are permuted for."""
LARGEST_FIELD = 1 << 24
"""Labels of one field: more than that are not followed through a Reshape."""

WITH_PARAMETERS = frozenset(
    (
        "CenterCropPad", "ConstantOfShape", "CumSum", "Expand", "OneHot", "Pad", "Range", "Reshape", "Resize", "Slice",
        "Split", "SplitToSequence", "Squeeze", "Tile", "TopK", "Trilu", "Unsqueeze", "Upsample",
    )
)  # fmt: skip
"""Operators whose inputs after the first are shapes, axes, bounds and the like, whatever these are computed from."""


@dataclass(frozen=True, eq=False)
class Node:
    """One node of the walk: what goes in, its attributes, and the shapes that shape inference found for its results."""

    proto: NodeProto
    inputs: tuple[Tensor | None, ...]
    attributes: Attributes
    shapes: tuple[Sizes | None, ...]
    opset: int
    scope: Scope

    @property
    def op(self) -> str:
        return self.proto.op_type

    @property
    def called(self) -> str:
        return f"{self.op} '{label(self.proto)}'"

    def input(self, index: int) -> Tensor | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def numbers(self, index: int, attribute: str = "") -> list[int] | None:
        """Integers that are an input or, in older opsets, an attribute; None where they are neither, or not known."""
        tensor = self.input(index)
        if tensor is not None:
            return None if tensor.numbers is None else [int(one) for one in tensor.numbers.reshape(-1)]
        return self.attributes.integers(attribute) if attribute else None

    def shape(self, index: int = 0) -> Sizes | None:
        return self.shapes[index] if index < len(self.shapes) else None


@dataclass(eq=False)
class Scope:
    """The names of one graph, and those around it."""

    shapes: Mapping[str, Sizes]
    outer: Scope | None
    names: dict[str, Tensor]
    symbols: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The names of sizes that are not known; '' for those that are, or have none."""

    def find(self, name: str) -> Tensor | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        return None


Rule = Callable[["Walk", Node], "list[Tensor]"]


class Walk:
    """The labels of a whole model; `stored` has those of each stored tensor, by tag."""

    def __init__(self, rules: Mapping[tuple[str, str], Rule], opset: int, same: Mapping[str, str]) -> None:
        self._rules, self.opset, self._same = rules, opset, same
        self.labels = Labels()
        self.stored: dict[str, StoredLabels] = {}
        self._asked: set[tuple[str, int]] = set()

    # -- graphs

    def graph(
        self, graph: GraphProto, outer: Scope | None = None, given: Sequence[Tensor | None] = ()
    ) -> tuple[list[Tensor], Scope]:
        """Walk a graph or body; return what its outputs are."""
        scope = Scope(shapes_in(graph), outer, {}, symbols_in(graph))
        for tensor in graph.initializer:
            scope.names[tensor.name] = self.constant(tensor)
        for sparse in graph.sparse_initializer:
            scope.names[sparse.values.name] = Tensor(tuple(sparse.dims))
        for index, value in enumerate(graph.input):
            if value.name not in scope.names:
                held = given[index] if index < len(given) else None
                scope.names[value.name] = held or Tensor(scope.shapes.get(value.name))
        for node in graph.node:
            self.node(node, scope)
        return [scope.find(one.name) or Tensor(None) for one in graph.output], scope

    def node(self, proto: NodeProto, scope: Scope) -> None:
        inputs = tuple(scope.find(name) if name else None for name in proto.input)
        shapes = asked_again(proto, inputs, tuple(scope.shapes.get(name) for name in proto.output), self.opset)
        node = Node(proto, inputs, Attributes(proto, {}), shapes, self.opset, scope)
        around, self._asked = self._asked, set()
        results = None if node.op == "Identity" else self._numbers(node)
        if results is None:
            results = self._results(node)
        for tensor in inputs[1:] if node.op.startswith("Reduce") or node.op in WITH_PARAMETERS else ():
            if tensor is not None:
                self.freeze(tensor, f"{node.called} reads it in a fixed order")
        self._block_the_rest(node, results)
        self._asked |= around  # what a body asks for, the node around it has asked for
        for index, name in enumerate(proto.output):
            if name:
                result = results[index] if index < len(results) else Tensor(None)
                scope.names[name] = self._checked(result, shapes[index], node)

    def _block_the_rest(self, node: Node, results: Sequence[Tensor]) -> None:
        """Axes of stored tensors that the rule did not ask for: the node reads them in their order."""
        if node.op in ("Shape", "Size"):
            return
        carried = {(view.tag, axis) for result in results for view in _views(result) for axis in view.axes}
        for tensor in node.inputs:
            for view in tensor.views if tensor is not None else ():
                for axis in view.axes:
                    if axis is not None and (view.tag, axis) not in carried | self._asked:
                        self.stored[view.tag].block(axis, f"{node.called} reads it in a fixed order")

    def _results(self, node: Node) -> list[Tensor]:
        domain = "" if node.proto.domain == "ai.onnx" else node.proto.domain
        rule = self._rules.get((domain, node.op))
        try:
            results = self.blocked(node) if rule is None else rule(self, node)
        except (ModelError, ValueError, IndexError, KeyError, TypeError, ZeroDivisionError) as error:
            # A file may say anything: axes that are not there, sizes that do not fit. What was united stays so.
            self._asked.clear()
            results = self.blocked(node, f"{node.called} does not fit what it reads ({error})")
        if any(node.proto.output[len(results) :]):
            results = self.blocked(node, f"{node.called} has more results than its rule")
        return results

    def _checked(self, result: Tensor, shape: Sizes | None, node: Node) -> Tensor:
        """The result with the inferred shape; where that contradicts the rule, nothing moves."""
        if shape is None:
            return result
        if result.shape is None:
            return replace(result, shape=shape) if not result.fields and not result.views else result
        pairs = list(zip(result.shape, shape))
        if len(result.shape) != len(shape) or any(a != b for a, b in pairs if a is not None and b is not None):
            self.freeze(result, f"the shapes around {node.called} do not fit together")
            return Tensor(shape)
        made = replace(result, shape=tuple(a if b is None else b for a, b in pairs))
        for own in made.fields:
            if any(made.size(axis) not in (None, size) for axis, size in zip(own.axes, own.labels.shape)):
                self.freeze(made, f"the shapes around {node.called} do not fit together")
                return Tensor(shape)
        return made

    def blocked(self, node: Node, why: str = "") -> list[Tensor]:
        """Everything that the node and its bodies read stays where it is; so does what it makes."""
        for tensor in node.inputs:
            if tensor is not None:
                self.freeze(tensor, why or f"{node.called} has no rule for channels")
        for name in _captured(node.proto):
            tensor = node.scope.find(name)
            if tensor is not None:
                self.freeze(tensor, why or f"{node.called} has no rule for channels")
        return [Tensor(shape) for shape in node.shapes]

    # -- constants

    def constant(self, tensor: TensorProto) -> Tensor:
        shape = tuple(tensor.dims)
        tag = self._same.get(tensor.doc_string, tensor.doc_string)
        axes = tuple(None if size == 1 else axis for axis, size in enumerate(shape))
        views = (View(tag, axes),) if tag.startswith("onnxsparse:") else ()
        if views:
            self.stored.setdefault(tag, StoredLabels(shape, self.labels))
        return Tensor(shape, views=views, numbers=_small_integers(tensor))

    def _numbers(self, node: Node) -> list[Tensor] | None:
        """The result of arithmetic on small integers that are known, such as shapes and bounds."""
        if node.proto.domain not in ("", "ai.onnx") or len(node.proto.output) != 1 or not node.inputs:
            return None
        first = node.input(0)
        if node.op in ("Shape", "Size") and first is not None and first.shape is not None:
            return _size_of(node, first.shape)
        arrays = [one.numbers for one in node.inputs if one is not None and one.numbers is not None]
        if len(arrays) < len(node.inputs):
            return None
        if node.op == "ConstantOfShape":
            return None
        found = evaluate(node.op, arrays, node.attributes)
        if found is None:
            found = computed(node.proto, arrays, node.attributes)
        return None if found is None else [Tensor(found.shape, numbers=found)]

    # -- labels of a value

    def along(self, tensor: Tensor, axes: Axes) -> Array | None:
        """The labels of a value over exactly these axes, in this order; None where it is positional along the last.

        Other axes of a field are collapsed. Of a stored tensor the last axis is the one that moves.
        """
        if tensor.stored:
            return self._along_views(tensor, axes)
        fields = [one for one in tensor.fields if set(one.axes) & set(axes)]
        if not any(axes[-1] in one.axes for one in fields):
            for one in fields:
                self.pin(one, one.axes, "its channels meet others that stay where they are")
            return None
        own = next(one for one in fields if axes[-1] in one.axes)
        for one in fields:
            if one is not own:
                self.labels.freeze(one.labels, "two kinds of channels meet on one axis")
        labels = collapsed(self.labels, own, [axis for axis in own.axes if axis not in axes])
        kept = [axis for axis in own.axes if axis in axes]
        return _spread(labels, kept, axes, tensor)

    def _along_views(self, tensor: Tensor, axes: Axes) -> Array | None:
        """The labels of all stored tensors that the value is computed from; they move together."""
        first: Array | None = None
        sizes = [tensor.size(axis) for axis in axes]
        for view in tensor.views:
            own = [view.axes[axis] for axis in axes]
            if own[-1] is None:
                continue
            held = [axis for axis in own if axis is not None]
            self._asked.add((view.tag, held[-1]))
            labels = self.stored[view.tag].along(tuple(held))
            shape = [1 if axis is None or size is None else size for axis, size in zip(own, sizes)]
            spread = np.broadcast_to(labels.reshape(shape), [1 if size is None else size for size in sizes])
            if first is None:
                first = spread
            else:
                self.labels.unite(first, spread)
        return first

    def unread(self, tensor: Tensor) -> None:
        """A node does not read the numbers of a value, only its shape or type."""
        self._asked.update((view.tag, axis) for view in tensor.views for axis in view.axes if axis is not None)

    def widened(self, tensor: Tensor, more: int) -> Tensor:
        """A value with axes of one element behind its own."""
        views = tuple(View(one.tag, one.axes + (None,) * more) for one in tensor.views)
        return replace(tensor, shape=(tensor.shape or ()) + (1,) * more, views=views, numbers=None)

    def resolved(self, tensor: Tensor) -> Tensor:
        """A view of stored tensors as a value with fields: each axis by itself."""
        if not tensor.stored:
            return tensor
        fields = []
        for axis in range(tensor.rank):
            labels = self.along(tensor, (axis,)) if tensor.wide(axis) else None
            if labels is not None:
                fields.append(Field((axis,), labels))
        return Tensor(tensor.shape, tuple(fields), numbers=tensor.numbers, uniform=tensor.uniform)

    def pin(self, own: Field, axes: Iterable[int], why: str) -> None:
        """Nothing moves along `axes`: along the others it may, within each of their indices."""
        held = [axis for axis in own.axes if axis in set(axes)]
        if len(held) == len(own.axes):
            self.labels.freeze(own.labels, why)
        elif held:
            self.labels.close(own.labels, [own.index(axis) for axis in held])

    def freeze(self, tensor: Tensor, why: str) -> None:
        """Everything about a value stays where it is; what was never asked for of a stored tensor does so anyway."""
        for one in tensor.fields:
            self.labels.freeze(one.labels, why)
        for part in tensor.parts:
            self.freeze(part, why)
        for view in tensor.views:
            for axis in view.axes:
                if axis is not None:
                    self.stored[view.tag].block(axis, why)

    def freeze_axis(self, tensor: Tensor, axis: int, why: str) -> tuple[Field, ...]:
        """Nothing moves along an axis; returns the fields that are left."""
        own = tensor.field_on(axis)
        if own is None:
            return tensor.fields
        self.pin(own, [axis], why)
        rest = [other for other in own.axes if other != axis]
        left = [one for one in tensor.fields if one is not own]
        if rest:
            left.append(Field(tuple(rest), collapsed(self.labels, own, [axis])))
        return tuple(left)

    # -- values that meet

    def elementwise(self, node: Node, inputs: Sequence[Tensor | None], shape: Sizes | None = None) -> Tensor:
        """What an operator makes of values that it combines element by element, with broadcasting."""
        tensors = [one for one in inputs if one is not None]
        known = [one.shape for one in tensors if one.shape is not None]
        if len(known) < len(tensors) or not tensors:
            return self.blocked(node, f"the shapes at {node.called} are not known before it runs")[0]
        if shape is None or len(shape) != max(len(one) for one in known):
            shape = _broadcast(known)
        lifted = [_lifted(one, len(shape)) for one in tensors]
        active = [one if _whole(one) else self.resolved(one) for one in lifted if not one.uniform]
        if active and all(one.stored for one in active):
            views = tuple(view for one in active for view in one.views)
            return Tensor(shape, views=views)
        flat = frozenset(axis for axis in range(len(shape)) if not any(one.wide(axis) for one in active))
        fields = self.merged(active, node)
        taken = {axis for one in fields for axis in one.axes} | flat
        fresh = [self._begun(active, axis) for axis in range(len(shape)) if axis not in taken]
        fields += tuple(one for one in fresh if one is not None)
        return Tensor(shape, fields, uniform=not active, flat=flat)

    def _begun(self, tensors: Sequence[Tensor], axis: int) -> Field | None:
        """Channels that begin here: along an axis where only stored tensors have different elements."""
        wide = [one for one in tensors if one.wide(axis)]
        if not all(one.stored for one in wide):
            return None
        found = [self.along(one, (axis,)) for one in wide]
        known = [labels for labels in found if labels is not None]
        for labels in known[1:]:
            self.labels.unite(known[0], labels)
        return Field((axis,), known[0]) if len(known) == len(found) else None

    def merged(self, tensors: Sequence[Tensor], node: Node) -> tuple[Field, ...]:
        """The fields of values of one rank that meet element by element."""
        fields = []
        why = f"its channels meet others that stay where they are at {node.called}"
        for component in map(self._inner, _components(tensors)):
            common = set.intersection(*(set(own.axes) for _, own in component))
            if not common:
                for _, own in component:
                    self.labels.freeze(own.labels, f"two kinds of channels meet at {node.called}")
                continue
            axes = sorted(common)
            parts = [
                collapsed(self.labels, own, [axis for axis in own.axes if axis not in common]) for _, own in component
            ]
            for part in parts[1:]:
                self.labels.unite(parts[0], part)
            met: Field | None = Field(tuple(axes), parts[0])
            inside = [index for index, _ in component]
            for index, tensor in enumerate(tensors):
                if met is not None and index not in inside:
                    met = self._meet(met, tensor, why)
            if met is not None:
                fields.append(met)
        return tuple(fields)

    def _inner(self, component: list[tuple[int, Field]]) -> list[tuple[int, Field]]:
        """The fields that go on: where some have more channels inside of what all have, the outer ones stay for these.

        So it is with a weight for each head or expert. What has only few inside goes on as a whole.
        """
        common = set.intersection(*(set(own.axes) for _, own in component))
        inner = [
            (index, own)
            for index, own in component
            if own.axes[-1] not in common
            and np.prod([size for axis, size in zip(own.axes, own.labels.shape) if axis not in common]) >= FEW
        ]
        if not common or not inner:
            return component
        for index, own in component:
            if all(index != other for other, _ in inner):
                self.labels.freeze(own.labels, "its channels are weights for others, one for all that are inside")
        return inner

    def _meet(self, own: Field, other: Tensor, why: str) -> Field | None:
        """What is left of a field where it meets a value that has none there."""
        wide = [axis for axis in own.axes if other.wide(axis)]
        if not wide or other.uniform:
            return own
        if other.stored and own.axes[-1] in wide:
            # A bias for what is inside the heads, the same in each: it moves in the same way in all of them.
            left = Field(tuple(wide), collapsed(self.labels, own, [axis for axis in own.axes if axis not in wide]))
            labels = self.along(other, left.axes)
            if labels is not None:
                self.labels.unite(left.labels, labels)
                return left
        self.pin(own, wide, why)
        if len(wide) == len(own.axes):
            return None
        return own

    def close(self, own: Field, axes: Iterable[int]) -> None:
        """The channels along `axes` are all terms of one sum, or of what is as blind to their order."""
        held = set(axes)
        self.labels.close(own.labels, [own.index(axis) for axis in own.axes if axis not in held])


def _views(tensor: Tensor) -> Iterator[View]:
    """The views of a value, or of what is in a sequence."""
    yield from tensor.views
    for part in tensor.parts:
        yield from _views(part)


def _whole(tensor: Tensor) -> bool:
    """Whether every axis of a view is one of the stored tensor: not so where rows were looked up in a table."""
    return all(view.axes[axis] is not None for view in tensor.views for axis in range(tensor.rank) if tensor.wide(axis))


def _spread(labels: Array, axes: Sequence[int], wanted: Axes, tensor: Tensor) -> Array:
    """Labels over some axes, as an array over all that are wanted, in their order."""
    order = [axes.index(axis) for axis in wanted if axis in axes]
    shape = [labels.shape[axes.index(axis)] if axis in axes else 1 for axis in wanted]
    known = [tensor.size(axis) for axis in wanted]
    sizes = [
        labels.shape[axes.index(axis)] if axis in axes else 1 if size is None else size
        for axis, size in zip(wanted, known)
    ]
    return np.broadcast_to(labels.transpose(order).reshape(shape), sizes)


def _lifted(tensor: Tensor, rank: int) -> Tensor:
    """A value with axes of one element before its own."""
    more = rank - tensor.rank
    if not more:
        return tensor
    fields = tuple(Field(tuple(axis + more for axis in one.axes), one.labels) for one in tensor.fields)
    views = tuple(View(one.tag, (None,) * more + one.axes) for one in tensor.views)
    flat = frozenset(axis + more for axis in tensor.flat)
    shape = (1,) * more + (tensor.shape or ())
    return replace(tensor, shape=shape, fields=fields, views=views, numbers=None, flat=flat)


def _captured(proto: NodeProto) -> set[str]:
    """Names that the bodies of a node may read from outside."""
    found: set[str] = set()
    for attribute in proto.attribute:
        for body in (attribute.g, *attribute.graphs):
            found.update(output.name for output in body.output)
            for node in body.node:
                found.update(node.input)
                found |= _captured(node)
    return found


def _broadcast(shapes: Sequence[Sizes]) -> Sizes:
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    found: list[int | None] = []
    for sizes in zip(*padded):
        wide = [size for size in sizes if size is not None and size != 1]
        found.append(wide[0] if wide else None if None in sizes else 1)
    return tuple(found)


def _components(tensors: Sequence[Tensor]) -> list[list[tuple[int, Field]]]:
    """Fields that share an axis, directly or by others, each with the place of its value."""
    found: list[tuple[set[int], list[tuple[int, Field]]]] = []
    for index, tensor in enumerate(tensors):
        for own in tensor.fields:
            touching = [one for one in found if one[0] & set(own.axes)]
            axes = set(own.axes).union(*(one[0] for one in touching))
            members = [member for one in touching for member in one[1]] + [(index, own)]
            found = [one for one in found if one not in touching] + [(axes, members)]
    return [members for _, members in found]


def _small_integers(tensor: TensorProto) -> Array | None:
    """The numbers of a small integer constant; large ones are not in the copy that is walked."""
    size = int(np.prod(tensor.dims, dtype=np.int64))
    if tensor.data_type not in (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL) or size > LARGEST:
        return None
    if tensor.data_location == TensorProto.EXTERNAL:
        return None
    try:
        return numpy_helper.to_array(tensor)
    except ValueError:  # its numbers are in the file, not here
        return None


def _size_of(node: Node, shape: Sizes) -> list[Tensor] | None:
    start = node.attributes.integer("start", 0)
    chosen = shape[start : node.attributes.integer("end", len(shape))] if node.op == "Shape" else shape
    if any(size is None for size in chosen):
        return [Tensor((len(chosen),) if node.op == "Shape" else ())]
    numbers = np.array(chosen, np.int64)
    found = numbers if node.op == "Shape" else numbers.prod()
    return [Tensor(found.shape, numbers=np.asarray(found))]


__all__ = ["FEW", "Node", "Rule", "Scope", "Walk"]
