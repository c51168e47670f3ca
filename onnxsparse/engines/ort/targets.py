"""Selecting distillation targets among the values of the prepared copy, and the weights that get a gradient from them.

1. A float output of fixed shape is one, if trained weights have a say in it; so are its pre-activations.
2. For any other output (whole numbers, a shape that data decides) the walk goes back to the nearest values that are
   floats of fixed shape; these are targets of it. So are those before a choice (TopK, ArgMax) that the weights make:
   the pruned model picks others, and numbers of different things say nothing.
3. A weight is reached if a target depends on it by way of floats alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from onnx import GraphProto, NodeProto, TensorProto

from onnxsparse.engines.distillation import DistillationTarget
from onnxsparse.engines.ort.shapes import Shaped
from onnxsparse.graph.edit import downstream, reads, upstream

WHOLE = (TensorProto.INT64, TensorProto.INT32)


class Moving:
    """Which values depend on trained weights, on inputs, on both; and which on a choice that weights make."""

    def __init__(self, graph: GraphProto, trained: Iterable[str], shapes: Mapping[str, Shaped]) -> None:
        self.trained = set(trained)
        self.by_weights = downstream(graph, self.trained, sizes=False)
        self.by_data = downstream(graph, [value.name for value in graph.input])
        picks = [name for name in self.by_weights if name in shapes and shapes[name].kind in WHOLE]
        self.by_choice = downstream(graph, picks, sizes=False)

    def both(self, name: str) -> bool:
        return name in self.by_weights and name in self.by_data


def fixed_float(name: str, shapes: Mapping[str, Shaped]) -> bool:
    shaped = shapes.get(name)
    return shaped is not None and shaped.is_float and shaped.sizes is not None


def choose(
    graph: GraphProto,
    outputs: Sequence[str],
    inner: Mapping[str, Sequence[str]],
    trained: Iterable[str],
    shapes: Mapping[str, Shaped],
) -> list[DistillationTarget]:
    """The targets of a folded graph; `inner` holds the pre-activations of each output."""
    moving, found = Moving(graph, trained, shapes), {}
    for name in outputs:
        if moving.both(name) and fixed_float(name, shapes):
            found[name] = DistillationTarget(name, name, "output")
    for name in outputs:
        extra = [] if name in found and name not in moving.by_choice else frontier(graph, name, moving, shapes)
        for value in (*(inner.get(name, ()) if name in found else ()), *extra):
            if moving.both(value) and fixed_float(value, shapes):
                found.setdefault(value, DistillationTarget(value, name, "tap"))
    return list(found.values())


def frontier(graph: GraphProto, name: str, moving: Moving, shapes: Mapping[str, Shaped]) -> list[str]:
    """The nearest float values of fixed shape before a value, as far as weights and data have a say in them.

    A value that was picked by what weights choose is passed over where there is one before the choice.
    """
    makers = {output: node for node in graph.node for output in node.output if output}
    return _nearest(makers, name, moving, shapes, moving.by_choice) or _nearest(makers, name, moving, shapes, set())


def _nearest(
    makers: Mapping[str, NodeProto], name: str, moving: Moving, shapes: Mapping[str, Shaped], avoid: Collection[str]
) -> list[str]:
    found: dict[str, None] = {}
    seen, pending = set(), [name]
    while pending:
        value = pending.pop(0)
        if value in seen or value not in moving.by_weights or value not in makers:
            continue
        seen.add(value)
        if moving.both(value) and fixed_float(value, shapes) and value not in avoid:
            found.setdefault(value)
        else:
            pending += reads(makers[value])
    return list(found)


def reached(
    graph: GraphProto, signals: Iterable[DistillationTarget], trained: Iterable[str], shapes: Mapping[str, Shaped]
) -> set[str]:
    """The trained weights that a gradient comes to."""
    values = {name for node in graph.node for name in node.output if name} | set(trained)
    through = {name for name in values if name not in shapes or shapes[name].is_float}
    return upstream(graph, [signal.name for signal in signals], through) & set(trained)
