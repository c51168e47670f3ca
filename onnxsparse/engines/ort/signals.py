"""Signals: the values of the copy that are matched to the dense model's.

1. A float output of fixed shape is one, if trained weights have a say in it; so are its taps.
2. For any other output (whole numbers, a shape that data decides) the walk goes back to the nearest values that are
   floats of fixed shape; these are taps of it. So are those before a choice (TopK, ArgMax) that the weights make: the
   pruned model picks others, and numbers of different things say nothing.
3. A weight is reached if a signal depends on it by way of floats alone.
4. The loss that is reported is of the signals that the user's own file shows (`stated`): its float outputs and their
   taps. These are the same for every engine. What an engine matches beside them only trains.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from onnxsparse.engines.ort.reach import downstream, upstream
from onnxsparse.engines.ort.scopes import reads
from onnxsparse.engines.ort.shapes import Shaped
from onnxsparse.engines.ort.taps import taps
from onnxsparse.graph.class_axis import axis_in

WHOLE = (TensorProto.INT64, TensorProto.INT32)


@dataclass(frozen=True)
class Signal:
    """A value of the copy, the output of the user's graph it belongs to, its kind: output, tap or cut; the axis of
    its classes, where the graph says it; and whether the loss that is reported is of it."""

    name: str
    original: str
    kind: str
    axis: int | None = None
    stated: bool = True

    @property
    def called(self) -> str:
        """In words."""
        return f"output '{self.name}'" if self.kind == "output" else f"'{self.name}', before an output,"


def stated(model: ModelProto) -> list[Signal]:
    """The outputs of a file as it is, whatever their types, and their taps, as far as inputs have a say in them."""
    graph = model.graph
    inputs = [value.name for value in graph.input]
    moving, fed = downstream(graph, inputs), downstream(graph, inputs, sizes=False)
    made = {name for node in graph.node for name in node.output if name}
    constants = frozenset((made | {tensor.name for tensor in graph.initializer}) - moving)
    found = {
        value.name: Signal(value.name, value.name, "output", axis_in(model, value.name), value.name in fed)
        for value in graph.output
    }
    for value in graph.output:
        for name in taps(graph, value.name, constants):
            found.setdefault(name, Signal(name, value.name, "tap", axis_in(model, name), name in fed))
    return list(found.values())


def squashed(signals: Iterable[Signal]) -> set[str]:
    """The outputs that come from squashing functions."""
    return {signal.original for signal in signals if signal.kind == "tap" and signal.stated}


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
    tapped: Mapping[str, Sequence[str]],
    trained: Iterable[str],
    shapes: Mapping[str, Shaped],
) -> list[Signal]:
    """The signals of a folded graph; `tapped` holds the taps of each output."""
    moving, found = Moving(graph, trained, shapes), {}
    for name in outputs:
        if moving.both(name) and fixed_float(name, shapes):
            found[name] = Signal(name, name, "output")
    for name in outputs:
        extra = [] if name in found and name not in moving.by_choice else frontier(graph, name, moving, shapes)
        for tap in (*(tapped.get(name, ()) if name in found else ()), *extra):
            if moving.both(tap) and fixed_float(tap, shapes):
                found.setdefault(tap, Signal(tap, name, "tap"))
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
    graph: GraphProto, signals: Iterable[Signal], trained: Iterable[str], shapes: Mapping[str, Shaped]
) -> set[str]:
    """The trained weights that a gradient comes to."""
    values = {name for node in graph.node for name in node.output if name} | set(trained)
    through = {name for name in values if name not in shapes or shapes[name].is_float}
    return upstream(graph, [signal.name for signal in signals], through) & set(trained)
