"""Layer pruning: whole layers are skipped, for good or for a while."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from onnx import ModelProto

from onnxsparse.acts.act import TimedAct
from onnxsparse.acts.layers import Bypass, bypasses
from onnxsparse.acts.params import Param
from onnxsparse.acts.trainee import Trainee
from onnxsparse.engines.engine import Spec
from onnxsparse.graph.edit import bypass
from onnxsparse.graph.model import Model
from onnxsparse.recipes.modifiers.modifier import NEVER, REQUIRED, Scheduled, demand_params

REMOVED = "its layer was removed by the recipe"
SHOWN = 8


@dataclass(frozen=True)
class LayerPruningModifier(Scheduled):
    """Skip whole layers, for good or until an end_epoch.

    - !LayerPruningModifier
      layers: ['blocks.3']
      start_epoch: 0.0
    """

    name: ClassVar[str] = "LayerPruningModifier"

    layers: str | tuple[str, ...] = REQUIRED

    def check(self) -> None:
        demand_params("layers", self.layers)

    def act(self) -> SkipLayers:
        return SkipLayers(self)


class SkipLayers(TimedAct):
    """Layers hand on what comes to them, from the start on, and are put back at the end where there is one.

    A run that is over before its start comes to what the recipe says all the same, as in SparseML.
    """

    def __init__(self, options: LayerPruningModifier) -> None:
        super().__init__(options.called, options.span)
        self._layers = options.layers
        self._bypasses: Sequence[Bypass] = ()
        self._names: Mapping[str, str] = {}

    @property
    def _for_good(self) -> bool:
        return self.span.end == NEVER

    def layers(self) -> str | Sequence[str]:
        return self._layers

    def bind_graph(self, model: Model, params: Sequence[Param]) -> None:
        self._bypasses = bypasses(model, self._layers, f"{self.where}: layers")
        self._names = {param.tag: param.name for param in params}

    def changed_graph(self, proto: ModelProto) -> Sequence[str]:
        if not self._for_good:
            return ()
        before = _nodes(proto)
        bypass(proto, {one.result: one.source for one in self._bypasses})
        left = _nodes(proto)
        gone = [name for key, name in before.items() if key not in left]
        weights = [self._names[tag] for tag in self.removed() if tag in self._names]
        layers = ", ".join(repr(one.name) for one in self._bypasses)
        many = len(self._bypasses) > 1
        said = f"the layer{'s' if many else ''} {layers} {'are' if many else 'is'} not in the file any more"
        told = "all figures but those of the dense model are measured without " + ("them" if many else "it")
        return [f"{self.where}: {said}: {_listed(gone, 'node')} and {_listed(weights, 'tensor')} are gone; {told}"]

    def removed(self) -> Mapping[str, str]:
        return {tag: REMOVED for one in self._bypasses for tag in one.tags} if self._for_good else {}

    # -- in a loop of the user's

    def begin(self, trainee: Trainee, epoch: float) -> None:
        trainee.skip_layers(self)

    def end(self, trainee: Trainee) -> None:
        trainee.put_back_layers(self)

    def finish(self, trainee: Trainee) -> None:
        self.before(trainee, max(self.span.start, self.span.end, self.clock.last, 0.0))

    # -- in a run of our own

    def boundaries(self, trainee: Trainee) -> Iterable[int]:
        return [trainee.step_at(epoch) for epoch in (max(self.span.start, 0.0), self.span.end) if epoch != NEVER]

    def shape(self, trainee: Trainee, spec: Spec, step: int) -> Spec:
        first, *last = self.boundaries(trainee)
        return self._skipping(spec) if first <= step < min([*last, step + 1]) else spec

    def delivered(self, spec: Spec) -> Spec:
        if self._for_good:
            return self._skipping(spec)
        own = {one.result for one in self._bypasses}
        return replace(spec, skipped={result: one for result, one in spec.skipped.items() if result not in own})

    def _skipping(self, spec: Spec) -> Spec:
        return replace(
            spec, skipped={**spec.skipped, **{one.result: (one.source, *one.tags) for one in self._bypasses}}
        )


def _nodes(proto: ModelProto) -> dict[tuple[str, str], str]:
    """The names of nodes, by what stays the same for each of them."""
    return {(node.op_type, node.output[0]): node.name or node.output[0] for node in proto.graph.node}


def _listed(names: Sequence[str], what: str) -> str:
    count = f"{len(names)} {what}" + ("" if len(names) == 1 else "s")
    shown = [*names[:SHOWN], *(["..."] if len(names) > SHOWN else [])]
    return f"{count} ({', '.join(shown)})" if names else count
