"""Whole numbers divided by zero end the process, and so does the least of them divided by -1: the copy does not.

1. Divided by zero it divides by one: where the user's file ends the process, what the copy gives is nobody's loss.
   Instead of dividing by -1 it divides by one, and changes the sign of what comes out.
2. Divisors that are stored and hold neither, and those that hang on sizes, stay as they are.
3. Only for the types that the runtime divides, and where the operator set has what is needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.shape_inference
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper
from onnx.helper import make_node

from onnxsparse.engines.ort.draft import Draft, keep
from onnxsparse.engines.ort.reach import SIZES
from onnxsparse.engines.ort.scopes import Names, reads, scopes
from onnxsparse.math.values import Array

FIRST_WHERE = 9
GUARDED: dict[int, type[np.signedinteger[Any]]] = {TensorProto.INT32: np.int32, TensorProto.INT64: np.int64}


def guard_divisions(draft: Draft) -> None:
    """Guard Div and Mod of whole numbers, those in bodies too."""
    every = list(scopes(draft.graph))
    if draft.opset < FIRST_WHERE or not any(_divides(node) for graph in every for node in graph.node):
        return
    kinds, settled, names = _kinds(draft.model), _settled(draft), Names(draft.graph)
    for graph in reversed(every):
        nodes: list[NodeProto] = []
        for node in graph.node:
            kind = GUARDED.get(kinds.get(node.input[1], 0)) if _divides(node) else None
            guarded = kind is not None and node.input[1] not in settled
            nodes += _guarded(node, kind, names) if guarded and kind is not None else [node]
        if len(nodes) > len(graph.node):
            keep(graph.node, nodes)


def _divides(node: NodeProto) -> bool:
    return node.op_type in ("Div", "Mod") and node.domain in ("", "ai.onnx") and len(node.input) == 2


def _guarded(node: NodeProto, kind: type[np.signedinteger[Any]], names: Names) -> list[NodeProto]:
    """The division with the nodes around it; its result has the name that it had."""
    divisor, result = node.input[1], node.output[0]
    words = ("zero", "one", "minus", "is_zero", "is_minus", "is_bad", "divisor")
    zero, one, minus, is_zero, is_minus, is_bad, safe = (names.fresh(f"{divisor}.{word}") for word in words)
    numbers = ((zero, 0), (one, 1), (minus, -1))
    node.input[1] = safe
    found = [
        *(
            make_node("Constant", [], [n], value=numpy_helper.from_array(np.array(number, kind)))
            for n, number in numbers
        ),
        make_node("Equal", [divisor, zero], [is_zero]),
        make_node("Equal", [divisor, minus], [is_minus]),
        make_node("Or", [is_zero, is_minus], [is_bad]),
        make_node("Where", [is_bad, one, divisor], [safe]),
        node,
    ]
    if node.op_type == "Mod":  # what is left over from a division by one is nothing, and by -1 too
        return found
    quotient, turned = names.fresh(f"{result}.quotient"), names.fresh(f"{result}.turned")
    node.output[0] = quotient
    ends = [make_node("Neg", [quotient], [turned]), make_node("Where", [is_minus, turned, quotient], [result])]
    return [*found, *ends]


def _kinds(model: ModelProto) -> dict[str, int]:
    """The types of values as far as they are known."""
    try:
        model = onnx.shape_inference.infer_shapes(model)
    except Exception:  # inference is a help, not a check
        return {}
    found: dict[str, int] = {}
    for graph in scopes(model.graph):
        found.update({tensor.name: tensor.data_type for tensor in graph.initializer})
        values: list[ValueInfoProto] = [*graph.input, *graph.value_info, *graph.output]
        found.update({value.name: value.type.tensor_type.elem_type for value in values})
    return found


def _settled(draft: Draft) -> set[str]:
    """What is safe for certain, or is a size: not what a sample decides, and nothing but sizes may hang on it."""
    moving = {value.name for value in draft.graph.input}
    sized: set[str] = set()
    for node in draft.graph.node:
        if node.op_type not in SIZES and moving & set(reads(node)):
            moving.update(node.output)
        elif node.op_type in SIZES or sized & set(reads(node)):
            sized.update(node.output)
    stored = {tensor.name for graph in scopes(draft.graph) for tensor in graph.initializer if _is_safe(tensor)}
    constants = (
        (node, entry.t) for graph in scopes(draft.graph) for node in graph.node for entry in node.attribute
        if node.op_type == "Constant" and entry.name == "value"
    )  # fmt: skip
    stored |= {node.output[0] for node, tensor in constants if _is_safe(tensor)}
    return sized | (stored - {value.name for value in draft.graph.input})


def _is_safe(tensor: TensorProto) -> bool:
    """Whether a stored divisor holds neither zero nor -1."""
    if tensor.data_type not in GUARDED:
        return False
    array: Array = numpy_helper.to_array(tensor)
    return bool(array.all() and (array != -1).all())
