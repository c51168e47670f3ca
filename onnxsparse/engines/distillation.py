"""Distillation targets: the values of a model that training matches to the dense model's, the same for every engine.

1. Every float output is a target, and so is what it was before it was squashed, its *pre-activation*: there the
   gradient is alive even where the output does not move.
2. To find it the walk goes back from an output through operators that only move numbers (Transpose, Reshape, Concat...)
   or scale them by constants, and through squashing ones (Sigmoid, Softmax, Tanh, Clip...). What goes into the last
   squashing operator that the walk passed is the pre-activation.
3. The loss that is reported is of the targets that the user's own file shows (`stated`). What an engine matches beside
   them only trains.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onnx import GraphProto, ModelProto, NodeProto

from onnxsparse.graph.class_axis import axis_in
from onnxsparse.graph.edit import downstream

MOVING = {"Identity", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Cast", "Dropout"}
PARTS = {"Slice", "Split", "Gather", "ReduceMean"}
JOINING = {"Concat"}
SCALING = {"Mul", "Add", "Sub", "Div"}
SQUASHING = {"Sigmoid", "Softmax", "LogSoftmax", "HardSigmoid", "Tanh", "Clip"}
DEEPEST = 64
LAYER = "layer"
"""The kind of a target that is only matched where layers learn from layers."""


@dataclass(frozen=True)
class DistillationTarget:
    """A distillation target: a value of the copy, the output of the user's graph it belongs to, its kind: output, tap
    (a pre-activation), cut or layer (which counts by a term of its own); the axis of its classes, where the graph says
    it; and whether the loss that is reported is of it."""

    name: str
    original: str
    kind: str
    axis: int | None = None
    stated: bool = True

    @property
    def called(self) -> str:
        """In words."""
        return f"output '{self.name}'" if self.kind == "output" else f"'{self.name}', before an output,"


def stated(model: ModelProto) -> list[DistillationTarget]:
    """The outputs of a file as it is, whatever their types, and their pre-activations, as far as inputs have a say."""
    graph = model.graph
    fed = downstream(graph, [value.name for value in graph.input], sizes=False)
    constants = unmoved(graph)
    found = {
        value.name: DistillationTarget(value.name, value.name, "output", axis_in(model, value.name), value.name in fed)
        for value in graph.output
    }
    for value in graph.output:
        for name in pre_activations(graph, value.name, constants):
            found.setdefault(name, DistillationTarget(name, value.name, "tap", axis_in(model, name), name in fed))
    return list(found.values())


def squashed(signals: Iterable[DistillationTarget]) -> set[str]:
    """The outputs that come from squashing functions."""
    return {signal.original for signal in signals if signal.kind == "tap" and signal.stated}


def unmoved(graph: GraphProto) -> frozenset[str]:
    """The values that no input changes."""
    moving = downstream(graph, [value.name for value in graph.input])
    made = {name for node in graph.node for name in node.output if name}
    return frozenset((made | {tensor.name for tensor in graph.initializer}) - moving)


def pre_activations(graph: GraphProto, output: str, constants: frozenset[str]) -> list[str]:
    """What one output was before it was squashed, in the order it is found; `constants` are values that no input
    changes."""
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
