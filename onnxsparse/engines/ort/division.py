"""Whole numbers divided by zero in one sample end the process: the copy divides by one instead.

1. Where the user's file ends the process, what the copy gives is nobody's loss.
2. Divisors that are stored and hold no zero, and those that hang on sizes alone, stay as they are.
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
from onnxsparse.values import Array

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
            if kind is not None and node.input[1] not in settled:
                nodes += _guard(node, kind, names)
            nodes.append(node)
        if len(nodes) > len(graph.node):
            keep(graph.node, nodes)


def _divides(node: NodeProto) -> bool:
    return node.op_type in ("Div", "Mod") and node.domain in ("", "ai.onnx") and len(node.input) == 2


def _guard(node: NodeProto, kind: type[np.signedinteger[Any]], names: Names) -> list[NodeProto]:
    """The nodes before a division, which then reads what they give."""
    divisor = node.input[1]
    zero, one, same, safe = (names.fresh(f"{divisor}.{word}") for word in ("zero", "one", "is_zero", "divisor"))
    node.input[1] = safe
    return [
        make_node("Constant", [], [zero], value=numpy_helper.from_array(np.array(0, kind))),
        make_node("Constant", [], [one], value=numpy_helper.from_array(np.array(1, kind))),
        make_node("Equal", [divisor, zero], [same]),
        make_node("Where", [same, one, divisor], [safe]),
    ]


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
    """What holds no zero for certain, or is not what a sample decides."""
    moving = {value.name for value in draft.graph.input}
    sized: set[str] = set()
    for node in draft.graph.node:
        if node.op_type not in SIZES and moving & set(reads(node)):
            moving.update(node.output)
        elif reads(node):
            sized.update(node.output)
    stored = {tensor.name for graph in scopes(draft.graph) for tensor in graph.initializer if _no_zero(tensor)}
    constants = (
        (node, entry.t) for graph in scopes(draft.graph) for node in graph.node for entry in node.attribute
        if node.op_type == "Constant" and entry.name == "value"
    )  # fmt: skip
    stored |= {node.output[0] for node, tensor in constants if _no_zero(tensor)}
    return sized | (stored - {value.name for value in draft.graph.input})


def _no_zero(tensor: TensorProto) -> bool:
    if tensor.data_type not in GUARDED:
        return False
    array: Array = numpy_helper.to_array(tensor)
    return bool(array.all())
