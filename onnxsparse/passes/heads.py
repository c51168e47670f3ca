"""The output layers of a model: those whose results reach a graph output without another layer in between.

1. A layer is a node that reads a weight. What moves, scales or squashes its results on the way does not count; neither
   does a layer whose weight is fixed mathematics.
2. Where the results of different layers are added up, as around a residual block, none of them is the output alone:
   zeros in one leave the output the others.
3. Bodies of If, Loop and Scan are walked with the names around them, local functions once for each call.
What it does not do: look at numbers, or at shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from onnx import FunctionProto, GraphProto, NodeProto

from onnxsparse.graph.attributes import IdentityKey, text
from onnxsparse.graph.edit import bodies
from onnxsparse.graph.model import Model
from onnxsparse.graph.operators import REFUSED, slots_of
from onnxsparse.graph.weights import Weight

SUMS = frozenset(
    ("Add", "Sub", "Sum", "Mean", "Max", "Min", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
)
SIZES = frozenset(("Shape", "Size"))


@dataclass(frozen=True)
class Reached:
    """What a value is made of: the layers (nodes) that come last before it, and whether any comes at all."""

    last: frozenset[IdentityKey] = frozenset()
    learned: bool = False


NOTHING = Reached()
Names = dict[str, Reached]


def heads_of(model: Model, fixed: Callable[[Weight], bool]) -> set[Weight]:
    """The weights that are output layers; none where the model has no other layers."""
    weights = [weight for weight in model.weights if weight.uses]
    readers: dict[IdentityKey, list[Weight]] = {}
    for weight in weights:
        for use in weight.uses:
            readers.setdefault(IdentityKey(use.source), []).append(weight)
    passing = {node for node, read in readers.items() if all(map(fixed, read))}
    reached = _Walk(model, set(readers) - passing, passing).outputs()
    found = {weight for node in reached for weight in readers[node]}
    return found if any(weight not in found for weight in weights) else set()


class _Walk:
    """One walk over a model, in the order of its nodes."""

    def __init__(self, model: Model, layers: set[IdentityKey], passing: set[IdentityKey]) -> None:
        self._proto, self._layers, self._passing = model.proto, layers, passing
        self._functions = {(text(f.domain), text(f.name)): f for f in model.proto.functions}

    def outputs(self) -> frozenset[IdentityKey]:
        names: Names = {}
        self._nodes(self._proto.graph.node, names)
        return _together([names.get(entry.name, NOTHING) for entry in self._proto.graph.output]).last

    def _nodes(self, nodes: Iterable[NodeProto], names: Names) -> None:
        for node in nodes:
            results = self._results(node, [names.get(name, NOTHING) for name in node.input], names)
            for name, result in zip(node.output, results):
                names[name] = result

    def _results(self, node: NodeProto, given: list[Reached], names: Names) -> Sequence[Reached]:
        function = self._functions.get((text(node.domain), text(node.op_type)))
        if function is not None:
            return self._call(function, given)
        inner = [self._body(graph, node, given, names) for graph in bodies(node)]
        if inner:
            return [_together(parts) for parts in zip(*inner)]
        return [self._result(node, given)] * len(node.output)

    def _result(self, node: NodeProto, given: list[Reached]) -> Reached:
        key = IdentityKey(node)
        if key in self._layers:
            return Reached(frozenset((key,)), True)
        if node.op_type in SIZES:
            return NOTHING
        together = _together(given)
        mixes = _mixes(node) and key not in self._passing
        if mixes or (node.op_type in SUMS and len({one for one in given if one.learned}) > 1):
            return Reached(frozenset(), together.learned)
        return together

    def _call(self, function: FunctionProto, given: list[Reached]) -> Sequence[Reached]:
        names: Names = dict(zip(function.input, given))
        self._nodes(function.node, names)
        return [names.get(name, NOTHING) for name in function.output]

    def _body(self, graph: GraphProto, node: NodeProto, given: list[Reached], names: Names) -> list[Reached]:
        """What the outputs of a body are made of, in the places of the node's own outputs."""
        inner, loop = dict(names), node.op_type == "Loop"
        states = given[2:] if loop else given
        entries = list(graph.input)[2:] if loop else list(graph.input)
        inner.update({entry.name: NOTHING for entry in graph.input})
        inner.update({entry.name: state for entry, state in zip(entries, states)})
        self._nodes(graph.node, inner)
        results = [inner.get(entry.name, NOTHING) for entry in graph.output]
        return results[1:] if loop else results


def _mixes(node: NodeProto) -> bool:
    """A product of two run-time values, or with packed numbers: what comes before it is not the output."""
    kind = ("" if node.domain == "ai.onnx" else node.domain, node.op_type)
    packed = kind in REFUSED and kind[1] not in ("GatherND", "GatherElements")
    return packed or any(slot.family != "Embedding" for slot in slots_of(*kind))


def _together(given: Iterable[Reached]) -> Reached:
    parts = list(given)
    return Reached(frozenset().union(*(part.last for part in parts)), any(part.learned for part in parts))
