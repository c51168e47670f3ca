"""Finds the weight operands of a model with plain onnx and nothing of ours, to hold `inspect` and `prune` to.

It is slower and blunter than the real thing on purpose. An operand is a weight when everything that it is computed
from is constant; its stored tensors are the constant tensors of numbers on the way that are not scales or zero points.
The operand's value is computed by onnxruntime, so the way from the store to the operator is not interpreted here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper, numpy_helper

# operator -> {slot of a weight: slot of its zero point}
SLOTS: dict[str, dict[int, int | None]] = {
    "Conv": {1: None},
    "ConvTranspose": {1: None},
    "Gemm": {0: None, 1: None},
    "MatMul": {0: None, 1: None},
    "Einsum": {0: None, 1: None},
    "LSTM": {1: None, 2: None},
    "GRU": {1: None, 2: None},
    "RNN": {1: None, 2: None},
    "Gather": {0: None},
    "ConvInteger": {1: 3},
    "MatMulInteger": {0: 2, 1: 3},
    "QLinearConv": {3: 5},
    "QLinearMatMul": {0: 2, 3: 5},
    "DynamicQuantizeLSTM": {1: 9, 2: 11},
}
NUMBERS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.INT8, TensorProto.UINT8}
QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")


@dataclass(eq=False)
class Scope:
    """The names of one graph, and the graph around it."""

    outer: Scope | None
    stores: dict[str, TensorProto] = field(default_factory=dict)
    producers: dict[str, NodeProto] = field(default_factory=dict)

    def find(self, name: str) -> Scope | None:
        if name in self.stores or name in self.producers:
            return self
        return self.outer.find(name) if self.outer else None


@dataclass(eq=False)
class Operand:
    """A constant operand of an operator, the stored tensors behind it, and the nodes in between."""

    node: NodeProto
    slot: int
    leaves: list[tuple[str, TensorProto]]
    scope: Scope

    @property
    def is_matrix(self) -> bool:
        return self.node.op_type != "Gather" or len(self.leaves[0][1].dims) > 1


def operands(model: onnx.ModelProto) -> list[Operand]:
    assert not model.functions, "no model of the collection has local functions; teach this walk about them"
    return [o for o in _walk(model.graph, None) if o.leaves and o.is_matrix]


def _walk(graph: GraphProto, outer: Scope | None) -> Iterator[Operand]:
    scope = Scope(outer, {t.name: t for t in graph.initializer})
    for node in graph.node:
        if node.op_type == "Constant":
            tensor = _constant(node)
            if tensor is not None:
                scope.stores[node.output[0]] = tensor
                continue
        scope.producers.update(dict.fromkeys(node.output, node))
    # an input of the same name as an initializer is only its default and may still be pruned
    for node in graph.node:
        yield from _of_node(node, scope)
        for inner in _subgraphs(node):
            yield from _walk(inner, scope)


def _constant(node: NodeProto) -> TensorProto | None:
    return next((a.t for a in node.attribute if a.type == AttributeProto.TENSOR), None)


def _subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _of_node(node: NodeProto, scope: Scope) -> Iterator[Operand]:
    for slot in SLOTS.get(node.op_type, {}):
        if slot < len(node.input) and node.input[slot] and is_constant(node.input[slot], scope):
            leaves = {id(t): (name, t) for name, t in _leaves(node.input[slot], scope)}
            yield Operand(node, slot, list(leaves.values()), scope)


def is_constant(name: str, scope: Scope) -> bool:
    home = scope.find(name)
    if home is None:
        return False
    if name in home.stores:
        return True
    node = home.producers[name]
    if not node.input and node.op_type != "Constant":
        return False
    return not list(_subgraphs(node)) and all(is_constant(i, home) for i in node.input if i)


def _leaves(name: str, scope: Scope) -> Iterator[tuple[str, TensorProto]]:
    home = scope.find(name)
    assert home is not None
    if name in home.stores:
        tensor = home.stores[name]
        if tensor.data_type in NUMBERS and np.prod(tensor.dims, dtype=np.int64) > 1:
            yield name, tensor
        return
    node = home.producers[name]
    inputs = node.input[:1] if node.op_type in QUANTIZERS else node.input
    for each in inputs:
        yield from _leaves(each, home)


# --- the value of an operand ---------------------------------------------------------------------


def value(operand: Operand, model: onnx.ModelProto, slot: int | None = None) -> np.ndarray:
    """What arrives at the operator, computed by onnxruntime from the stored tensors."""
    name = operand.node.input[operand.slot if slot is None else slot]
    nodes: dict[int, NodeProto] = {}
    stores: dict[str, TensorProto] = {}
    _collect(name, operand.scope, nodes, stores)
    if name in stores:
        return numpy_helper.to_array(stores[name])
    out = helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None)
    out.ClearField("type")
    named = [_renamed(tensor, key) for key, tensor in stores.items()]
    graph = helper.make_graph(list(nodes.values()), "path", [], [out], named)
    path = helper.make_model(graph, opset_imports=model.opset_import, ir_version=min(model.ir_version, 10))
    session = onnxruntime.InferenceSession(path.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {})[0]


def _collect(name: str, scope: Scope, nodes: dict[int, NodeProto], stores: dict[str, TensorProto]) -> None:
    home = scope.find(name)
    assert home is not None
    if name in home.stores:
        stores[name] = home.stores[name]
        return
    node = home.producers[name]
    for each in node.input:
        if each:
            _collect(each, home, nodes, stores)
    nodes.setdefault(id(node), node)


def _renamed(tensor: TensorProto, name: str) -> TensorProto:
    copy = TensorProto()
    copy.CopyFrom(tensor)
    copy.name = name
    return copy


def real(operand: Operand, model: onnx.ModelProto) -> np.ndarray:
    """The operand's value less its zero point, so that a dropped weight is 0."""
    values = value(operand, model)
    slot = SLOTS[operand.node.op_type][operand.slot]
    if slot is None or slot >= len(operand.node.input) or not operand.node.input[slot]:
        return values.astype(np.float32)
    zero = value(operand, model, slot).astype(np.int32)
    return (values.astype(np.int32) - _against(zero, values, operand.node.op_type)).astype(np.float32)


def _against(zero: np.ndarray, values: np.ndarray, kind: str) -> np.ndarray:
    """A zero point shaped to broadcast: per filter, per direction (and column), or per column."""
    if zero.size == 1:
        return zero.reshape(())
    if kind.endswith(("Conv", "ConvInteger")):
        return zero.reshape((-1,) + (1,) * (values.ndim - 1))
    if kind == "DynamicQuantizeLSTM":
        return zero.reshape(values.shape[0], 1, -1)
    return zero


def rows(operand: Operand, values: np.ndarray) -> np.ndarray:
    """The operand with the axis that the hardware groups along put last."""
    attributes = {a.name: helper.get_attribute_value(a) for a in operand.node.attribute}
    kind = operand.node.op_type
    if kind == "ConvTranspose":
        group = attributes.get("group", 1)
        return np.moveaxis(values.reshape(group, values.shape[0] // group, *values.shape[1:]), 1, -1)
    return np.moveaxis(values, reduction_axis(kind, operand.slot, attributes, values.ndim), -1)


def reduction_axis(kind: str, slot: int, attributes: dict[str, Any], rank: int) -> int:
    if kind.endswith(("Conv", "ConvInteger", "Gather")):
        return 1
    if kind == "DynamicQuantizeLSTM":
        return 1
    if kind in ("LSTM", "GRU", "RNN"):
        return 2
    if kind == "Gemm":
        return int(bool(attributes.get("transB"))) if slot else int(not attributes.get("transA"))
    return rank - 1 if slot == 0 else rank - 2


def load(path: Path) -> onnx.ModelProto:
    return onnx.load(str(path))
