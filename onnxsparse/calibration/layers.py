"""The layers of a model that can be calibrated: nodes with weights, what they sum up, and the bias that they add.

1. A layer is a node of the main graph with a planned weight, or several nodes that read one tensor: it has the
   statistics of all its uses. A recurrent layer has its input and hidden weights side by side.
2. A weight that is read inside of a body or function, along different axes or through masks has no layer, and a reason
   in its place.
3. Integers are looked at as what they stand for. Where their scale cannot grow the numbers of a layer stay as they are
   (`held`), and only its mask is chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from onnx import NodeProto

from onnxsparse.calibration.biases import Bias, Biases
from onnxsparse.calibration.reductions import Reduction, reduction_of
from onnxsparse.calibration.stored_numbers import Floats, Integers, Numbers, StoredNumbers
from onnxsparse.calibration.streams import Constants, Cut
from onnxsparse.graph.elementwise import Cast, Dequantize, Quantization, Scale, Step
from onnxsparse.graph.model import Model
from onnxsparse.graph.operators import slots_of
from onnxsparse.graph.storage import FLOAT_KINDS, PACKED_KINDS, StoredTensor
from onnxsparse.graph.weights import Use, Weight
from onnxsparse.math.values import Array
from onnxsparse.planning.plan import Plan, PlanRow
from onnxsparse.solvers.choosing import Part


@dataclass(frozen=True, eq=False)
class WeightPart:
    """One weight of a layer: where it lies in the layer's matrix, and how it is stored."""

    weight: Weight
    use: Use
    part: Part
    inputs: slice
    """Where its columns lie among the inputs of the node, which may read other weights as well."""
    row: PlanRow | None
    store: StoredNumbers

    def matrix(self, changed: Numbers) -> Array:
        """Its numbers as the node sees them, as (outputs of all groups, columns), in double precision."""
        flat = self.store.real(changed)
        return self.part.as_rows(self.use.matrix(flat * self._factor))

    def written(self, rows: Array, changed: Numbers) -> dict[str, Array]:
        """The tensors that store columns of the layer's matrix, by name."""
        axes = rows.reshape(self._turned).transpose(0, 1, 3, 2)
        flat = self.use.restore(np.ascontiguousarray(axes))
        factor = self._factor
        return self.store.written(np.divide(flat, factor, out=np.zeros_like(flat), where=factor != 0), changed)

    def kept(self, mask: Array) -> Array:
        """A mask of its columns, flat in stored order."""
        return self.use.restore(np.ascontiguousarray(mask.reshape(self._turned).transpose(0, 1, 3, 2)))

    @property
    def _turned(self) -> tuple[int, int, int, int]:
        group, out, inputs, taps = self.part.shape4
        return group, out, taps, inputs

    @property
    def _factor(self) -> Array:
        """What the graph multiplies each stored number with before the node sees it."""
        atoms = self.use.layout.atoms
        factor = np.ones(atoms)
        for step in self.use.steps:
            factor = step.apply(factor, atoms) if isinstance(step, Scale) else factor
        return factor.reshape(-1)


@dataclass(frozen=True, eq=False)
class CalibratedLayer:
    """One layer: its weights, what each of its nodes sums up, and its bias."""

    name: str
    parts: Sequence[WeightPart]
    reductions: Sequence[Reduction]
    places: Sequence[int]
    """Where each of its nodes stands among the nodes that run."""
    bias: Bias | None = None
    beside: Sequence[WeightPart] = ()
    """Weights of the same node that are not pruned: they stay as they are, and its own make up for nothing else."""

    @property
    def called(self) -> str:
        """What messages call it: its weights, as the rows of a report do; the name of its node stands nowhere else."""
        return " and ".join(one.weight.name for one in self.parts if one.row)

    @property
    def place(self) -> int:
        """Where it is calibrated: at the first of its nodes."""
        return min(self.places)

    @property
    def shape(self) -> tuple[int, int]:
        """Of its matrix."""
        first = self.parts[0].part
        return first.shape4[0] * first.shape4[1], max(one.part.columns.stop for one in self.parts)

    def matrix(self, changed: Numbers | None = None) -> Array:
        return np.concatenate([one.matrix(changed or {}) for one in self.parts], axis=1)

    def whole(self) -> tuple[Array, Array]:
        """The matrix of the node, with the weights beside, and which of its columns are those of its own."""
        ordered = sorted([*self.parts, *self.beside], key=lambda one: one.inputs.start)
        own = [np.full(one.inputs.stop - one.inputs.start, one.row is not None) for one in ordered]
        return np.concatenate([one.matrix({}) for one in ordered], axis=1), np.concatenate(own)

    @property
    def held(self) -> str:
        """Why its numbers cannot be refitted; nothing where they can."""
        return next((one.store.held for one in self.parts if one.store.held), "")

    def numbers(self, rows: Array, bias: Array, changed: Numbers) -> dict[str, Array]:
        """Its stored tensors, by name and in their types, when its matrix is `rows` and something is added to each
        output; `changed` are tensors that did already."""
        found = dict[str, Array]()
        for one in self.parts:
            found.update(one.written(rows[:, one.part.columns], changed))
        if self.bias is not None:
            found.update(self.bias.moved(bias, _Over(found, changed)))
        return found


@dataclass(frozen=True, eq=False)
class _Over(Mapping[str, Array]):
    """Numbers over others, which may lie on the disk: none is read that is not asked for."""

    first: Numbers
    then: Numbers

    def __getitem__(self, name: str) -> Array:
        return self.first[name] if name in self.first else self.then[name]

    def __contains__(self, name: object) -> bool:
        return name in self.first or name in self.then

    def __iter__(self) -> Iterator[str]:
        return iter({**dict.fromkeys(self.first), **dict.fromkeys(self.then)})

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(frozen=True, eq=False)
class Layers:
    """The layers of a model in the order of its graph, and why the other planned weights have none."""

    layers: Sequence[CalibratedLayer]
    reasons: Mapping[str, str]
    model: Model


def layers_of(model: Model, plan: Plan, cut: Cut) -> Layers:
    """The layers of the weights that a plan prunes."""
    search = _Search(model, plan, cut)
    reasons, groups = dict[str, str](), dict[tuple[str, ...], list[PlanRow]]()
    for row in plan.planned:
        reason = search.obstacle(row.weight)
        if reason:
            reasons[row.name] = reason
        else:
            groups.setdefault(search.nodes(row.weight), []).append(row)
    found = []
    for names, rows in groups.items():
        layer = search.layer(names)
        if isinstance(layer, str):
            reasons.update((row.name, layer) for row in rows)
        else:
            found.append(layer)
    return Layers(sorted(found, key=lambda layer: layer.place), reasons, model)


@dataclass
class _Search:
    model: Model
    plan: Plan
    cut: Cut
    rows: dict[Weight, PlanRow] = field(init=False)
    uses: dict[str, list[tuple[Weight, Use]]] = field(init=False)
    tensors: dict[str, StoredTensor] = field(init=False)
    stored: Constants = field(init=False)
    biases: Biases = field(init=False)

    def __post_init__(self) -> None:
        self.rows = {row.weight: row for row in self.plan.planned}
        self.uses, self.stored = {}, Constants(self.cut)
        for weight in self.model.weights:
            for use in weight.uses:
                if not use.scope and self._known(use) is not None:
                    self.uses.setdefault(_first(use.source), []).append((weight, use))
        self.tensors = self.cut.tensors
        self.biases = Biases(self.cut, self.tensors)

    def _known(self, use: Use) -> int | None:
        return self.cut.place.get(_first(use.source))

    def nodes(self, weight: Weight) -> tuple[str, ...]:
        return tuple(dict.fromkeys(_first(use.source) for use in weight.uses))

    def obstacle(self, weight: Weight) -> str:
        """Why a planned weight has no layer; nothing where it may have one."""
        if any(use.scope for use in weight.uses):
            return "it is read inside of the body of an If, Loop or Scan, which calibration does not look into"
        if any(self._known(use) is None for use in weight.uses):
            return "what its node gives is the same for all samples"
        if weight.tensor.kind not in FLOAT_KINDS and (weight.tensor.kind in PACKED_KINDS or not _one_view(weight)):
            return f"it is stored as {weight.tensor.kind}"
        if weight.twins:
            return "its bytes have a second name"
        first = weight.uses[0]
        if any(use.matrix_key() != first.matrix_key() for use in weight.uses):
            return "its uses read it along different axes"
        if any(not isinstance(step, (Scale, Cast)) for use in weight.uses for step in _steps(weight, use)):
            return "the graph changes its numbers before they are used"
        return ""

    def layer(self, names: tuple[str, ...]) -> CalibratedLayer | str:
        own = [self.uses[name] for name in names]
        if len(names) > 1 and any(len(uses) > 1 for uses in own):
            return "several recurrent layers read it"
        known = [reduction_of([use for _, use in uses], self.stored) for uses in own]
        reason = next((one for one in known if isinstance(one, str)), "")
        if reason:
            return reason
        reductions = [one for one in known if not isinstance(one, str)]
        parts, beside, start, free = list[WeightPart](), list[WeightPart](), 0, 0
        for weight, use in own[0]:
            if weight not in self.rows and (problem := self.obstacle(weight)):
                return f"'{weight.name}', which the same node reads, cannot be looked at: {problem}"
            if weight in self.rows and self.nodes(weight) != names:
                return f"other recurrent layers read '{weight.name}', which the same node reads, too"
            width = use.shape4[2] * use.shape4[3]
            row = self.rows.get(weight)
            part = Part(weight.name, slice(free, free + width), use.shape4, None if row is None else row.pattern)
            found = WeightPart(weight, use, part, slice(start, start + width), row, self._store(weight))
            (beside if row is None else parts).append(found)
            start, free = start + width, free if row is None else free + width
        if any(weight.others for weight, _ in own[0]) and not _whole(reductions):
            return "some of its outputs go to other operators alone"
        bias = self.biases.of(own[0][0][1], parts[0].store) if len(names) == 1 else None
        places = [self.cut.place[name] for name in names]
        layer = CalibratedLayer(parts[0].use.node, parts, reductions, places, bias, beside)
        return self._with_scales(layer)

    # -- how numbers are stored

    def _store(self, weight: Weight) -> StoredNumbers:
        found = weight.uses[0].quantization
        if found is None:
            return Floats(weight.tensor)
        scale = self._scale(weight, found)
        return Integers(weight.tensor, found, *((None, scale) if isinstance(scale, str) else (scale, "")))

    def _scale(self, weight: Weight, found: Quantization) -> StoredTensor | str:
        """The tensor of the scale of a weight, or why that cannot grow."""
        names = {self._scale_name(weight, use) for use in weight.uses}
        tensor = self.tensors.get(next(iter(names))) if len(names) == 1 else None
        if tensor is None or tensor.kind not in FLOAT_KINDS or tensor.size != found.scale.size:
            return "its integers have no scale of their own that could grow with it"
        if self.cut.readers[tensor.name] != len(self._scaled(weight, tensor.name)):
            return "other numbers have the same scale, so that it cannot grow with it"
        return tensor

    def _scale_name(self, weight: Weight, use: Use) -> str:
        nodes = [node for node in self.model.proto.graph.node if weight.tensor.name in node.input]
        made = next((node for node in nodes if node.op_type == "DequantizeLinear"), None)
        if made is not None:
            return str(made.input[1])
        slots = slots_of(use.source.domain.replace("ai.onnx", ""), use.source.op_type)
        index = next((slot.scale for slot in slots if slot.index == use.slot), None)
        return str(use.source.input[index]) if index is not None else ""

    def _scaled(self, weight: Weight, scale: str) -> list[NodeProto]:
        """The nodes that read the weight with this scale."""
        nodes = self.model.proto.graph.node
        return [node for node in nodes if weight.tensor.name in node.input and scale in node.input]

    def _with_scales(self, layer: CalibratedLayer) -> CalibratedLayer:
        """The layer, its integers held where those of its bias cannot follow."""
        parts = []
        for one in layer.parts:
            store = one.store
            if isinstance(store, Integers) and not store.held and self._stays_behind(layer, one.use, store):
                store = replace(store, scale=None, why_held="its bias has a scale that cannot grow with it")
            parts.append(replace(one, store=store))
        return replace(layer, parts=parts)

    def _stays_behind(self, layer: CalibratedLayer, use: Use, store: Integers) -> bool:
        return self.biases.stays_behind(use, store, layer.bias)


def _steps(weight: Weight, use: Use) -> Sequence[Step]:
    """What happens to the numbers of a weight; integers as what they stand for."""
    integers = weight.tensor.kind not in FLOAT_KINDS and use.steps and isinstance(use.steps[0], Dequantize)
    return use.steps[1:] if integers else use.steps


def _one_view(weight: Weight) -> bool:
    """Whether all its uses read its integers with the same scales and zero points."""
    return len({None if use.quantization is None else use.quantization.key for use in weight.uses} | {None}) == 2


def _whole(reductions: Sequence[Reduction]) -> bool:
    """Whether the nodes compute all rows of the matrix of the layer."""
    group, out, _, _ = reductions[0].uses[0].shape4
    return len({row for one in reductions for rows in one.outputs for row in rows.tolist()}) == group * out


def _first(node: NodeProto) -> str:
    """The first output of a node that has a name."""
    return next((name for name in node.output if name), "")


__all__ = ["CalibratedLayer", "Layers", "WeightPart", "layers_of"]
