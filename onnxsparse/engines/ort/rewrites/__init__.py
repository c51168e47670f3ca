"""Table of the rewrites: operators that onnxruntime-training cannot differentiate, by operators that it can.

What is said of *the engine* in this folder was found with onnxruntime-training 1.19.2 on a CPU, its last release.

1. A node is rewritten when a gradient flows through it and its operator has a rewrite, or when the rewrite is needless
   of gradients: the operator has no kernel, or a wrong one.
2. Rounds go on until nothing changes, as a rewrite may write nodes that need another one.
3. Names of graph outputs and of trained tensors stay. Constants that nothing reads any more are dropped.
4. Nodes get their own copies of what the engine would give two gradients (`_separate`).
5. Afterwards every node has a name of its own, so that it can be spoken of.

Each module of this folder is a family of operators. A new operator is a class in its family: every `Rewrite` is found.
"""

from __future__ import annotations

import functools
import importlib
import math
import pkgutil

from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, operator
from onnxsparse.engines.ort.shapes import infer_shapes
from onnxsparse.graph.edit import Writer, keep, reads

ROUNDS = 6

# onnxruntime-training 1.19.2 writes a gradient for every input of these, needed or not. Of a value that needs no
# gradient it takes only one: two make an invalid graph.
EAGER = {"Concat", "GRU", "LSTM", "LayerNormalization", "com.microsoft:BiasGelu", "com.microsoft:FastGelu"}
# It makes such nodes itself, of a Mul or an Add with a constant vector and what stands before it (a normalization
# written with small operators, an activation after a bias).
FUSED = {"Mul", "Add"}


def apply(model: ModelProto, trained: set[str]) -> list[str]:
    """Rewrite a throw-away copy whose input shapes are fixed, in place. Returns a line for each node that refused."""
    notes: list[str] = []
    _name(model.graph)
    for _ in range(ROUNDS):
        infer_shapes(model)
        changed, notes = _round(model, View.of(model, trained))
        _drop_unread(model.graph, trained)
        if not changed:
            break
    _separate(model.graph, View.of(model, trained))
    return notes


def _name(graph: GraphProto) -> None:
    """Nodes without a name, and those whose name another one has, get a new one."""
    writer, seen = Writer(graph, 0), {""}
    for node in graph.node:
        if node.name in seen:
            node.name = writer.fresh(f"{node.op_type}_node")
        seen.add(node.name)


@functools.cache
def known() -> dict[str, Rewrite]:
    """Every rewrite, by the operators that it rewrites."""
    for entry in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{entry.name}")
    found: dict[str, Rewrite] = {}
    waiting = Rewrite.__subclasses__()
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        for name in cls.operators:
            assert name not in found, f"{name} has two rewrites"
            found[name] = cls()
    return found


def _round(model: ModelProto, view: View) -> tuple[bool, list[str]]:
    writer = Writer(model.graph, view.opset)
    nodes: list[NodeProto] = []
    notes: list[str] = []
    changed = False
    for node in model.graph.node:
        written, refusal = _rewritten(node, view, writer)
        nodes += written or [node]
        changed |= bool(written)
        notes += [f"{operator(node)} {node.name}: {refusal}"] if refusal else []
    keep(model.graph.node, nodes)
    known_domains = {entry.domain for entry in model.opset_import}
    for domain in sorted({node.domain for node in model.graph.node} - known_domains - {"", "ai.onnx"}):
        model.opset_import.add(domain=domain, version=1)
    return changed, notes


def _rewritten(node: NodeProto, view: View, writer: Writer) -> tuple[list[NodeProto], str | None]:
    """The nodes in place of `node` (none: it stays), and why it was refused."""
    rewrite = known().get(operator(node))
    if rewrite is None or not (rewrite.needless or view.flows(node)):
        return [], None
    constants = len(writer.graph.initializer)
    writer.nodes = []
    refusal = rewrite.write(node, view, writer)
    if refusal is not None or not writer.nodes:
        del writer.graph.initializer[constants:]
        return [], refusal
    return writer.nodes, None


def _drop_unread(graph: GraphProto, trained: set[str]) -> None:
    """Drop nodes whose outputs nobody reads, and then constants that nobody reads."""
    read = {value.name for value in graph.output}
    for node in reversed(graph.node):
        if any(name in read for name in node.output):
            read.update(reads(node))
    kept_nodes = [node for node in graph.node if any(name in read for name in node.output)]
    kept = [tensor for tensor in graph.initializer if tensor.name in read or tensor.name in trained]
    if len(kept_nodes) < len(graph.node):
        keep(graph.node, kept_nodes)
    if len(kept) < len(graph.initializer):
        keep(graph.initializer, kept)


# -- values of their own for nodes whose gradient the engine writes for every input, needed or not


def _separate(graph: GraphProto, view: View) -> None:
    """Each of these nodes but the first reads a copy of its own: of a constant a second one, of others an Identity.

    A value that is read twice by one of them is copied as well.
    """
    writer = Writer(graph, view.opset)
    seen: set[str] = set()
    placed: list[NodeProto] = []
    for node in graph.node:
        writer.nodes = []
        if operator(node) in EAGER | FUSED and view.flows(node):
            _separate_inputs(node, view, writer, seen)
        placed += [*writer.nodes, node]
    if len(placed) > len(graph.node):
        keep(graph.node, placed)


def _separate_inputs(node: NodeProto, view: View, writer: Writer, seen: set[str]) -> None:
    here: set[str] = set()
    for place, name in enumerate(node.input):
        if operator(node) in FUSED and not _is_vector(name, view):
            continue
        known = here if name in view.gradients else seen
        if name and name in known:
            node.input[place] = _copied(name, view, writer)
        known.add(name)


def _is_vector(name: str, view: View) -> bool:
    """A constant of one axis, or of others of length 1 only."""
    return name in view.constants and 1 < math.prod(view.shapes[name]) == max(view.shapes[name])


def _copied(name: str, view: View, writer: Writer) -> str:
    stored = view.constants.get(name)
    if stored is None:
        return writer.node("Identity", name)
    made = TensorProto()
    made.CopyFrom(stored)
    made.name = writer.fresh(f"{name}_copy")
    writer.graph.initializer.append(made)
    return made.name
