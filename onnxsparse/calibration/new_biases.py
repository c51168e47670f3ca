"""Biases for layers that have none: where one can be added to the graph, and adding it.

1. Conv, ConvTranspose and Gemm take it as an input. A MatMul gets an Add behind it, which gives the value that the
   MatMul gave before, under the same name: whatever reads that value stays as it is.
2. `new_biases` says of every layer without a bias which one it would get, or why none. They are zeros then.
3. `put_biases` adds them to a graph: all of them to the copy that is calibrated, those that are not zero to the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto
from onnx.helper import make_node

from onnxsparse.calibration.biases import OWN_BIAS
from onnxsparse.calibration.layers import CalibratedLayer, layers_of
from onnxsparse.calibration.stored_numbers import Floats, in_kind
from onnxsparse.calibration.streams import Cut
from onnxsparse.graph.attributes import Attributes
from onnxsparse.graph.edit import FLOATS, FreshNames, all_names, called, insert_nodes
from onnxsparse.graph.elementwise import Cast
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import kind_of
from onnxsparse.graph.weights import Use
from onnxsparse.math.values import Array
from onnxsparse.planning.plan import Plan

TAKING = ("Conv", "ConvTranspose", "Gemm", "MatMul")
INITIALIZERS = 4
"""The IR version from which on an initializer need not be an input of the model."""
IN_FUNCTION = "it is read inside of a function"


@dataclass(frozen=True, eq=False)
class NewBias:
    """A bias that a layer has not yet: which node gets it, and what it is called in the graph."""

    weight: str
    node: str
    """The node, in words."""
    output: str
    """What the node gives."""
    name: str
    kind: str
    numbers: Array
    """As they are stored."""
    inner: str = ""
    """What a MatMul gives once an Add stands behind it."""
    add: str = ""
    """The name of that Add."""

    @property
    def is_zero(self) -> bool:
        bits = self.numbers & np.uint16(0x7FFF) if self.kind == "bfloat16" else self.numbers
        return not bits.any()

    def tensor(self) -> TensorProto:
        data_type = next(one for one in FLOATS if kind_of(one) == self.kind)
        return TensorProto(
            name=self.name, data_type=data_type, dims=self.numbers.shape, raw_data=self.numbers.tobytes()
        )


@dataclass(frozen=True, eq=False)
class NewBiases:
    """What layers without a bias would get, and why others cannot get one, by the name of their weight."""

    made: Mapping[str, NewBias]
    reasons: Mapping[str, str]

    def filled(self, numbers: Mapping[str, Array]) -> list[NewBias]:
        """Those that are not zero, with their numbers by the name of the bias."""
        found = [replace(one, numbers=numbers[one.name]) for one in self.made.values() if one.name in numbers]
        return [one for one in found if not one.is_zero]


def new_biases(model: Model, plan: Plan) -> NewBiases:
    """The biases that the planned layers of a model can get."""
    cut, fresh = Cut(model), FreshNames(all_names(model.proto))
    made, reasons = dict[str, NewBias](), dict[str, str]()
    for layer in layers_of(model, plan, cut).layers:
        if layer.bias is not None:
            continue
        names, why = [one.weight.name for one in layer.parts if one.row], _obstacle(layer, cut)
        if why:
            reasons.update(dict.fromkeys(names, why))
        else:
            made[names[0]] = _made(layer, fresh)
    if model.proto.functions:
        inside = (row.name for row in plan.planned if any(use.scope for use in row.weight.uses))
        reasons.update(dict.fromkeys(inside, IN_FUNCTION))
    return NewBiases(made, reasons)


def _made(layer: CalibratedLayer, fresh: FreshNames) -> NewBias:
    use, weight = layer.parts[0].use, layer.parts[0].weight
    kind = next((step.kind for step in reversed(use.steps) if isinstance(step, Cast)), weight.tensor.kind)
    zeros, node = in_kind(np.zeros(layer.shape[0]), kind), use.source
    stem, dot, last = weight.tensor.name.rpartition(".")
    name = fresh(f"{stem}.bias" if dot and last == "weight" else f"{weight.tensor.name}_bias")
    found = NewBias(weight.name, called(node), node.output[0], name, kind, zeros)
    if node.op_type != "MatMul":
        return found
    return replace(found, inner=fresh(f"{node.output[0]}_without_bias"), add=fresh(f"{name}_add"))


def _obstacle(layer: CalibratedLayer, cut: Cut) -> str:
    """Why a layer without a bias that can change gets none; nothing where it may get one."""
    one = layer.parts[0]
    node, slot = one.use.source, OWN_BIAS.get(one.use.source.op_type)
    if len(layer.places) > 1:
        return "several nodes read its weight"
    if not isinstance(one.store, Floats):
        return f"its weight is stored as {one.weight.tensor.kind}"
    if node.op_type not in TAKING or node.domain not in ("", "ai.onnx"):
        return f"only {', '.join(TAKING)} can get one, not {node.op_type}"
    if slot is not None and len(node.input) > slot and node.input[slot]:
        return "it has one that is no stored vector of its own"
    if one.use.rows is not None or (one.use.shape4[0] > 1 and node.op_type == "MatMul"):
        return f"it is one of several matrices of its {node.op_type}"
    return _of_product(one.use, node, cut) if node.op_type in ("Gemm", "MatMul") else ""


def _of_product(use: Use, node: NodeProto, cut: Cut) -> str:
    if use.slot != 1:
        return f"its weight is the first input of its {node.op_type}"
    if node.op_type == "Gemm":
        plain = Attributes(node, {}).number("beta", 1.0) == 1.0
        return "" if plain else "its Gemm multiplies a bias by beta"
    adds = [reader for reader in cut.reading(node.output[0]) if reader.op_type == "Add"]
    there = any(cut.is_constant(name) for add in adds for name in add.input)
    return "the constant of the Add behind it is no stored vector of its own" if there else ""


# -- adding them


def put_biases(proto: ModelProto, biases: Iterable[NewBias]) -> None:
    """Add biases to the graph of a model, in place; nodes and tensors that are there stay the very same messages."""
    graph, chosen = proto.graph, list(biases)
    places = {node.output[0]: place for place, node in enumerate(graph.node) if node.output}
    for one in sorted(chosen, key=lambda one: places[one.output], reverse=True):
        _connect(graph, places[one.output], one)
    tensors = [one.tensor() for one in chosen]
    if proto.ir_version >= INITIALIZERS:
        graph.initializer.extend(tensors)
    else:
        insert_nodes(graph, 0, _constants(tensors))


def _connect(graph: GraphProto, place: int, bias: NewBias) -> None:
    node = graph.node[place]
    if bias.inner:
        node.output[0] = bias.inner
        add = make_node("Add", [bias.inner, bias.name], [bias.output], name=bias.add)
        insert_nodes(graph, place + 1, [add])
    else:
        node.input.extend([""] * (3 - len(node.input)))
        node.input[2] = bias.name


def _constants(tensors: Sequence[TensorProto]) -> list[NodeProto]:
    """Before IR 4 an initializer has to be an input as well, so a Constant is the quieter way."""
    return [
        make_node("Constant", [], [tensor.name], name=f"{tensor.name}_constant", value=tensor) for tensor in tensors
    ]


__all__ = ["NewBias", "NewBiases", "new_biases", "put_biases"]
