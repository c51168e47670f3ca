"""Taps: what stands before the squashing function that an output ends in.

1. From each float output the walk goes back through operators that only move numbers (Transpose, Reshape, Concat...)
   or scale them by constants, and through squashing ones (Sigmoid, Softmax, Tanh, Clip...).
2. What goes into the last squashing operator that the walk passed is a tap: there the gradient is alive even where the
   output does not move.
"""

from __future__ import annotations

from collections.abc import Mapping

from onnx import GraphProto, NodeProto

MOVING = {"Identity", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Cast", "Dropout"}
PARTS = {"Slice", "Split", "Gather", "ReduceMean"}
JOINING = {"Concat"}
SCALING = {"Mul", "Add", "Sub", "Div"}
SQUASHING = {"Sigmoid", "Softmax", "LogSoftmax", "HardSigmoid", "Tanh", "Clip"}
DEEPEST = 64


def taps(graph: GraphProto, output: str, constants: frozenset[str]) -> list[str]:
    """The taps of one output, in the order they are found; `constants` are values that no input changes."""
    makers = {name: node for node in graph.node for name in node.output}
    found: dict[str, None] = {}
    pending = [(output, "", 0)]
    while pending:
        name, tap, depth = pending.pop(0)
        before, squashes = _before(makers, name, constants)
        if not before or depth == DEEPEST:
            found.setdefault(tap)
        pending += [(source, source if squashes else tap, depth + 1) for source in before if depth < DEEPEST]
    return [name for name in found if name not in ("", output)]


def _before(makers: Mapping[str, NodeProto], name: str, constants: frozenset[str]) -> tuple[list[str], bool]:
    """Where a value comes from, if the walk goes on there, and whether it was squashed on the way."""
    node = makers.get(name)
    if node is None or node.domain not in ("", "ai.onnx"):
        return [], False
    moving = [source for source in node.input if source and source not in constants]
    if node.op_type in MOVING | PARTS | SQUASHING:
        return [node.input[0]] if node.input[0] in moving else [], node.op_type in SQUASHING
    if node.op_type in JOINING:
        return moving, False
    if node.op_type in SCALING and len(moving) == 1:
        return moving, False
    if node.op_type == "Div":
        logits = _written_out_softmax(makers, node)
        return ([logits], True) if logits else ([], False)
    return [], False


def _written_out_softmax(makers: Mapping[str, NodeProto], node: NodeProto) -> str | None:
    """The logits, where the node divides their exponentials by the sum of these."""
    top, bottom = makers.get(node.input[0]), makers.get(node.input[1])
    while bottom is not None and bottom.op_type in MOVING | {"Expand"}:
        bottom = makers.get(bottom.input[0])
    if top is None or bottom is None or top.op_type != "Exp" or bottom.op_type != "ReduceSum":
        return None
    if bottom.input[0] != node.input[0]:
        return None
    less = makers.get(top.input[0])  # the largest was taken away first
    logits: str = less.input[0] if less is not None and less.op_type == "Sub" else top.input[0]
    return logits
