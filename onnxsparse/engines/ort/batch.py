"""Batch axis of the training graph: it has to compute a batch as the file does samples; stored batches of 1."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, numpy_helper
from onnx.helper import make_node

from onnxsparse.engines.ort.draft import Draft
from onnxsparse.engines.ort.shapes import Shaped, shapes_of
from onnxsparse.graph.attributes import attributes
from onnxsparse.graph.edit import FreshNames, downstream
from onnxsparse.math.values import Array

# -- Whether the copy does the same at the training batch as the user's file does sample by sample.
#
# 1. Every float output at batch B has to be the B single outputs, joined along one of its axes.
# 2. A difference counts against how much the output moves from sample to sample, so that mixed samples are seen where
#    outputs are nearly alike; a little rounding is allowed.
# 3. Where a batch of 1 is stored in constants they are changed: shapes of Reshape, Expand and Resize, initial states,
#    and constants that are joined with the data.
# 4. Initial states of their own for all samples come with the samples first, and a recurrent operator takes them along
#    its second axis: they are turned.

SPREAD, ROUNDING, HALF_ROUNDING = 2e-2, 2e-4, 2e-2
Shape = tuple[int, ...]

_SIZES = {"Reshape": 1, "Expand": 1, "Resize": 3}
_STATES = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}


def difference(name: str, batched: Array, singles: Mapping[int, Array], batch: int, rounding: float) -> str:
    """What is wrong with an output at a batch, in words; '' if nothing is. `singles` are outputs by place."""
    first = next(iter(singles.values()))
    if batched.dtype.kind != "f":
        return ""
    if batch == 1:
        axes = [0] if batched.shape == first.shape else []
    else:
        axes = [
            axis
            for axis in range(first.ndim)
            if batched.shape == (*first.shape[:axis], first.shape[axis] * batch, *first.shape[axis + 1 :])
        ]
    if not axes:
        if batched.shape == first.shape and all(_close(batched, other, rounding) for other in singles.values()):
            return ""  # it does not depend on the samples
        return f"output '{name}' has shape {list(batched.shape)} for {batch} samples and {list(first.shape)} for one"
    far = min(_furthest(batched, singles, axis, batch) for axis in axes)
    allowed = _allowed(list(singles.values()), rounding)
    return "" if far <= allowed else f"output '{name}' differs by {far:.3g} (where {allowed:.3g} would be rounding)"


def _close(mine: Array, theirs: Array, rounding: float) -> bool:
    return not mine.size or _distance(mine.astype(np.float64), theirs.astype(np.float64)) <= _allowed(
        [theirs], rounding
    )


def _furthest(batched: Array, singles: Mapping[int, Array], axis: int, batch: int) -> float:
    far = 0.0
    for place, single in singles.items():
        if single.size:
            width = single.shape[axis] if single.ndim else 1
            index = (slice(None),) * axis + (slice(place * width, (place + 1) * width),)
            mine = batched[index] if batch > 1 else batched
            far = max(far, _distance(mine.astype(np.float64), single.astype(np.float64)))
    return far


def _distance(mine: Array, theirs: Array) -> float:
    same = (mine == theirs) | (np.isnan(mine) & np.isnan(theirs))
    with np.errstate(all="ignore"):
        gaps = np.where(same, 0.0, np.abs(mine - theirs))
    return float(np.where(np.isnan(gaps), np.inf, gaps).max())


def _allowed(singles: Sequence[Array], rounding: float) -> float:
    numbers = np.stack([np.where(np.isfinite(one), one, 0.0).astype(np.float64) for one in singles])
    if not numbers.size:
        return 0.0
    spread = float(np.abs(numbers - numbers.mean(0)).max())
    return max(SPREAD * spread if len(singles) > 1 else 0.0, rounding * float(np.abs(numbers).max()), 1e-7)


def widen(draft: Draft) -> None:
    """Take a stored batch of 1 out of the constants of a copy of one sample; its width says whether any was found."""
    work = _Widening(draft)
    nodes: list[NodeProto] = []
    found = False
    for node in draft.graph.node:
        work.axis.follow(node)
        before = work.before(node)
        found |= before is not None
        nodes += [*(before or []), node]
    if found:
        draft.place(nodes)
        draft.width = draft.batch
        draft.note("a batch of 1 was stored in it and was taken out of the copy")


def _is_state(value: ValueInfoProto) -> bool:
    """Whether an input is declared as [1, samples, size]."""
    dims = value.type.tensor_type.shape.dim
    return len(dims) == 3 and dims[0].dim_value == 1


class _Widening:
    def __init__(self, draft: Draft) -> None:
        sampled = {name for name in draft.samples.arrays if draft.samples.sampled(name)}
        self.draft, self.batch, self.moving = draft, draft.batch, downstream(draft.graph, sampled)
        self.sampled = {value.name for value in draft.graph.input if _is_state(value)} & sampled
        self.stored, self.names = draft.tensors(), FreshNames.of(draft.graph)
        self.shapes = shapes_of(draft.model, [])
        self.axis = SampleAxis(sampled, self.shapes, self.stored)

    def before(self, node: NodeProto) -> list[NodeProto] | None:
        """Nodes to put before this one, after its inputs were changed; None if it holds no batch."""
        slot = _SIZES.get(node.op_type)
        if slot is not None:
            return self._wider_sizes(node, slot) if node.input[0] in self.moving else None
        if node.op_type in _STATES:
            slots = [slot for slot in _STATES[node.op_type] if slot < len(node.input) and node.input[slot]]
            stored = [slot for slot in slots if node.input[slot] not in self.moving]
            turned = self._turned(node, [slot for slot in slots if node.input[slot] in self.sampled])
            return [*turned, *(self._repeated(node, stored, (1, 1, 1), 1) or [])] or None
        if node.op_type == "Concat" and any(name in self.moving for name in node.input):
            return self._joined_with(node)
        return None

    def _wider_sizes(self, node: NodeProto, slot: int) -> list[NodeProto] | None:
        if len(node.input) <= slot or node.input[slot] not in self.stored:
            return None
        sizes = numpy_helper.to_array(self.stored[node.input[slot]]).copy()
        axis = self.axis.of(node.output[0]) or 0
        if axis >= sizes.size or sizes[axis] < 1 or (node.op_type != "Reshape" and sizes[axis] != 1):
            return None
        sizes[axis] *= self.batch
        node.input[slot] = self._constant(sizes)
        return []

    def _joined_with(self, node: NodeProto) -> list[NodeProto] | None:
        """Constants beside data have to be there once for each sample."""
        along = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
        axis = self.axis.of(node.output[0]) or 0
        made: list[NodeProto] = []
        for slot, name in enumerate(node.input):
            shaped = self.shapes.get(name)
            sizes = shaped.sizes if shaped is not None and name not in self.moving else None
            if sizes and axis < len(sizes) and sizes[axis] == 1 and along % len(sizes) != axis:
                made += self._repeated(node, [slot], (1,) * len(sizes), axis) or []
        return made or None

    def _turned(self, node: NodeProto, slots: Sequence[int]) -> list[NodeProto]:
        """States [samples, 1, size] as [1, samples, size]."""
        made = []
        for slot in slots:
            turned = self.names(f"{node.input[slot]}_turned")
            made.append(make_node("Transpose", [node.input[slot]], [turned], perm=[1, 0, 2]))
            node.input[slot] = turned
        return made

    def _repeated(self, node: NodeProto, slots: Sequence[int], ones: Shape, axis: int) -> list[NodeProto] | None:
        """An Expand before each of the inputs."""
        made = []
        for slot in slots:
            sizes = np.array(ones, np.int64)
            sizes[axis] = self.batch
            wide = self.names(f"{node.input[slot]}_batch")
            made.append(make_node("Expand", [node.input[slot], self._constant(sizes)], [wide]))
            node.input[slot] = wide
        return made or None

    def _constant(self, value: Array) -> str:
        name = self.names("batch_shape")
        self.draft.graph.initializer.append(numpy_helper.from_array(np.asarray(value, np.int64), name))
        return name


# -- Which axis of a value the samples lie along, followed through a graph of one sample.
#
# 1. It is the first one of the inputs; Transpose, Squeeze, Gather and recurrent layers move it, Reshape keeps its place
#    in memory: as many elements go round before it as before.
# 2. Where it gets lost (the axis is reduced or indexed) the value has none, and neither have those made of it.
# 3. Operators that are not named here keep axes, aligned at the last one.
# 4. Where Reshape joins the samples with another axis, that is the one after them (heads) unless it is the last one,
#    which holds features: then it is the one before (time steps).

_RECURRENT = ("LSTM", "GRU", "RNN")
_REDUCING = ("ArgMax", "ArgMin")


class SampleAxis:
    """Ask `of` for a value after `follow` has seen the nodes before it, in order."""

    def __init__(self, inputs: Iterable[str], shapes: Mapping[str, Shaped], stored: Mapping[str, TensorProto]) -> None:
        self._shapes, self._stored = shapes, stored
        self._known = dict.fromkeys(inputs, 0)
        self._inner: set[str] = set()  # values whose axis has the samples inside, not outside

    def of(self, name: str) -> int | None:
        return self._known.get(name)

    def follow(self, node: NodeProto) -> None:
        moving = next((slot for slot, name in enumerate(node.input) if name in self._known), None)
        if moving is None:
            return
        for place, name in enumerate(node.output):
            axis = self._after(node, moving, place) if name else None
            if axis is None or axis < 0:
                continue
            self._known[name] = axis
            joined = node.op_type not in ("Reshape", "Flatten") and node.input[moving] in self._inner
            if joined:
                self._inner.add(name)

    def _after(self, node: NodeProto, slot: int, place: int) -> int | None:
        axis, given = self._known[node.input[slot]], attributes(node)
        before, after = self._sizes(node.input[slot]), self._sizes(node.output[place])
        if node.op_type in _RECURRENT:
            return 1 if place else 2
        if before is None or after is None:
            return None
        if node.op_type == "Transpose":
            return list(given.get("perm", range(len(before))[::-1])).index(axis)
        if node.op_type in ("Reshape", "Flatten"):
            return self._reshaped(node, slot, before, after)
        if node.op_type == "Gather":
            return self._gathered(node, slot, axis, given.get("axis", 0), len(before))
        if node.op_type in ("Squeeze", "Unsqueeze") or node.op_type.startswith("Reduce") or node.op_type in _REDUCING:
            return self._fewer_or_more(node, given, axis, before, after)
        return axis + len(after) - len(before)

    def _reshaped(self, node: NodeProto, slot: int, before: tuple[int, ...], after: tuple[int, ...]) -> int | None:
        """The axis that as many elements go round before it; of several, that of size 1."""
        name = node.input[slot]
        outer = math.prod(before[: self._known[name] + (name in self._inner)])
        places = [place for place in range(len(after)) if math.prod(after[:place]) == outer]
        alone = next((place for place in places if after[place] == 1), None)
        if alone is not None or not places:
            return alone
        if places[0] and places[0] == len(after) - 1:
            self._inner.add(node.output[0])
            return places[0] - 1
        return places[0]

    def _gathered(self, node: NodeProto, slot: int, axis: int, along: int, rank: int) -> int | None:
        along %= len(self._sizes(node.input[0]) or [0])
        if slot == 1:
            return along + axis
        indices = self._sizes(node.input[1])
        if along == axis or indices is None:
            return None
        return axis if along > axis else axis + len(indices) - 1

    def _fewer_or_more(
        self, node: NodeProto, given: Mapping[str, Any], axis: int, before: tuple[int, ...], after: tuple[int, ...]
    ) -> int | None:
        if len(before) == len(after):
            return axis
        axes = given.get("axes", [given["axis"]] if "axis" in given else self._listed(node))
        if axes is None:
            return None
        wider = max(len(before), len(after))
        changed = {one % wider for one in axes}
        rest = [one for one in range(wider) if one not in changed]
        if len(after) > len(before):
            return rest[axis]
        return rest.index(axis) if axis in rest else None

    def _listed(self, node: NodeProto) -> list[int] | None:
        stored = self._stored.get(node.input[1]) if len(node.input) > 1 else None
        return None if stored is None else [int(one) for one in numpy_helper.to_array(stored).reshape(-1)]

    def _sizes(self, name: str) -> tuple[int, ...] | None:
        shaped = self._shapes.get(name)
        return None if shaped is None else shaped.sizes
