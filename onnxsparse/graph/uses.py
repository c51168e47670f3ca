"""Recording who uses which stored tensor as what, while `flow` walks over the nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Union

import numpy as np
from onnx import NodeProto

from onnxsparse.graph.attributes import Attributes, label
from onnxsparse.graph.crossings import quantized
from onnxsparse.graph.layout import Layout, Shape
from onnxsparse.graph.operators import REFUSED, Arrangement, Slot, is_known, slots_of
from onnxsparse.graph.storage import FLOAT_KINDS, WEIGHT_KINDS, StoredTensor
from onnxsparse.graph.stores import Stores
from onnxsparse.graph.traced import Computed, Joined, Part, Traced, Value, small_array
from onnxsparse.graph.weights import Quantization, Use, Weight, owners_of

Read = tuple[Layout, Arrangement, Union[Quantization, None]]


@dataclass(frozen=True, eq=False)
class Place:
    """One node at one call, with the values of its inputs."""

    node: NodeProto
    values: Sequence[Value]
    attributes: Attributes
    scope: str
    peek: Callable[[str], Value]
    readers: Callable[[str], list[NodeProto]]

    def value(self, index: int) -> Value:
        return self.values[index] if index < len(self.values) else None

    def given(self, index: int) -> str | None:
        """None for an input left out; else whether it is constant."""
        if index >= len(self.node.input) or not self.node.input[index]:
            return None
        return "run time" if self.value(index) is None else "constant"


class Uses:
    """The weights found so far."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._weights: dict[int, Weight] = {}
        self._seen: dict[int, set[object]] = {}

    @property
    def weights(self) -> list[Weight]:
        return [weight for weight in self._weights.values() if weight.uses or weight.refused_by]

    def weight(self, tensor: StoredTensor) -> Weight:
        home = self._stores.homes[tensor]
        return self._weights.setdefault(id(tensor), Weight(tensor.name, home.scope, tensor, home.storage))

    def record(self, place: Place) -> set[int]:
        """Record every weight input of the node; return the inputs that are one."""
        taken: set[int] = set()
        for slot in slots_of(place.node.domain, place.node.op_type):
            value = place.value(slot.index)
            if value is not None:
                taken.add(slot.index)
                self._use(place, slot, value)
        taken |= self._refused(place)
        if not is_known(place.node.domain, place.node.op_type):
            self._unknown(place)
        return taken

    def _refused(self, place: Place) -> set[int]:
        indices, reason = REFUSED.get((place.node.domain, place.node.op_type), ((), ""))
        given = {index for index in indices if place.value(index) is not None}
        for index in sorted(given):
            self._refuse(place.value(index), reason, place.node)
        return given

    def _use(self, place: Place, slot: Slot, value: Traced | Computed) -> None:
        node = place.node
        if isinstance(value, (Part, Joined)):
            self._use_cut(place, slot, value)
            return
        if isinstance(value, Computed):
            if slot.family != "Embedding":
                through = f"through {value.why}, which rearranges or mixes its numbers"
                self._refuse(value, f"it reaches {node.op_type} '{label(node)}' {through}", node)
            return
        self._use_traced(place, slot, value)

    def _use_cut(self, place: Place, slot: Slot, value: Part | Joined) -> None:
        """A part of a constant, or several side by side: cut between outputs, each is read like a whole one."""
        pieces = [value.source] if isinstance(value, Part) else value.pieces
        for piece in pieces:
            if slot.family == "Embedding" or not _cut_between_outputs(slot, piece.shape, value.axis, place.attributes):
                why = f"it is cut along its inputs by {value.why} before {place.node.op_type} '{label(place.node)}'"
                self._refuse(piece, why, place.node)
            else:
                self._use_traced(place, slot, piece)

    def _use_traced(self, place: Place, slot: Slot, value: Traced) -> None:
        node = place.node
        found = _arranged(place, slot, value)
        if isinstance(found, str):
            if slot.family != "Embedding" or not _is_table_of_indices(value.tensor):
                self._refuse(value, found, node)
            return
        layout, arrangement, quantization = found
        use = Use(
            node, node.op_type, label(node), place.scope, slot.index, slot.family, value.tensor.shape,
            layout, arrangement, value.crossed, quantization, value.masks,
        )  # fmt: skip
        self._add(value.tensor, use)

    def _add(self, tensor: StoredTensor, use: Use) -> None:
        key = (id(use.source), use.slot, use.scope, use.layout, use.arrangement)
        seen = self._seen.setdefault(id(tensor), set())
        if key not in seen:  # else a function that is called again
            seen.add(key)
            self.weight(tensor).uses.append(use)

    def _refuse(self, value: Value, reason: str, node: NodeProto) -> None:
        for tensor in _tensors(value):
            weight = self.weight(tensor)
            weight.refusal = weight.refusal or reason
            weight.refused_by = weight.refused_by or label(node)

    def _unknown(self, place: Place) -> None:
        name = f"{place.node.domain}::{place.node.op_type}"
        for value in place.values:
            if isinstance(value, Traced) and value.tensor.kind in WEIGHT_KINDS and _is_matrix(value.tensor):
                self._refuse(value, f"it is used by {name}, an operator whose axes are not known here", place.node)

    def settle(self) -> None:
        """Integers have one zero: uses that read them with different zero points cannot both be served."""
        for weight in self._weights.values():
            zeros = [use.quantization.zero_point for use in weight.uses if use.quantization]
            if any(zero.shape != zeros[0].shape or (zero != zeros[0]).any() for zero in zeros[1:]):
                weight.refusal = weight.refusal or "its uses read it with different zero points"

    def note_others(self, node: NodeProto, values: Sequence[Value], taken: set[int]) -> None:
        for index, value in enumerate(values):
            if index not in taken:
                self.consume(value, f"{node.op_type} '{label(node)}'")

    def consume(self, value: Value, by: str) -> None:
        if isinstance(value, Traced) and value.tensor.size > 1:
            weight = self.weight(value.tensor)
            weight.others.append(by)
            if not value.masks:
                weight.bare.append(by)


def _is_matrix(tensor: StoredTensor) -> bool:
    return sum(dim > 1 for dim in tensor.shape) >= 2


def _cut_between_outputs(slot: Slot, shape: Shape, axis: int, attributes: Attributes) -> bool:
    arrangement = slot.arrange(shape, attributes)
    if isinstance(arrangement, str):
        return False
    split = len(arrangement.shape) - len(shape)  # a convolution's outputs are cut into groups first
    return not (split and arrangement.shape[0] > 1) and axis + split not in arrangement.reduce


def _tensors(value: Value) -> list[StoredTensor]:
    """The stored tensors behind a value; of a computed one only those that can be weights."""
    if value is None or isinstance(value, Traced):
        return [value.tensor] if value else []
    matrices = [tensor for tensor in value.tensors if tensor.kind in WEIGHT_KINDS and len(tensor.shape) >= 2]
    return sorted(matrices, key=lambda tensor: tensor.name)


def _arranged(place: Place, slot: Slot, value: Traced) -> Read | str:
    """How a node reads a stored tensor, or why that cannot be told."""
    tensor = value.tensor
    if tensor.problem or tensor.kind not in WEIGHT_KINDS:
        return tensor.problem or f"its element type {tensor.kind} is not supported"
    arrangement = slot.arrange(value.shape, place.attributes)
    if isinstance(arrangement, str):
        return arrangement
    layout = value.layout.reshape(arrangement.shape)
    if layout is None:
        return "it has a dimension of size 0" if 0 in value.shape else "its axes cannot be told apart after a Reshape"
    owners = owners_of(layout.atoms, tensor.shape)
    if any(owners[atom] in value.shuffled for atom in layout.place(arrangement.reduce)):
        return "Slice and Concat put its inputs into another order"
    quantization = value.quantization or _quantization(place, slot, value, arrangement)
    return quantization if isinstance(quantization, str) else (layout, arrangement, quantization)


def _quantization(place: Place, slot: Slot, value: Traced, arrangement: Arrangement) -> Quantization | str | None:
    if value.tensor.kind in FLOAT_KINDS:
        return None
    if slot.family == "Embedding":
        return _from_reader(place, value)
    # Scales and zero points run along the outputs; a convolution's are its first axis, before it is cut into groups,
    # and a single row of a recurrent layer's is one number for each direction.
    along_first = slot.family == "Recurrent" or len(arrangement.shape) != len(value.shape)
    axis = 0 if along_first else arrangement.out[0]
    return _from_inputs(place, slot, value, axis)


def _from_reader(place: Place, value: Traced) -> Quantization | str:
    """A table of integers is dequantised behind the look-up."""
    for node in place.readers(place.node.output[0]) if place.node.output else []:
        if node.op_type == "DequantizeLinear" or node.op_type.startswith("QLinear"):
            at = list(node.input).index(place.node.output[0])
            scale, zero = (small_array(place.peek(name)) for name in [*node.input, "", ""][at + 1 : at + 3])
            zero = np.zeros(1, value.tensor.dtype) if zero is None and len(node.input) <= at + 2 else zero
            if scale is not None and zero is not None and scale.size == zero.size == 1:
                found = quantized(value, scale, zero, 0)
                if found is not None:
                    return found
    return "its zero point is not known where it is looked up"


def _is_table_of_indices(tensor: StoredTensor) -> bool:
    return len(tensor.shape) < 2 or tensor.kind in (
        "int64",
        "int32",
        "int16",
        "uint64",
        "uint32",
        "uint16",
        "bool",
        "string",
    )


def _from_inputs(place: Place, slot: Slot, value: Traced, axis: int) -> Quantization | str:
    """Scale and zero point that an operator on integers takes as inputs of their own."""
    zero, scale = (None if index is None else place.given(index) for index in (slot.zero_point, slot.scale))
    if "run time" in (zero, scale):
        return "its scale or zero point is known only at run time"
    zeros = np.zeros(1, value.tensor.dtype) if zero is None else small_array(place.value(slot.zero_point or 0))
    scales = np.ones(1, np.float32) if scale is None else small_array(place.value(slot.scale or 0))
    if zeros is None or scales is None:
        return "its scale or zero point is computed"
    return quantized(value, scales, zeros, axis) or "its scale or zero point does not follow one of its axes"
