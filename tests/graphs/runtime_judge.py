"""What an operator really gets, told by the runtime: a judge that knows nothing of how this project follows a weight.

Functions are inlined by onnx, every stored tensor becomes an input of the model, and the number that each operator
takes as its weight becomes an output of it; those of bodies come out once for every step. Then:

1. Which elements at an operator come from a stored tensor is found by giving the tensor other numbers.
2. Whether a pattern holds there is counted in the numbers themselves, along the axis that the operator sums over.
3. What is zero there is what the operator takes for zero: its zero point, or that of the node behind a table.

Nothing here imports the package. Graphs must not use what an operator makes as the weight of another one, and say by
the `doc_string` of a node ("weight slots 1") which of its inputs is a weight; `random_ends` does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnxruntime
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from .case import Array

onnxruntime.set_default_logger_severity(4)
GIVEN = "wms"  # how the names of weights, masks and scales begin
ROW = "given_row"  # -1 as a shape; an input, so that no shape is known beforehand that another branch contradicts
EMPTY = "given_nothing"  # zeros as a shape, for the same reason
ZERO_INPUT = {"MatMulInteger": {0: 2, 1: 3}, "ConvInteger": {1: 3}, "QLinearConv": {3: 5}, "QLinearMatMul": {3: 5}}


@dataclasses.dataclass(frozen=True)
class Slot:
    """One weight input of one node: the names of the outputs that show its numbers and its zero points."""

    op: str
    node: str
    index: int
    shown: str
    zeros: tuple[str, ...]
    attributes: Mapping[str, Any]
    table: bool


@dataclasses.dataclass
class Seen:
    """The numbers of one run: the model's own outputs, and for every slot what it got."""

    outputs: list[Any]
    shown: dict[str, list[Array]]


def session(model: ModelProto) -> Any:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def outputs_of(model: ModelProto, feeds: Sequence[Mapping[str, Array]]) -> list[list[Any]]:
    made = session(upgraded(model))
    return [made.run(None, dict(each)) for each in feeds]


class Judge:
    """A model whose stored tensors can be given and whose operators' weights can be seen."""

    def __init__(self, model: ModelProto, feeds: Sequence[Mapping[str, Array]]) -> None:
        self.feeds = feeds
        self.stored = {name: tensor for name, tensor in stored_of(model).items() if name[0] in GIVEN}
        shown = _Shown(model, self.stored)
        self._constant = {ROW: np.array([-1]), **{f"{EMPTY}{rank}": np.zeros(rank, np.int64) for rank in shown.empty}}
        self.slots, self._shapes, self.names = shown.slots, shown.shapes, [one.name for one in model.graph.output]
        self._flat = list(shown.model.graph.node)
        self._session = session(shown.model)

    def shown_by(self, names: Sequence[str]) -> list[int]:
        """The outputs to which a way leads from a stored tensor past every operator that takes it as a weight.

        Ways through bodies are left out: they may end inside at an operator.
        """
        reached = {f"given_{name}" for name in names}
        for node in self._flat:
            bodies = any(one.type == AttributeProto.GRAPH for one in node.attribute)
            if not bodies and not node.doc_string.startswith("weight slots") and reached & set(node.input):
                reached |= set(node.output)
        return [at for at, name in enumerate(self.names) if name in reached]

    def values(self, model: ModelProto) -> dict[str, Array]:
        """The stored numbers of a model of the same names, as they can be given to `run`."""
        found = stored_of(model)
        return {name: array_of(found[name]) for name in self.stored if name in found}

    def run(self, values: Mapping[str, Array]) -> list[Seen]:
        seen = []
        for each in self.feeds:
            given = {**each, **self._constant, **{f"given_{name}": array for name, array in values.items()}}
            everything = self._session.run(None, given)
            own, rest = everything[: len(self.names)], everything[len(self.names) :]
            shown = dict(zip([one.name for one in self._session.get_outputs()[len(self.names) :]], rest))
            parts = {}
            for slot in self.slots:
                for name in (slot.shown, *slot.zeros):
                    parts[name] = _steps(shown[name], shown[self._shapes[name]])
            seen.append(Seen(own, parts))
        return seen

    def reached(self, values: Mapping[str, Array], names: Sequence[str]) -> list[Reached]:
        """For every run which elements at every slot depend on some stored tensors."""
        before = self.run(values)
        found = [Reached({}) for _ in before]
        for turn in range(3):
            others = {name: _other(values[name], turn) for name in names}
            for whole, old, new in zip(found, before, self.run({**values, **others})):
                for slot in self.slots:
                    parts = [_differs(a, b) for a, b in zip(old.shown[slot.shown], new.shown[slot.shown])]
                    known = whole.elements.get(slot.shown)
                    whole.elements[slot.shown] = parts if known is None else [a | b for a, b in zip(known, parts)]
        return found


@dataclasses.dataclass
class Reached:
    """By the name of what a slot shows, for every step: True where an element depends on the tensors."""

    elements: dict[str, list[Array]]


def _other(values: Array, turn: int) -> Array:
    """Other numbers of the same type, all different from the ones that are there."""
    drawn = np.random.default_rng([turn, values.size])
    if values.dtype == bool:
        return ~values if turn == 0 else drawn.random(values.shape) < 0.5
    if values.dtype.kind in "iu":
        information = np.iinfo(values.dtype)
        low, high = max(information.min, -120), min(information.max, 250)
        return drawn.integers(low, high, values.shape).astype(values.dtype)
    if np.array_equal(values, np.round(values)):
        return drawn.integers(-120, 120, values.shape).astype(values.dtype)
    return drawn.uniform(-3.5, 3.5, values.shape).astype(values.dtype)


def _differs(first: Array, second: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return np.asarray((first != second) & ~((first != first) & (second != second)))


def same(first: Any, second: Any) -> bool:
    """Equal bit for bit, up to the sign of zero; NaN is NaN."""
    return first.shape == second.shape and first.dtype == second.dtype and not _differs(first, second).any()


def close(first: Any, second: Any) -> bool:
    """Equal up to the order of a sum: 1e-6 of the largest number there is."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if first.dtype.kind not in "f":
        return same(first, second)
    finite = np.isfinite(first)
    if not np.array_equal(finite, np.isfinite(second)) or not same(first[~finite], second[~finite]):
        return False
    scale = float(np.abs(first[finite]).max(initial=0.0))
    return bool((np.abs(first[finite] - second[finite]) <= 2e-6 * scale).all())


def _steps(rows: Array, shapes: Array) -> list[Array]:
    """One array for every step of the loops around a slot; none for a branch that was not taken."""
    if rows.size == 0:
        return []
    shapes = shapes.reshape(int(np.prod(shapes.shape[:-1])), shapes.shape[-1])
    return [row.reshape(shape) for row, shape in zip(rows.reshape(len(shapes), -1), shapes)]


# -- stored tensors


def every_graph(model: ModelProto) -> Iterator[Any]:
    """The model's graph, its functions and all their bodies."""
    waiting: list[Any] = [model.graph, *model.functions]
    while waiting:
        each = waiting.pop()
        yield each
        for node in each.node:
            waiting += [attribute.g for attribute in node.attribute if attribute.type == AttributeProto.GRAPH]


def stored_of(model: ModelProto) -> dict[str, TensorProto]:
    """Initializers and Constant nodes by name; the names of these graphs are unique."""
    found = {}
    for each in every_graph(model):
        for tensor in getattr(each, "initializer", ()):
            found[tensor.name] = tensor
        for node in each.node:
            for one in node.attribute:
                if node.op_type == "Constant" and one.name == "value":
                    found[node.output[0]] = one.t
    return found


def array_of(tensor: TensorProto) -> Array:
    if tensor.data_type == TensorProto.BFLOAT16:
        return np.asarray(numpy_helper.to_array(tensor)).astype(np.float32)
    return numpy_helper.to_array(tensor)


# -- the model that shows


class _Shown:
    """The model with functions inlined, stored tensors given from outside, and slots shown."""

    def __init__(self, model: ModelProto, stored: Mapping[str, TensorProto]) -> None:
        self.slots: list[Slot] = []
        copied = ModelProto()
        copied.CopyFrom(upgraded(model))
        self.model = inlined(copied)
        self._stored = stored
        self._count = 0
        self._kinds: dict[str, tuple[int, int]] = {}
        self._old = any(not one.domain and one.version < 9 for one in model.opset_import)
        self.shapes: dict[str, str] = {}
        self.empty: set[int] = set()
        shown = self._graph(self.model.graph)
        self.model.graph.output.extend(_untyped(name) for name in shown)
        del self.model.graph.value_info[:]
        self._inputs()

    def _inputs(self) -> None:
        for rank in self.empty:
            entry = helper.make_tensor_value_info(f"{EMPTY}{rank}", TensorProto.INT64, [rank])
            self.model.graph.input.append(entry)
        self.model.graph.input.append(helper.make_tensor_value_info(ROW, TensorProto.INT64, [1]))
        for name, tensor in self._stored.items():
            kind = TensorProto.FLOAT if tensor.data_type == TensorProto.BFLOAT16 else tensor.data_type
            self.model.graph.input.append(helper.make_tensor_value_info(f"given_{name}", kind, tensor.dims))

    def _graph(self, graph: GraphProto) -> list[str]:
        """Show the slots of a graph and of its bodies; returns the names that have to leave it."""
        nodes, late, shown = self._given(graph), [], []  # what is shown may be made behind the node that takes it
        for node in list(graph.node):
            if node.op_type == "Constant" and node.doc_string.startswith("stored "):
                name = node.doc_string.split()[1]
                if name in self._stored:
                    nodes.append(self._identity(name, node.output[0]))
                    continue
            shown += self._bodies(node)
            nodes.append(node)
            shown += self._slots(node, late, graph)
        del graph.node[:]
        graph.node.extend([*nodes, *late])
        return shown

    def _given(self, graph: GraphProto) -> list[NodeProto]:
        taken = [one for one in graph.initializer if one.name in self._stored]
        for one in taken:
            graph.initializer.remove(one)
        inputs = [one for one in graph.input if one.name not in {other.name for other in taken}]
        if taken and len(inputs) < len(graph.input):
            del graph.input[:]
            graph.input.extend(inputs)
        return [self._identity(one.name, one.name) for one in taken]

    def _identity(self, name: str, made: str) -> NodeProto:
        if self._stored[name].data_type == TensorProto.BFLOAT16:
            return helper.make_node("Cast", [f"given_{name}"], [made], to=TensorProto.BFLOAT16)
        return helper.make_node("Identity", [f"given_{name}"], [made])

    def _bodies(self, node: NodeProto) -> list[str]:
        bodies = [attribute.g for attribute in node.attribute if attribute.type == AttributeProto.GRAPH]
        if not bodies:
            return []
        shown = [self._graph(body) for body in bodies]
        outs: list[str] = []
        for at, names in enumerate(shown):
            for name in names:
                for other, body in enumerate(bodies):
                    body.output.append(self._free(name if other == at else self._empty(body, name)))
                outs.append(self._name())
        more = 0 if node.op_type == "If" else 2 if node.op_type == "Scan" and self._old else 1
        self._rename([name for names in shown for name in names], outs, more)
        node.output.extend(outs)
        return outs

    def _empty(self, body: GraphProto, like: str) -> str:
        """The branch that was not taken shows nothing."""
        nothing, name = self._name(), self._name()
        kind, rank = self._kinds[like]
        body.initializer.append(helper.make_tensor(nothing, kind, [], [0]))
        body.node.append(helper.make_node("Expand", [nothing, f"{EMPTY}{rank}"], [name]))
        self.empty.add(rank)
        self._kinds[name] = (kind, rank)
        return name

    def _free(self, name: str) -> onnx.ValueInfoProto:
        """The type and the rank, which Scan wants to know; every size is free."""
        kind, rank = self._kinds[name]
        return helper.make_tensor_value_info(name, kind, [f"{name}_{axis}" for axis in range(rank)])

    def _rename(self, before: Sequence[str], after: Sequence[str], more: int) -> None:
        new = dict(zip(before, after))
        for old, name in new.items():
            self._kinds[name] = (self._kinds[old][0], self._kinds[old][1] + more)
        self.shapes = {new.get(made, made): new.get(shape, shape) for made, shape in self.shapes.items()}
        self.slots = [
            dataclasses.replace(
                slot,
                shown=new.get(slot.shown, slot.shown),
                zeros=tuple(new.get(name, name) for name in slot.zeros),
            )
            for slot in self.slots
        ]

    def _slots(self, node: NodeProto, nodes: list[NodeProto], graph: GraphProto) -> list[str]:
        if not node.doc_string.startswith("weight slots"):
            return []
        words = node.doc_string.split()[2:]
        return [name for word in words if word != "table" for name in self._slot(node, nodes, graph, int(word), words)]

    def _slot(
        self, node: NodeProto, nodes: list[NodeProto], graph: GraphProto, index: int, words: list[str]
    ) -> list[str]:
        integers = node.op_type in ZERO_INPUT or "table" in words
        kind = TensorProto.INT32 if integers else TensorProto.DOUBLE
        shown = [self._cast(nodes, node.input[index], kind)]
        zero = ZERO_INPUT.get(node.op_type, {}).get(index)
        behind = [node.input[zero]] if zero is not None and len(node.input) > zero and node.input[zero] else []
        if "table" in words:
            behind = _zero_points_behind(node.output[0], graph)
        zeros = [self._cast(nodes, name, TensorProto.INT32) for name in behind]
        attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        name = node.name or node.output[0]
        self.slots.append(Slot(node.op_type, name, index, shown[0], tuple(zeros), attributes, "table" in words))
        return [name for each in shown + zeros for name in (each, self.shapes[each])]

    def _cast(self, nodes: list[NodeProto], name: str, kind: int) -> str:
        """The numbers in one row, and beside them their shape: so a branch that is not taken can show nothing."""
        cast, made, sizes, shape = (self._name() for _ in range(4))
        nodes += [
            helper.make_node("Cast", [name], [cast], to=kind),
            helper.make_node("Shape", [name], [sizes]),
            helper.make_node("Reshape", [cast, ROW], [made]),
            helper.make_node("Reshape", [sizes, ROW], [shape]),
        ]
        self._kinds[made], self._kinds[shape] = (kind, 1), (TensorProto.INT64, 1)
        self.shapes[made] = shape
        return made

    def _name(self) -> str:
        self._count += 1
        return f"shown_{self._count}"


def _zero_points_behind(name: str, graph: GraphProto) -> list[str]:
    """The zero points of the DequantizeLinear nodes that read a looked-up row; one without has zero itself."""
    found, waiting = [], [name]
    while waiting:
        name = waiting.pop()
        for node in graph.node:
            if name in node.input:
                if node.op_type == "DequantizeLinear":
                    found += [node.input[2]] if len(node.input) > 2 else []
                elif node.op_type == "Identity":
                    waiting += node.output
    return found


def _untyped(name: str) -> onnx.ValueInfoProto:
    return onnx.ValueInfoProto(name=name)


def inlined(model: ModelProto) -> ModelProto:
    return onnx.inliner.inline_local_functions(model) if model.functions else model


def upgraded(model: ModelProto) -> ModelProto:
    """A model of opset 6, which the runtime does not run, as one of opset 8 with the same meaning."""
    if all(one.domain or one.version > 6 for one in model.opset_import):
        return model
    made = ModelProto()
    made.CopyFrom(model)
    for one in made.opset_import:
        one.version = one.version if one.domain else 8
    for graph in every_graph(made):
        nodes = [new for node in graph.node for new in _without_broadcast(node)]
        del graph.node[:]
        graph.node.extend(nodes)
    return made


def _without_broadcast(node: NodeProto) -> list[NodeProto]:
    old = [one for one in node.attribute if one.name in ("broadcast", "axis")]
    if node.op_type not in ("Mul", "Add", "Div", "Sub") or not old:
        return [node]
    for one in old:
        node.attribute.remove(one)
    shape = [int(size) for size in node.doc_string.split()[2:]]
    wide, stored = f"{node.output[0]}_wide", f"{node.output[0]}_shape"
    value = helper.make_tensor("", TensorProto.INT64, [len(shape)], shape)
    nodes = [
        helper.make_node("Constant", [], [stored], value=value),
        helper.make_node("Reshape", [node.input[1], stored], [wide]),
    ]
    node.input[1] = wide
    return [*nodes, node]


# -- patterns at an operator


def matrix(slot: Slot, numbers: Array) -> Array | None:
    """The numbers at a slot as (group, out, in, tap), or None where the operator has no matrix there."""
    own = {"Conv": _conv, "ConvInteger": _conv, "QLinearConv": _conv, "ConvTranspose": _conv_transpose}
    if slot.op in own:
        return own[slot.op](numbers, int(slot.attributes.get("group", 1)))
    if numbers.ndim < 2 and slot.op != "Gather":
        return None
    if slot.op == "Gather":
        axis = int(slot.attributes.get("axis", 0))
        rows = np.moveaxis(numbers, axis, 0).reshape(numbers.shape[axis], -1)
        return rows[None, :, :, None]
    if slot.op == "LSTM":
        return numbers[:, :, :, None]
    turned = _turned(slot)
    three = numbers.reshape(-1, *numbers.shape[-2:])
    return (three.transpose(0, 2, 1) if turned else three)[:, :, :, None]


def _turned(slot: Slot) -> bool:
    """Whether the sum runs over the axis before the last."""
    if slot.op == "Gemm":
        name, plain = ("transA", False) if slot.index == 0 else ("transB", True)
        return plain != bool(slot.attributes.get(name, 0))
    if slot.op == "Einsum":
        return slot.attributes["equation"] == b"kn,kb->bn"
    return slot.index != 0


def _conv(numbers: Array, group: int) -> Array:
    return numbers.reshape(group, numbers.shape[0] // group, numbers.shape[1], -1)


def _conv_transpose(numbers: Array, group: int) -> Array:
    cut = numbers.reshape(group, numbers.shape[0] // group, numbers.shape[1], -1)
    return cut.transpose(0, 2, 1, 3)


def zero_at(slot: Slot, numbers: Array, zeros: Sequence[Array]) -> Array:
    """Which numbers the operator takes for zero; with several zero points those that are zero for all."""
    blank = np.ones(numbers.shape, bool)
    if not zeros:
        return np.asarray(numbers == 0)
    for point in zeros:
        blank &= numbers == _spread(slot, numbers, point)
    return blank


def _spread(slot: Slot, numbers: Array, point: Array) -> Array:
    if point.size == 1:
        return point.reshape((1,) * numbers.ndim)
    if slot.op in ("QLinearConv", "ConvInteger"):
        return point.reshape(-1, *(1 for _ in numbers.shape[1:]))
    return point if slot.index else point[..., None]  # of the columns of a right operand, the rows of a left one
