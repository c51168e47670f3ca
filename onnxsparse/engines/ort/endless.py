"""Loops that would never come to their end are refused before anything is run.

1. A Loop goes round as often as its trip count says, where its condition is true from the beginning and no round can
   change it. Both are known where they are stored.
2. Where a round computes the condition nobody knows, and it is run.
"""

from __future__ import annotations

import math

from onnx import GraphProto, TensorProto, numpy_helper

from onnxsparse.engines.ort.draft import called
from onnxsparse.engines.ort.lift import stored_of
from onnxsparse.engines.ort.scopes import bodies, defined
from onnxsparse.errors import ModelError

ROUNDS = 1 << 24
"""Rounds that may take minutes, and not the rest of a life."""

Numbers = dict[str, int]


def refuse_endless(graph: GraphProto, around: Numbers | None = None) -> None:
    """Say which Loop would not end; `around` are the numbers that are stored in the graphs around this one."""
    numbers = _stored_in(graph, around or {})
    for node in graph.node:
        if node.op_type == "Loop" and node.domain in ("", "ai.onnx"):
            rounds = numbers.get(node.input[0], 0) if node.input[0] else math.inf
            begins = not node.input[1] or numbers.get(node.input[1]) == 1
            if begins and rounds > ROUNDS and _never_stops(next(bodies(node)), numbers):
                often = "without end" if rounds == math.inf else f"{rounds:,} times"
                raise ModelError(f"{called(node)} goes round {often}, and nothing in it can stop it")
        for body in bodies(node):
            refuse_endless(body, numbers)


def _stored_in(graph: GraphProto, around: Numbers) -> Numbers:
    """Whole numbers and flags in sight, by name."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        tensor = stored_of(node) if node.op_type == "Constant" and node.domain in ("", "ai.onnx") else None
        if tensor is not None:
            tensors[node.output[0]] = tensor
    hidden = defined(graph)
    numbers = {name: number for name, number in around.items() if name not in hidden}
    fed = {value.name for value in graph.input}
    numbers.update({name: _number(tensor) for name, tensor in tensors.items() if name not in fed and _is_one(tensor)})
    for node in graph.node:
        if node.op_type == "Identity" and node.input[0] in numbers:
            numbers[node.output[0]] = numbers[node.input[0]]
    return numbers


def _is_one(tensor: TensorProto) -> bool:
    kinds = (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)
    return tensor.data_type in kinds and math.prod(tensor.dims) == 1


def _number(tensor: TensorProto) -> int:
    return int(numpy_helper.to_array(tensor).reshape(-1)[0])


def _never_stops(body: GraphProto, around: Numbers) -> bool:
    """Whether the condition that a round hands on is the one it was given, or is always true."""
    numbers, given, handed = _stored_in(body, around), body.input[1].name, body.output[0].name
    renamed = {node.output[0]: node.input[0] for node in body.node if node.op_type == "Identity"}
    for _ in renamed:
        handed = renamed.get(handed, handed)
    return handed == given or numbers.get(handed) == 1
