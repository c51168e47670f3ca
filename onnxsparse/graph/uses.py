"""Uses of stored tensors: which node reads which one as what, recorded while `flow` walks over the nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Union

import numpy as np
from onnx import NodeProto

from onnxsparse.graph.attributes import Attributes, label
from onnxsparse.graph.elementwise import Mask, Quantization, arrives, owners_of, spread
from onnxsparse.graph.layout import Layout, Shape
from onnxsparse.graph.operators import REFUSED, Arrangement, Slot, is_known, slots_of
from onnxsparse.graph.origins import Computed, Dims, Joined, Known, Part, Traced, Value, Varying, carried, small_array
from onnxsparse.graph.storage import FLOAT_KINDS, PACKED_KINDS, WEIGHT_KINDS, Array, StoredTensor, kind_of
from onnxsparse.graph.stores import Stores
from onnxsparse.graph.view_operators import quantized
from onnxsparse.graph.weights import Use, Weight, unique_names

PRODUCTS = ("MatMul", "Gemm", "Einsum")
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
    varying: Sequence[Varying | None] = ()  # inputs that depend on the run, and on stored tensors besides

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
        self._weights: dict[StoredTensor, Weight] = {}
        self._seen: dict[StoredTensor, set[object]] = {}
        self._later: list[tuple[StoredTensor, str, str]] = []

    @property
    def weights(self) -> list[Weight]:
        return [weight for weight in self._weights.values() if weight.uses or weight.refused_by]

    def weight(self, tensor: StoredTensor) -> Weight:
        if tensor not in self._weights:
            self._weights[tensor] = Weight(tensor.name, tensor, self._stores.homes[tensor])
        return self._weights[tensor]

    def record(self, place: Place) -> set[int]:
        """Record every weight input of the node; return the inputs that are one."""
        taken: set[int] = set()
        slots = slots_of(place.node.domain, place.node.op_type)
        for slot in slots:
            value = place.value(slot.index)
            if value is not None:
                taken.add(slot.index)
                self._use(place, slot, value)
        if not taken or not any(slot.family in PRODUCTS for slot in slots):
            # Where one operand of a product is a constant, the other one is what flows through the model.
            self._moved_at_run_time(place, [slot for slot in slots if slot.index not in taken])
        taken |= self._refused(place)
        if not is_known(place.node.domain, place.node.op_type):
            self._unknown(place)
        return taken

    def _moved_at_run_time(self, place: Place, slots: Sequence[Slot]) -> None:
        """Refuse weights that meet a run-time value on their way.

        An operand of a product may as well be an activation to which a table or a bias was added: where its size does
        not tell, the tensor is refused only if another node uses it as a weight, which is known at the end.
        """
        for slot in slots:
            value = place.varying[slot.index] if slot.index < len(place.varying) else None
            if value is None:
                continue
            reason = f"it reaches {place.node.op_type} '{label(place.node)}' through {value.why}"
            if value.sure or (slot.family != "Embedding" and slot.family not in PRODUCTS):
                self._refuse(value, reason, place.node)
            else:
                self._later += [(tensor, reason, label(place.node)) for tensor in value.tensors]

    def _refused(self, place: Place) -> set[int]:
        indices, reason = REFUSED.get((place.node.domain, place.node.op_type), ((), ""))
        given = {index for index in indices if place.value(index) is not None}
        for index in sorted(given):
            self._refuse(place.value(index), reason, place.node)
            self.consume(place.value(index), f"{place.node.op_type} '{label(place.node)}'")
        return given

    def _use(self, place: Place, slot: Slot, value: Traced | Computed) -> None:
        node = place.node
        if isinstance(value, (Part, Joined)):
            self._use_cut(place, slot, value)
            return
        if isinstance(value, Computed):
            if not isinstance(value, (Known, Dims)):
                through = f"through {value.why}, which rearranges or mixes its numbers"
                self._refuse(value, f"it reaches {node.op_type} '{label(node)}' {through}", node)
            return
        self._use_traced(place, slot, value)

    def _use_cut(self, place: Place, slot: Slot, value: Part | Joined) -> None:
        """A part of a constant, or several side by side: cut between outputs, each is read like a whole one."""
        rows = _rows(value)
        for piece, span in zip(carried(value), rows):
            if slot.family == "Embedding" or not _cut_between_outputs(slot, piece.shape, value.axis, place.attributes):
                why = f"it is cut along its inputs by {value.why} before {place.node.op_type} '{label(place.node)}'"
                self._refuse(piece, why, place.node)
                self.consume(piece, f"{place.node.op_type} '{label(place.node)}'")
            else:
                self._use_traced(place, slot, piece, span, value.axis)

    def _use_traced(
        self, place: Place, slot: Slot, value: Traced, rows: tuple[int, int] | None = None, axis: int = 0
    ) -> None:
        node = place.node
        found = _arranged(place, slot, value)
        if isinstance(found, str):
            if slot.family != "Embedding" or not _is_table_of_indices(value):
                self._refuse(value, found, node)
            self.consume(value, f"{node.op_type} '{label(node)}'")
            return
        layout, arrangement, quantization = found
        use = Use(
            node, node.op_type, label(node), place.scope, slot.index, slot.family, value.tensor.shape,
            layout, arrangement, value.crossed, quantization, value.steps, value.shuffles, rows,
            None if rows is None else axis + len(arrangement.shape) - len(value.shape),
        )  # fmt: skip
        self._add(value.tensor, use)

    def _add(self, tensor: StoredTensor, use: Use) -> None:
        """Record a use, but for a function that is called again and reads the same numbers."""
        seen = self._seen.setdefault(tensor, set())
        if use.key not in seen:
            seen.add(use.key)
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
        """What can be said when all uses are known, those of other names of the same bytes among them."""
        for tensor, reason, by in self._later:
            weight = self.weight(tensor)
            if any(use.family != "Embedding" for use in weight.all_uses):
                weight.refusal = weight.refusal or reason
                weight.refused_by = weight.refused_by or by
        for weight in self._weights.values():
            # Integers have one zero: uses that read them with different zero points cannot both be served.
            zeros = [use.quantization.zero_point for use in weight.all_uses if use.quantization]
            if any(zero.shape != zeros[0].shape or (zero != zeros[0]).any() for zero in zeros[1:]):
                weight.refusal = weight.refusal or "its uses read it with different zero points"
        for weight, name in zip(self.weights, unique_names(self.weights)):
            weight.name = name

    def note_others(self, node: NodeProto, values: Sequence[Value], taken: set[int], results: Sequence[Value]) -> None:
        """Record who reads a tensor but not as a weight: everybody in whose result it is not followed any more."""
        if node.op_type in ("Shape", "Size"):
            return
        followed = {one.tensor for result in results for one in carried(result)}
        for index, value in enumerate(values):
            if index not in taken and any(one.tensor not in followed for one in carried(value)):
                self.consume(value, f"{node.op_type} '{label(node)}'")

    def consume(self, value: Value, by: str) -> None:
        for one in carried(value):
            if one.tensor.size <= 1 or one.tensor.kind not in WEIGHT_KINDS:
                continue
            weight = self.weight(one.tensor)
            weight.others.append(by)
            if one.masks:
                weight.masked_readers.append(one.masks)
            else:
                weight.bare.append(by)


def _rows(value: Part | Joined) -> list[tuple[int, int]]:
    """For each stored tensor in a value that is cut or joined, the rows it has there."""
    if isinstance(value, Part):
        return [(value.start, value.stop)]
    ends = np.cumsum([piece.shape[value.axis] for piece in value.pieces]).tolist()
    return list(zip([0, *ends], ends))


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
    able = [tensor for tensor in value.tensors if tensor.kind in WEIGHT_KINDS and tensor.size > 1]
    largest = max((tensor.size for tensor in able), default=0)
    # A bias or a scale has one axis and is small; a weight that was stored flat is about as large as any beside it.
    found = [tensor for tensor in able if len(tensor.shape) >= 2 or 4 * tensor.size >= largest]
    return sorted(found, key=lambda tensor: tensor.name)


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
    if isinstance(quantization, str):
        return quantization
    zero = _zero_there(place, slot, value, arrangement)
    if isinstance(zero, str):
        return zero
    where = f"{place.node.op_type} '{label(place.node)}'"
    return _lost_zero(value, layout, quantization, zero, where) or (layout, arrangement, quantization)


def _lost_zero(value: Traced, layout: Layout, quantization: Quantization | None, zero: Array, where: str) -> str:
    """Why the stored zero, or what a mask leaves, does not reach the operator as its zero; '' where it does."""
    atoms = layout.atoms
    wanted = spread(zero, value.layout.atoms, atoms)
    stored = np.zeros((1,) * len(atoms), np.float32)
    if quantization is not None:
        stored = spread(quantization.zero_point, quantization.atoms, atoms)
    if not np.asarray(arrives(value.steps, stored, atoms) == wanted).all():
        return f"a zero that is stored in it does not arrive as a zero at {where}: {_told(value)}"
    for at, step in enumerate(value.steps):
        if isinstance(step, Mask):
            left = np.zeros((1,) * len(atoms), np.float32)
            if not np.asarray(arrives(value.steps[at + 1 :], left, atoms) == wanted).all():
                return f"what its mask takes out does not arrive as a zero at {where}: {_told(value)}"
    return ""


def _told(value: Traced) -> str:
    return f"look at the scales and zero points of {' and '.join(value.crossed) or 'its operator'}"


def _zero_there(place: Place, slot: Slot, value: Traced, arrangement: Arrangement) -> Array | str:
    """What the operator itself takes for zero, over the atoms of the value."""
    if value.kind not in (*PACKED_KINDS, "int8", "uint8", "int16", "uint16", "int32"):
        return np.zeros(1)
    if slot.family == "Embedding":
        found = _zeros_of_readers(place)
        return found if isinstance(found, str) else found.reshape(-1)[:1]
    if slot.zero_point is None or place.given(slot.zero_point) is None:
        return np.zeros(1)
    zeros = small_array(place.value(slot.zero_point))
    placed = None if zeros is None else value.beside(zeros, _output_axis(slot, value, arrangement))
    if placed is not None:
        return placed
    if zeros is None or not zeros.size or (zeros != zeros.reshape(-1)[0]).any():
        return "its zero point does not follow one of its axes"
    return zeros.reshape(-1)[:1]


def _quantization(place: Place, slot: Slot, value: Traced, arrangement: Arrangement) -> Quantization | str | None:
    if value.tensor.kind in FLOAT_KINDS:
        return None
    if slot.family == "Embedding":
        return _from_readers(place, value)
    return _from_inputs(place, slot, value, _output_axis(slot, value, arrangement))


def _output_axis(slot: Slot, value: Traced, arrangement: Arrangement) -> int:
    """Scales and zero points run along the outputs; a convolution's are its first axis, before it is cut into groups,
    and a single row of a recurrent layer's is one number for each direction."""
    along_first = slot.family == "Recurrent" or len(arrangement.shape) != len(value.shape)
    return 0 if along_first else arrangement.out[0]


def _from_readers(place: Place, value: Traced) -> Quantization | str:
    """A table of integers is dequantised behind the look-up."""
    zero = _zeros_of_readers(place)
    if isinstance(zero, str):
        return zero
    scale = next((scale for scale, _ in _dequantized(place) if scale is not None and scale.size == 1), None)
    scale = np.ones(1, np.float32) if scale is None else scale
    found = quantized(value, scale, zero.astype(value.tensor.dtype), 0)
    return found or "its zero point is not known where it is looked up"


def _zeros_of_readers(place: Place) -> Array | str:
    """The zero of the numbers that are looked up, which all who read them have to share."""
    found = _dequantized(place)
    zeros = [zero for _, zero in found]
    if not found or not any(scale is not None for scale, _ in found) or any(zero is None for zero in zeros):
        return "its zero point is not known where it is looked up"
    known = [zero.reshape(-1)[:1] for zero in zeros if zero is not None]
    if any(zero[0] != known[0][0] for zero in known):
        return "it is looked up once and read with different zero points"
    return known[0]


def _dequantized(place: Place) -> list[tuple[Array | None, Array | None]]:
    """Scale and zero point of everybody who reads the result; a cast to floats takes them as they are, and who else
    reads bare integers has no scale, and the zero 0."""
    made, found = place.node.output[0] if place.node.output else "", list[tuple["Array | None", "Array | None"]]()
    for node in place.readers(made) if made else []:
        if node.op_type in ("Shape", "Size"):
            continue
        if node.op_type == "Cast" and kind_of(Attributes(node, {}).integer("to")) in FLOAT_KINDS:
            found.append((np.ones(1, np.float32), np.zeros(1)))
            continue
        if made not in node.input or not (node.op_type == "DequantizeLinear" or node.op_type.startswith("QLinear")):
            found.append((None, np.zeros(1)))
            continue
        at = list(node.input).index(made)
        names = [*node.input, "", ""][at + 1 : at + 3]
        scale, zero = (small_array(place.peek(name)) if name else None for name in names)
        zero = np.zeros(1) if zero is None and not names[1] else zero
        one = scale is not None and zero is not None and scale.size == zero.size == 1
        found.append((scale, zero) if one else (scale, None))
    return found


def _is_table_of_indices(value: Traced) -> bool:
    return len(value.shape) < 2 or value.tensor.kind not in WEIGHT_KINDS


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
