"""Class axis: along which axis a value holds its classes or columns, as far as the graph says.

1. A Softmax, LogSoftmax, Hardmax or ArgMax that reads the value, or that made it, names the axis.
2. Otherwise the walk goes back through what keeps every element in its place, and through Transpose, to the layer whose
   results these are: Conv puts its channels on axis 1, MatMul and Gemm on the last one.
3. Anything else says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from onnx import GraphProto, ModelProto, NodeProto

CHOOSING = ("Softmax", "LogSoftmax", "Hardmax", "ArgMax")
IN_PLACE = {
    "Add", "BatchNormalization", "Cast", "Clip", "Div", "Dropout", "Elu", "Gelu", "HardSigmoid", "HardSwish",
    "Identity", "LeakyRelu", "Mul", "Neg", "Relu", "Sigmoid", "Softplus", "Sub", "Tanh",
}  # fmt: skip
LAYERS = {"Conv": 1, "ConvTranspose": 1, "MatMul": -1, "Gemm": -1}
FARTHEST = 32
LAST_FROM = 13
"""The opset from which on the axis of a Softmax is the last one where nobody says it; it was 1 before."""


def axis_in(model: ModelProto, name: str) -> int | None:
    """The axis of a value, as the graph says it, which may count from the end; None where it says nothing."""
    opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=LAST_FROM)
    chosen = _chosen_along(model.graph, name, opset)
    if chosen is not None:
        return chosen
    return _laid_out(_makers(model.graph), name, opset)


def _makers(graph: GraphProto) -> dict[str, NodeProto]:
    return {output: node for node in graph.node for output in node.output if output}


def _chosen_along(graph: GraphProto, name: str, opset: int) -> int | None:
    """The axis of a softmax or choice that reads the value."""
    readers = [node for node in graph.node if node.input and node.input[0] == name]
    found = (_axis_of(node, opset) for node in readers if node.op_type in CHOOSING)
    return next((axis for axis in found if axis is not None), None)


def _axis_of(node: NodeProto, opset: int) -> int | None:
    """An axis of 0 is that of the samples: it says nothing."""
    said = next((int(one.i) for one in node.attribute if one.name == "axis"), None)
    if said is None and node.op_type != "ArgMax":
        said = -1 if opset >= LAST_FROM else 1
    return said or None


def _laid_out(makers: Mapping[str, NodeProto], name: str, opset: int) -> int | None:
    turns: list[list[int]] = []
    for _ in range(FARTHEST):
        node = makers.get(name)
        if node is None or node.domain not in ("", "ai.onnx"):
            return None
        if node.op_type in LAYERS:
            return _turned(LAYERS[node.op_type], turns)
        if node.op_type in CHOOSING:
            return _turned(_axis_of(node, opset), turns)
        if node.op_type == "Transpose":
            turns.append(next((list(one.ints) for one in node.attribute if one.name == "perm"), []))
        elif node.op_type not in IN_PLACE:
            return None
        name = next((one for one in node.input if one in makers and makers[one].op_type != "Constant"), "")
    return None


def _turned(axis: int | None, turns: list[list[int]]) -> int | None:
    """Where an axis comes to lie by the transpositions behind it, the last of which is the first here."""
    for turn in reversed(turns):
        if axis is None or not turn:
            return None
        axis = turn.index(axis % len(turn))
    return axis or None
