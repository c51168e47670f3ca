"""Values of their own for nodes whose gradient the engine writes for every input, needed or not.

1. Of a value that needs no gradient the engine takes only one such gradient: two make an invalid graph. So each of
   these nodes, but for the first, reads a copy of its own: of a constant a second one, of other values an Identity.
2. A value that is read twice by one of these nodes is copied as well.
3. The engine makes such nodes itself, of a Mul or an Add with a constant vector and what stands before it (a
   normalization written with small operators, an activation after a bias): those vectors are copied, too.
"""

from __future__ import annotations

import math

from onnx import GraphProto, NodeProto, TensorProto

from onnxsparse.engines.ort.rewrites.rewrite import View, operator
from onnxsparse.engines.ort.writer import Writer

EAGER = {"Concat", "GRU", "LSTM", "LayerNormalization", "com.microsoft:BiasGelu", "com.microsoft:FastGelu"}
FUSED = {"Mul", "Add"}


def separate(graph: GraphProto, view: View) -> None:
    """Give these nodes their own copies, in place."""
    writer = Writer(graph, view.opset)
    seen: set[str] = set()
    placed: list[NodeProto] = []
    for node in graph.node:
        writer.nodes = []
        if operator(node) in EAGER | FUSED and view.flows(node):
            _separate(node, view, writer, seen)
        placed += [*writer.nodes, node]
    if len(placed) > len(graph.node):
        kept = [NodeProto.FromString(node.SerializeToString()) for node in placed]
        del graph.node[:]
        graph.node.extend(kept)


def _separate(node: NodeProto, view: View, writer: Writer, seen: set[str]) -> None:
    here: set[str] = set()
    for place, name in enumerate(node.input):
        if operator(node) in FUSED and not _is_vector(name, view):
            continue
        known = here if name in view.gradients else seen
        if name and name in known:
            node.input[place] = _copy(name, view, writer)
        known.add(name)


def _is_vector(name: str, view: View) -> bool:
    """A constant of one axis, or of others of length 1 only."""
    return name in view.constants and 1 < math.prod(view.shapes[name]) == max(view.shapes[name])


def _copy(name: str, view: View, writer: Writer) -> str:
    stored = view.constants.get(name)
    if stored is None:
        return writer.node("Identity", name)
    made = TensorProto()
    made.CopyFrom(stored)
    made.name = writer.fresh(f"{name}_copy")
    writer.graph.initializer.append(made)
    return made.name
