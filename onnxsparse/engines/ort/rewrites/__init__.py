"""Operators that the engine cannot differentiate, written with operators that it can.

1. A node is rewritten when a gradient flows through it and its operator has a rewrite, or when the rewrite is needless
   of gradients: the operator has no kernel, or a wrong one.
2. Rounds go on until nothing changes, as a rewrite may write nodes that need another one.
3. Names of graph outputs and of trained tensors stay. Constants that nothing reads any more are dropped.
4. Nodes get their own copies of what the engine would give two gradients (`aliases`).
5. Afterwards every node has a name of its own, so that it can be spoken of.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

from onnx import GraphProto, ModelProto, NodeProto

from onnxsparse.engines.ort import value_shapes
from onnxsparse.engines.ort.rewrites.aliases import separate
from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, operator, reads
from onnxsparse.engines.ort.writer import Writer

if TYPE_CHECKING:
    from typing_extensions import TypeGuard

ROUNDS = 6


def apply(model: ModelProto, trained: set[str]) -> list[str]:
    """Rewrite a throw-away copy whose input shapes are fixed, in place. Returns a line for each node that refused."""
    notes: list[str] = []
    _name(model.graph)
    for _ in range(ROUNDS):
        value_shapes.infer(model)
        changed, notes = _round(model, View.of(model, trained))
        _drop_unread(model.graph, trained)
        if not changed:
            break
    separate(model.graph, View.of(model, trained))
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
    """Every rewrite of this folder, by the operators that it rewrites."""
    found: dict[str, Rewrite] = {}
    for cls in _classes():
        for name in cls.operators:
            assert name not in found, f"{name} has two rewrites"
            found[name] = cls()
    return found


def _classes() -> Iterator[type[Rewrite]]:
    for entry in sorted(pkgutil.iter_modules(__path__), key=lambda entry: entry.name):
        if entry.name.startswith("_"):
            continue
        module = importlib.import_module(f"{__name__}.{entry.name}")
        for cls in vars(module).values():
            if _is_rewrite(cls) and cls.__module__ == module.__name__:
                yield cls


def _is_rewrite(cls: object) -> TypeGuard[type[Rewrite]]:
    # By its type: Python 3.9 and 3.10 take `list[int]` for a class, and issubclass does not.
    return isinstance(cls, type(Rewrite)) and issubclass(cls, Rewrite) and not inspect.isabstract(cls)


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
    kept = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    _import_domains(model)
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


def _import_domains(model: ModelProto) -> None:
    known_domains = {entry.domain for entry in model.opset_import}
    for domain in sorted({node.domain for node in model.graph.node} - known_domains - {"", "ai.onnx"}):
        model.opset_import.add(domain=domain, version=1)


def _drop_unread(graph: GraphProto, trained: set[str]) -> None:
    """Drop nodes whose outputs nobody reads, and then constants that nobody reads."""
    read = {value.name for value in graph.output}
    for node in reversed(graph.node):
        if any(name in read for name in node.output):
            read.update(reads(node))
    kept_nodes = [node for node in graph.node if any(name in read for name in node.output)]
    kept = [tensor for tensor in graph.initializer if tensor.name in read or tensor.name in trained]
    if len(kept_nodes) < len(graph.node):
        del graph.node[:]
        graph.node.extend(kept_nodes)
    if len(kept) < len(graph.initializer):
        del graph.initializer[:]
        graph.initializer.extend(kept)
