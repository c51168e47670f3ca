"""If, Loop, Scan, and values that hold several: sequences and optionals.

1. Where one of several values goes on, such as the result of one branch, they have the same channels in the same
   places, or none may move (`either`).
2. What a body carries from turn to turn meets what the body makes of it, again and again until nothing changes.
3. Of a sequence its tensors are known one by one (`Tensor.parts`). One that grows in a body is of unknown length, and
   what is put into it stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np
from onnx import GraphProto

from onnxsparse.channel_classes.rules.layout import chosen, concat, reshaped
from onnxsparse.channel_classes.tensors import Sizes, Tensor
from onnxsparse.channel_classes.walk import Node, Rule, Walk

TURNS = 32
"""How often a body is walked. Each walk leaves fewer axes free, so that it ends well before."""
MOST_PARTS = 4096
"""Of a sequence that Split makes."""

# -- bodies


def if_(walk: Walk, node: Node) -> list[Tensor]:
    """If: the result of a branch, whichever; of the one that is taken where the condition is known and ranks differ.

    A condition may be known by sizes that were only assumed, so that the other branch may still be taken one day.
    """
    condition = node.input(0)
    bodies = [_body(node, name) for name in ("then_branch", "else_branch")]
    both = [walk.graph(body, node.scope)[0] for body in bodies if body is not None]
    if condition is None or len(both) < 2:
        return walk.blocked(node)
    walk.freeze(condition, f"{node.called} decides by it")
    known = condition.numbers is not None and condition.numbers.size == 1
    taken = 1 if condition.numbers is None or not condition.numbers.any() else 0
    return [pair[taken] if known and pair[0].rank != pair[1].rank else either(walk, node, pair) for pair in zip(*both)]


def loop(walk: Walk, node: Node) -> list[Tensor]:
    """Loop: carried values, and one axis more in front of what is collected from all turns."""
    body = _body(node, "body")
    if body is None:
        return walk.blocked(node)
    for given in node.inputs[:2]:
        if given is not None:
            walk.freeze(given, f"{node.called} counts with it")
    carried = [one or Tensor(None) for one in node.inputs[2:]]
    carried, made = _turns(walk, node, body, carried, (Tensor(()), Tensor(())), 1)
    return carried + [_stacked(walk, one, 0) for one in made]


def scan(walk: Walk, node: Node) -> list[Tensor]:
    """Scan since opset 9: slices of some inputs, one for each turn; the axis that they are cut along stays."""
    body, count = _body(node, "body"), node.attributes.integer("num_scan_inputs")
    states = len(node.inputs) - count
    if body is None or node.opset < 9 or states < 0 or any(one is None or one.shape is None for one in node.inputs):
        return walk.blocked(node)
    given = [one for one in node.inputs if one is not None]
    axes = node.attributes.integers("scan_input_axes") or [0] * count
    steps = [_sliced(walk, node, one, axis % max(one.rank, 1)) for one, axis in zip(given[states:], axes)]
    carried, made = _turns(walk, node, body, given[:states], (), 0, steps)
    places = node.attributes.integers("scan_output_axes") or [0] * len(made)
    return carried + [_stacked(walk, one, axis) for one, axis in zip(made, places)]


def _body(node: Node, name: str) -> GraphProto | None:
    attribute = node.attributes.table.get(name)
    return None if attribute is None else attribute.g


def _turns(
    walk: Walk,
    node: Node,
    body: GraphProto,
    carried: Sequence[Tensor],
    before: Sequence[Tensor],
    first: int,
    steps: Sequence[Tensor] = (),
) -> tuple[list[Tensor], list[Tensor]]:
    """Walk a body until what it carries on is what it was given; return that, and what else it makes.

    `before` are inputs of the body that are numbers of the turn; its first outputs, `first` of them, a condition.
    """
    carried = [_any(walk, one) for one in carried]
    made: list[Tensor] = []
    last = first + len(carried)
    for _ in range(TURNS):
        made, _scope = walk.graph(body, node.scope, [*before, *carried, *steps])
        for one in made[:first]:
            walk.freeze(one, f"{node.called} decides by it")
        after = [either(walk, node, pair) for pair in zip(carried, made[first:last])]
        if all(_alike(walk, *pair) for pair in zip(carried, after)):
            return after, made[last:]
        carried = after
    for one in (*carried, *made):
        walk.freeze(one, f"{node.called} makes something else of it in each turn")
    results = walk.blocked(node)
    return results[: len(carried)], results[len(carried) :]


def _any(walk: Walk, tensor: Tensor) -> Tensor:
    """A value as one of many turns has it: its numbers are not those of the first."""
    return replace(walk.resolved(tensor), numbers=None, parts=tuple(_any(walk, part) for part in tensor.parts))


def _alike(walk: Walk, one: Tensor, other: Tensor) -> bool:
    """Whether nothing was found out about a value."""
    same = (one.shape, one.uniform, one.flat, len(one.parts)) == (
        other.shape,
        other.uniform,
        other.flat,
        len(other.parts),
    )
    fields = {own.axes: own.labels for own in one.fields}
    return (
        same
        and fields.keys() == {own.axes for own in other.fields}
        and all(
            np.array_equal(walk.labels.find(fields[own.axes]), walk.labels.find(own.labels)) for own in other.fields
        )
        and all(_alike(walk, *pair) for pair in zip(one.parts, other.parts))
    )


def _sliced(walk: Walk, node: Node, tensor: Tensor, axis: int) -> Tensor:
    """What is left of a value without an axis that stays."""
    tensor = walk.resolved(tensor)
    fields = walk.freeze_axis(tensor, axis, f"{node.called} takes turns along it")
    places = {at: at - (at > axis) for at in range(tensor.rank)}
    sizes = tuple(size for at, size in enumerate(tensor.shape or ()) if at != axis)
    return Tensor(sizes, tuple(one.moved(places) for one in fields), uniform=tensor.uniform)


def _stacked(walk: Walk, tensor: Tensor, axis: int) -> Tensor:
    """Values of all turns side by side along a new axis."""
    if tensor.shape is None:
        walk.freeze(tensor, "its shape is not known before it runs")
        return Tensor(None)
    tensor = walk.resolved(tensor)
    axis %= tensor.rank + 1
    places = {at: at + (at >= axis) for at in range(tensor.rank)}
    sizes = (*tensor.shape[:axis], None, *tensor.shape[axis:]) if tensor.shape is not None else None
    return Tensor(sizes, tuple(one.moved(places) for one in tensor.fields))


# -- one of several


def either(walk: Walk, node: Node, tensors: Iterable[Tensor]) -> Tensor:
    """The value that is one or another of these."""
    return reduce(lambda one, other: _either(walk, node, one, other), tensors)


def _either(walk: Walk, node: Node, one: Tensor, other: Tensor) -> Tensor:
    pair = [one, other]
    if one.shape is None or other.shape is None or one.rank != other.rank:
        return _neither(walk, node, one, other)
    pair = [walk.resolved(tensor) for tensor in pair]
    shape: Sizes = tuple(a if a == b else None for a, b in zip(one.shape, other.shape))
    for at, size in enumerate(shape):
        if size is None:
            why = f"its size differs before {node.called} has run"
            pair = [replace(tensor, fields=walk.freeze_axis(tensor, at, why)) for tensor in pair]
    moving = [tensor for tensor in pair if not tensor.uniform]
    flat = frozenset(at for at in range(len(shape)) if all(at in tensor.flat for tensor in moving))
    return Tensor(shape, walk.merged(moving, node), uniform=not moving, flat=flat if moving else frozenset())


def _neither(walk: Walk, node: Node, one: Tensor, other: Tensor) -> Tensor:
    """Values of unlike shapes, or sequences: one by one where these are of the same length."""
    if one.parts and len(one.parts) == len(other.parts):
        pairs = zip(one.parts, other.parts)
        return Tensor(None, parts=tuple(_either(walk, node, *pair) for pair in pairs))
    if _empty(one) and _empty(other):
        return one
    for tensor in (one, other):
        walk.freeze(tensor, f"it has another shape before {node.called} than after")
    return Tensor(None)


# -- sequences and optionals


def _empty(tensor: Tensor) -> bool:
    """Whether a value is a sequence that is known to be empty: vacuously, all its elements are equal."""
    return tensor.shape is None and tensor.uniform and not tensor.parts


def empty(walk: Walk, node: Node) -> list[Tensor]:
    """SequenceEmpty."""
    return [Tensor(None, uniform=True)]


def sequence(walk: Walk, node: Node) -> list[Tensor]:
    """SequenceConstruct."""
    return [Tensor(None, parts=tuple(one for one in node.inputs if one is not None))]


def at(walk: Walk, node: Node) -> list[Tensor]:
    """SequenceAt: one of the tensors, or any where the place is not known."""
    held, place = node.input(0), node.numbers(1)
    _positional(walk, node, node.input(1))
    if held is None or not held.parts:
        return walk.blocked(node)
    if place is None:
        return [either(walk, node, held.parts)]
    return [held.parts[place[0]]] if -len(held.parts) <= place[0] < len(held.parts) else walk.blocked(node)


def insert(walk: Walk, node: Node) -> list[Tensor]:
    """SequenceInsert, at the end if no place is given."""
    held, new = node.input(0), node.input(1)
    place = node.numbers(2) if node.input(2) is not None else [len(held.parts) if held is not None else 0]
    _positional(walk, node, node.input(2))
    if held is None or new is None or place is None or not (held.parts or _empty(held)):
        return walk.blocked(node)
    where = place[0] + len(held.parts) if place[0] < 0 else place[0]
    return [Tensor(None, parts=(*held.parts[:where], new, *held.parts[where:]))]


def erase(walk: Walk, node: Node) -> list[Tensor]:
    """SequenceErase, of the last if no place is given."""
    held = node.input(0)
    place = node.numbers(1) if node.input(1) is not None else [-1]
    _positional(walk, node, node.input(1))
    if held is None or place is None or not -len(held.parts) <= place[0] < len(held.parts):
        return walk.blocked(node)
    where = place[0] % len(held.parts)
    kept = held.parts[:where] + held.parts[where + 1 :]
    return [Tensor(None, parts=kept, uniform=not kept)]


def length(walk: Walk, node: Node) -> list[Tensor]:
    """SequenceLength, OptionalHasElement: they read no numbers."""
    held = node.input(0)
    count = np.array(len(held.parts), np.int64) if held is not None and held.parts else None
    return [Tensor((), numbers=count if node.op == "SequenceLength" else None)]


def split(walk: Walk, node: Node) -> list[Tensor]:
    """SplitToSequence into a known number of parts; a scalar is the size of each, but of the last."""
    tensor, sizes = node.input(0), node.numbers(1)
    _positional(walk, node, node.input(1))
    if tensor is None or tensor.shape is None or not tensor.rank:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    axis = node.attributes.integer("axis", 0) % tensor.rank
    whole, given = tensor.size(axis), node.input(1)
    if whole is None or whole > MOST_PARTS or (given is not None and sizes is None):
        return walk.blocked(node, f"the sizes at {node.called} are not known before it runs")
    if given is None or sizes is None:
        sizes = [1] * whole
    elif given.rank == 0:
        sizes = [min(sizes[0], whole - start) for start in range(0, whole, max(sizes[0], 1))]
    tensor = walk.resolved(tensor)
    bounds = np.cumsum([0, *sizes])
    parts = [chosen(walk, tensor, axis, np.arange(start, stop)) for start, stop in zip(bounds, bounds[1:])]
    if given is None and not node.attributes.integer("keepdims", 1):
        shape = (*tensor.shape[:axis], *tensor.shape[axis + 1 :]) if tensor.shape is not None else ()
        parts = [reshaped(walk, one, shape, node.called) for one in parts]
    return [Tensor(None, parts=tuple(parts))]


def joined(walk: Walk, node: Node) -> list[Tensor]:
    """ConcatFromSequence: along an axis, or along a new one."""
    held = node.input(0)
    if held is None or not held.parts or any(one.shape is None for one in held.parts):
        return walk.blocked(node)
    parts, rank = held.parts, held.parts[0].rank
    if node.attributes.integer("new_axis", 0):
        axis = node.attributes.integer("axis") % (rank + 1)
        shapes = [(*(one.shape or ())[:axis], 1, *(one.shape or ())[axis:]) for one in parts]
        parts = tuple(reshaped(walk, one, shape, node.called) for one, shape in zip(parts, shapes))
    return concat(walk, replace(node, inputs=parts))


def passing(walk: Walk, node: Node) -> list[Tensor]:
    """Optional, OptionalGetElement."""
    held = node.input(0)
    return [Tensor(None)] if held is None else [held]


def _positional(walk: Walk, node: Node, tensor: Tensor | None) -> None:
    if tensor is not None:
        walk.freeze(tensor, f"{node.called} counts with it")


RULES: dict[tuple[str, str], Rule] = {
    ("", "If"): if_,
    ("", "Loop"): loop,
    ("", "Scan"): scan,
    ("", "SequenceEmpty"): empty,
    ("", "SequenceConstruct"): sequence,
    ("", "SequenceAt"): at,
    ("", "SequenceInsert"): insert,
    ("", "SequenceErase"): erase,
    ("", "SequenceLength"): length,
    ("", "OptionalHasElement"): length,
    ("", "SplitToSequence"): split,
    ("", "ConcatFromSequence"): joined,
    ("", "Optional"): passing,
    ("", "OptionalGetElement"): passing,
}

__all__ = ["RULES", "either"]
