"""Where the gradient cannot pass, the graph is cut, and both sides train on.

1. A node is cut out if trained weights have a say in what it reads, and it is blocked (the caller knows which operators
   have no gradient) or is control flow.
2. What it reads becomes a signal of kind 'cut', matched to the dense model's; where that is no float of fixed shape,
   the nearest values before it that are.
3. What it gives is fed, as the dense model computes it. Nodes that read something else than a tensor from it (a
   sequence) are cut out with it.
4. Chance is fed too: the dense model's random numbers are the ones to train with. So is what is rounded to whole
   numbers and back: the engine cannot build a graph with such nodes.
5. Outputs that only what is fed has a say in are no signals any more. Weights that no signal is left for have a reason.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto
from onnx.helper import make_tensor_value_info

from onnxsparse.engines.engine import NO_GRADIENT
from onnxsparse.engines.ort.chance import take_as_inputs
from onnxsparse.engines.ort.draft import called, keep
from onnxsparse.engines.ort.fold import RANDOM
from onnxsparse.engines.ort.prepare import Prepared, inputs_of
from onnxsparse.engines.ort.reach import SIZES, downstream, reduce_to
from onnxsparse.engines.ort.scopes import CONTROL_FLOW, reads
from onnxsparse.engines.ort.shapes import Shaped, shapes_of
from onnxsparse.engines.ort.signals import Moving, Signal, frontier, reached
from onnxsparse.errors import ModelError

FED = {*RANDOM, "QuantizeLinear", "DequantizeLinear"}
"""What is never part of the graph to train."""


def cut(prepared: Prepared, blocked: Sequence[str] = ()) -> Prepared:
    """The graph without the nodes named in `blocked`, and without control flow; itself where there are none."""
    graph = prepared.model.graph
    if not blocked and not any(node.op_type in (*CONTROL_FLOW, *FED) for node in graph.node):
        return prepared
    model = ModelProto()
    model.CopyFrom(prepared.model)
    made = _Cut(prepared, model, set(blocked))
    made.walk()
    return made.result() if made.stops else prepared


def teacher(before: Prepared, after: Prepared) -> ModelProto:
    """The dense model: gives all signals of `after`, then what is fed to it. `before` is the graph it was cut from;
    values that were only written into the later graph are computed as they are there. It is fed with chance."""
    model = ModelProto()
    model.CopyFrom(before.model)
    _graft(model.graph, after)
    wanted = [*(signal.name for signal in after.signals), *after.fed]
    reduce_to(model, wanted)
    take_as_inputs(model)
    missing = set(wanted) - {name for node in model.graph.node for name in node.output}
    if missing:
        raise ModelError(f"the dense model does not compute '{min(missing)}', which the graph to train is fed")
    return model


def _graft(graph: GraphProto, after: Prepared) -> None:
    """Nodes of the later graph that its signals need and the earlier one does not have."""
    known = {name for node in graph.node for name in node.output} | {value.name for value in graph.input}
    stored = {tensor.name for tensor in graph.initializer}
    wanted = {signal.name for signal in after.signals} - known
    nodes: list[NodeProto] = []
    for node in reversed(after.model.graph.node):
        if wanted & set(node.output):
            nodes.insert(0, node)
            wanted |= set(reads(node)) - known - stored
    graph.node.extend(nodes)
    graph.initializer.extend(tensor for tensor in after.model.graph.initializer if tensor.name in wanted - stored)


@dataclass
class _Cut:
    prepared: Prepared
    model: ModelProto
    blocked: set[str]
    stops: list[NodeProto] = field(default_factory=list)
    kept: list[NodeProto] = field(default_factory=list)
    signals: dict[str, Signal] = field(default_factory=dict)
    given: dict[str, None] = field(default_factory=dict)
    partial: bool = False

    def __post_init__(self) -> None:
        graph = self.model.graph
        self.shapes = _shapes(self.model)
        self.moving = Moving(graph, self.prepared.weights, self.shapes)
        self.alive = set(self.prepared.weights)

    def walk(self) -> None:
        """Each node in order: kept, or cut out."""
        for node in self.model.graph.node:
            moved = [name for name in reads(node) if name in self.alive]
            handed = any(name in self.given and not self._tensor(name) for name in reads(node))
            if node.op_type in FED or handed or (moved and self._stops(node)):
                self._stop(node, moved)
                continue
            self.kept.append(node)
            if moved and node.op_type not in SIZES:
                self.alive |= {name for name in node.output if name}

    def _stops(self, node: NodeProto) -> bool:
        return node.name in self.blocked or node.op_type in CONTROL_FLOW

    def _tensor(self, name: str) -> bool:
        return name in self.shapes

    def _stop(self, node: NodeProto, moved: Collection[str]) -> None:
        self.stops.append(node)
        self.given.update(dict.fromkeys(name for name in node.output if name))
        known = {signal.name for signal in self.prepared.signals}
        original = self._belongs_to(node)
        self.partial |= bool(moved) and node.op_type not in RANDOM
        for name in moved:
            for value in frontier(self.model.graph, name, self.moving, self.shapes):
                if value in self.alive and value not in known and node.op_type not in RANDOM:
                    self.signals.setdefault(value, Signal(value, original, "cut", stated=False))

    def _belongs_to(self, node: NodeProto) -> str:
        after = downstream(self.model.graph, [name for name in node.output if name])
        named = [signal.original for signal in self.prepared.signals if signal.name in after]
        return (named or [signal.original for signal in self.prepared.signals] or [""])[0]

    def result(self) -> Prepared:
        graph = self.model.graph
        signals = [signal for signal in self.prepared.signals if signal.name in self.alive]
        signals += self.signals.values()
        keep(graph.node, self.kept)
        for name in self.given:
            if self._tensor(name):
                graph.input.append(_value(name, self.shapes[name]))
        reduce_to(self.model, [signal.name for signal in signals])
        weights = reached(graph, signals, self.prepared.weights, self.shapes)
        inputs = inputs_of(self.model)
        return replace(
            self.prepared,
            model=self.model,
            weights={name: tag for name, tag in self.prepared.weights.items() if name in weights},
            signals=signals,
            inputs=inputs,
            fed=[*self.prepared.fed, *(name for name, _, _ in inputs if name in self.given)],
            notes=[*self.prepared.notes, _note(self.stops)],
            unreached={**self.prepared.unreached, **self._lost(weights)},
            partial=self.prepared.partial or self.partial,
        )

    def _lost(self, weights: set[str]) -> dict[str, str]:
        reasons = {}
        for name, tag in self.prepared.weights.items():
            if name not in weights:
                after = downstream(self.prepared.model.graph, [name])
                stop = next((node for node in self.stops if any(one in after for one in reads(node))), self.stops[0])
                reasons[tag] = f"{NO_GRADIENT} {called(stop)}, and nothing before it can be matched"
        return reasons


def _note(stops: Sequence[NodeProto]) -> str:
    return f"cut at {', '.join(called(node) for node in stops[:5])}{' and others' if len(stops) > 5 else ''}"


def _shapes(model: ModelProto) -> dict[str, Shaped]:
    """Declared, inferred, or as they come out for zeros."""
    zeros = {name: np.zeros(shape, dtype) for name, dtype, shape in inputs_of(model)}
    return shapes_of(model, [zeros])


def _value(name: str, shaped: Shaped) -> ValueInfoProto:
    return make_tensor_value_info(name, shaped.kind, shaped.sizes)
