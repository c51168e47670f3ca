"""The layers of a model that can be calibrated: nodes with weights, what they sum up, and the bias that they add.

1. A layer is a node of the main graph with a planned weight, or several nodes that read one tensor: it has the
   statistics of all its uses. A recurrent layer has its input and hidden weights side by side.
2. A weight that is read inside of a body or function, along different axes, through masks or as integers has no layer,
   and a reason in its place.
3. The bias is a stored vector that nothing else reads, added by the node or by the Add behind it; or the mean of the
   BatchNormalization behind it, which takes off what a bias would add.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import NodeProto

from onnxsparse.calibration.reductions import Reduction, reduction_of
from onnxsparse.calibration.streams import Constants, Cut
from onnxsparse.graph.attributes import Attributes
from onnxsparse.graph.edit import reads
from onnxsparse.graph.elementwise import Cast, Scale
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import FLOAT_KINDS, StoredTensor
from onnxsparse.graph.weights import Use, Weight
from onnxsparse.math.values import Array
from onnxsparse.planning.plan import Plan, PlanRow
from onnxsparse.solvers.choosing import Part

OWN_BIAS = {"Conv": 2, "ConvTranspose": 2, "FusedConv": 2, "Gemm": 2, "FusedGemm": 2, "Attention": 2}
RECURRENT = ("LSTM", "GRU", "RNN")


@dataclass(frozen=True, eq=False)
class WeightPart:
    """One weight of a layer: where it lies in the layer's matrix, and how it is stored."""

    weight: Weight
    use: Use
    part: Part
    row: PlanRow | None

    def matrix(self) -> Array:
        """Its numbers as the node sees them, as (outputs of all groups, columns), in double precision."""
        flat = self.weight.tensor.read()
        if self.weight.tensor.kind == "bfloat16":
            flat = (flat.astype(np.uint32) << 16).view(np.float32)
        return self.part.as_rows(self.use.matrix(flat.astype(np.float64) * self._factor(flat.size)))

    def stored(self, rows: Array) -> Array:
        """Columns of the layer's matrix as the file has them: flat, in stored order, in double precision."""
        axes = rows.reshape(self._turned).transpose(0, 1, 3, 2)
        flat = self.use.restore(np.ascontiguousarray(axes))
        return np.asarray(flat / self._factor(flat.size))

    def kept(self, mask: Array) -> Array:
        """A mask of its columns, flat in stored order."""
        return self.use.restore(np.ascontiguousarray(mask.reshape(self._turned).transpose(0, 1, 3, 2)))

    @property
    def _turned(self) -> tuple[int, int, int, int]:
        group, out, inputs, taps = self.part.shape4
        return group, out, taps, inputs

    def _factor(self, size: int) -> Array:
        """What the graph multiplies each stored number with before the node sees it."""
        factor = np.ones(size)
        for step in self.use.steps:
            factor = step.apply(factor, self.use.layout.atoms) if isinstance(step, Scale) else factor
        return factor.reshape(-1)


@dataclass(frozen=True, eq=False)
class Bias:
    """A stored vector that moves with the outputs of a layer: by `sign` times what each output's bias does."""

    tensor: StoredTensor
    name: str
    sign: float = 1.0
    places: Array | None = None
    """Where the outputs lie in it, where it holds more."""

    def moved(self, numbers: Array, by: Array) -> Array:
        flat = numbers.astype(np.float64).reshape(-1)
        if self.places is None:
            flat = flat + self.sign * by
        else:
            flat[self.places] += self.sign * by
        return flat.reshape(numbers.shape)


@dataclass(frozen=True, eq=False)
class CalibratedLayer:
    """One layer: its weights, what each of its nodes sums up, and its bias."""

    name: str
    parts: Sequence[WeightPart]
    reductions: Sequence[Reduction]
    places: Sequence[int]
    """Where each of its nodes stands among the nodes that run."""
    bias: Bias | None = None

    @property
    def place(self) -> int:
        """Where it is calibrated: at the first of its nodes."""
        return min(self.places)

    @property
    def shape(self) -> tuple[int, int]:
        """Of its matrix."""
        first = self.parts[0].part
        return first.shape4[0] * first.shape4[1], max(one.part.columns.stop for one in self.parts)

    def matrix(self) -> Array:
        return np.concatenate([one.matrix() for one in self.parts], axis=1)

    def numbers(self, rows: Array, bias: Array, before: Mapping[str, Array]) -> dict[str, Array]:
        """Its stored tensors, by name and in their types, when its matrix is `rows` and something is added to each
        output; `before` are tensors that changed already."""
        tensors = [one.weight.tensor for one in self.parts]
        stored = [one.stored(rows[:, one.part.columns]) for one in self.parts]
        found = {held.name: in_kind(own.reshape(held.shape), held.kind) for held, own in zip(tensors, stored)}
        if self.bias is not None:
            held = self.bias.tensor
            old = before.get(held.name, held.read().reshape(held.shape))
            found[held.name] = in_kind(self.bias.moved(old, bias), held.kind)
        return found


def in_kind(array: Array, kind: str) -> Array:
    """Numbers in the type that a tensor stores; those of bfloat16 as their bits, rounded to nearest, ties to even."""
    if kind != "bfloat16":
        return np.ascontiguousarray(array.astype(kind))
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded: Array = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded


@dataclass(frozen=True, eq=False)
class Layers:
    """The layers of a model in the order of its graph, and why the other planned weights have none."""

    layers: Sequence[CalibratedLayer]
    reasons: Mapping[str, str]


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
    return Layers(sorted(found, key=lambda layer: layer.place), reasons)


@dataclass
class _Search:
    model: Model
    plan: Plan
    cut: Cut
    rows: dict[Weight, PlanRow] = field(init=False)
    uses: dict[str, list[tuple[Weight, Use]]] = field(init=False)
    readers: Counter[str] = field(init=False)
    tensors: dict[str, StoredTensor] = field(init=False)
    stored: Constants = field(init=False)

    def __post_init__(self) -> None:
        self.rows = {row.weight: row for row in self.plan.planned}
        self.uses, self.stored = {}, Constants(self.cut)
        for weight in self.model.weights:
            for use in weight.uses:
                if not use.scope and self._known(use) is not None:
                    self.uses.setdefault(_first(use.source), []).append((weight, use))
        graph = self.model.proto.graph
        self.readers = Counter(name for node in graph.node for name in reads(node))
        self.readers.update(value.name for value in graph.output)
        homes = self.model.flow.stores.homes
        self.tensors = {tensor.name: tensor for tensor, home in homes.items() if not home.scope}

    def _known(self, use: Use) -> int | None:
        return self.cut.place.get(_first(use.source))

    def nodes(self, weight: Weight) -> tuple[str, ...]:
        return tuple(dict.fromkeys(_first(use.source) for use in weight.uses))

    def obstacle(self, weight: Weight) -> str:
        """Why a planned weight has no layer; nothing where it may have one."""
        if any(use.scope or self._known(use) is None for use in weight.uses):
            return "it is read inside of a body or function, which calibration does not look into"
        if weight.tensor.kind not in FLOAT_KINDS:
            return f"it is stored as {weight.tensor.kind}"
        if weight.twins:
            return "its bytes have a second name"
        first = weight.uses[0]
        if any(use.matrix_key() != first.matrix_key() for use in weight.uses):
            return "its uses read it along different axes"
        if any(not isinstance(step, (Scale, Cast)) for use in weight.uses for step in use.steps):
            return "the graph changes its numbers before they are used"
        return ""

    def layer(self, names: tuple[str, ...]) -> CalibratedLayer | str:
        own = [self.uses[name] for name in names]
        if len(names) > 1 and any(len(uses) > 1 for uses in own):
            return "several recurrent layers read it"
        found = [reduction_of([use for _, use in uses], self.stored) for uses in own]
        reason = next((one for one in found if isinstance(one, str)), "")
        if reason:
            return reason
        reductions = [one for one in found if not isinstance(one, str)]
        parts, start = [], 0
        for weight, use in own[0]:
            if weight not in self.rows and (problem := self.obstacle(weight)):
                return f"'{weight.name}', which the same node reads, cannot be looked at: {problem}"
            width = use.shape4[2] * use.shape4[3]
            row = self.rows.get(weight)
            part = Part(weight.name, slice(start, start + width), use.shape4, None if row is None else row.pattern)
            parts.append(WeightPart(weight, use, part, row))
            start += width
        bias = self._bias(own[0][0][1]) if len(names) == 1 else None
        places = [self.cut.place[name] for name in names]
        return CalibratedLayer(parts[0].use.node, parts, reductions, places, bias)

    # -- the bias

    def _bias(self, use: Use) -> Bias | None:
        node, outputs = use.source, use.shape4[0] * use.shape4[1]
        if node.op_type in RECURRENT:
            return self._recurrent_bias(node, use)
        slot = OWN_BIAS.get(node.op_type)
        if slot is not None and len(node.input) > slot and node.input[slot]:
            return self._vector(node.input[slot], outputs) if self._plain(node, use) else None
        readers = self._readers(node.output[0])
        if len(readers) != 1 or node.output[0] in self._outputs:
            return None
        if readers[0].op_type == "BatchNormalization" and node.op_type in ("Conv", "ConvTranspose"):
            return self._vector(readers[0].input[3], outputs, -1.0)
        if readers[0].op_type == "Add" and node.op_type == "MatMul" and use.slot == 1:
            other = next((name for name in readers[0].input if name != node.output[0]), "")
            return self._vector(other, outputs)
        return None

    def _plain(self, node: NodeProto, use: Use) -> bool:
        """Whether the bias is added as it is, one number for each output."""
        return node.op_type not in ("Gemm", "FusedGemm") or (
            Attributes(node, {}).number("beta", 1.0) == 1.0 and use.slot == 1
        )

    @property
    def _outputs(self) -> set[str]:
        return {value.name for value in self.model.proto.graph.output}

    def _readers(self, name: str) -> list[NodeProto]:
        return [node for node in self.cut.nodes if name in reads(node)]

    def _vector(self, name: str, outputs: int, sign: float = 1.0) -> Bias | None:
        """A stored vector of the main graph that nothing else reads."""
        tensor = self.tensors.get(name)
        if tensor is None or self.readers[name] != 1 or tensor.kind not in ("float32", "float16", "float64"):
            return None
        flat = tensor.size == outputs and tensor.shape[-1:] == (outputs,)
        return Bias(tensor, name, sign) if flat else None

    def _recurrent_bias(self, node: NodeProto, use: Use) -> Bias | None:
        """The input half of the biases: (directions, twice the gates)."""
        if len(node.input) <= 3 or not node.input[3]:
            return None
        tensor, (group, out, _, _) = self.tensors.get(node.input[3]), use.shape4
        if tensor is None or self.readers[node.input[3]] != 1 or tensor.shape != (group, 2 * out):
            return None
        places = np.arange(group * 2 * out).reshape(group, 2 * out)[:, :out].reshape(-1)
        return Bias(tensor, node.input[3], 1.0, places) if tensor.kind == "float32" else None


def _first(node: NodeProto) -> str:
    """The first output of a node that has a name."""
    return next((name for name in node.output if name), "")


__all__ = ["Bias", "CalibratedLayer", "Layers", "WeightPart", "in_kind", "layers_of"]
