"""Whether the copy does the same at the training batch as the user's file does sample by sample.

1. Every float output at batch B has to be the B single outputs, joined along one of its axes.
2. A difference counts against how much the output moves from sample to sample, so that mixed samples are seen where
   outputs are nearly alike; a little rounding is allowed.
3. Where a batch of 1 is stored in constants they are changed: shapes of Reshape, Expand and Resize, initial states,
   and constants that are joined with the data.
4. Initial states of their own for all samples come with the samples first, and a recurrent operator takes them along
   its second axis: they are turned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import NodeProto, ValueInfoProto, numpy_helper
from onnx.helper import make_node

from onnxsparse.engines.ort.draft import Draft
from onnxsparse.engines.ort.reach import downstream
from onnxsparse.engines.ort.sample_axis import SampleAxis
from onnxsparse.engines.ort.scopes import Names
from onnxsparse.engines.ort.shapes import shapes_of
from onnxsparse.math.values import Array

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
        axes = [axis for axis in range(first.ndim) if batched.shape == _joined(first.shape, axis, batch)]
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


def _joined(shape: tuple[int, ...], axis: int, batch: int) -> tuple[int, ...]:
    return (*shape[:axis], shape[axis] * batch, *shape[axis + 1 :])


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


def widen(draft: Draft, batch: int, sampled: set[str]) -> bool:
    """Take a batch of 1 out of the constants; whether any was found. `sampled` are inputs with an axis of samples."""
    work = _Widening(draft, batch, sampled)
    nodes: list[NodeProto] = []
    found = False
    for node in draft.graph.node:
        work.axis.follow(node)
        before = work.before(node)
        found |= before is not None
        nodes += [*(before or []), node]
    if found:
        draft.place(nodes)
    return found


def _is_state(value: ValueInfoProto) -> bool:
    """Whether an input is declared as [1, samples, size]."""
    dims = value.type.tensor_type.shape.dim
    return len(dims) == 3 and dims[0].dim_value == 1


class _Widening:
    def __init__(self, draft: Draft, batch: int, sampled: set[str]) -> None:
        self.draft, self.batch, self.moving = draft, batch, downstream(draft.graph, sampled)
        self.sampled = {value.name for value in draft.graph.input if _is_state(value)} & sampled
        self.stored, self.names = draft.tensors(), Names(draft.graph)
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
            turned = self.names.fresh(f"{node.input[slot]}_turned")
            made.append(make_node("Transpose", [node.input[slot]], [turned], perm=[1, 0, 2]))
            node.input[slot] = turned
        return made

    def _repeated(self, node: NodeProto, slots: Sequence[int], ones: Shape, axis: int) -> list[NodeProto] | None:
        """An Expand before each of the inputs."""
        made = []
        for slot in slots:
            sizes = np.array(ones, np.int64)
            sizes[axis] = self.batch
            wide = self.names.fresh(f"{node.input[slot]}_batch")
            made.append(make_node("Expand", [node.input[slot], self._constant(sizes)], [wide]))
            node.input[slot] = wide
        return made or None

    def _constant(self, value: Array) -> str:
        name = self.names.fresh("batch_shape")
        self.draft.graph.initializer.append(numpy_helper.from_array(np.asarray(value, np.int64), name))
        return name
