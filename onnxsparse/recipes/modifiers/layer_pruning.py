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

    @property
    def _for_good(self) -> bool:
        return self.span.end == NEVER

    def layers(self) -> str | Sequence[str]:
        return self._layers

    def bind_graph(self, model: Model, params: Sequence[Param]) -> None:
        self._bypasses = bypasses(model, self._layers, f"{self.where}: layers")

    def changed_graph(self, proto: ModelProto) -> Sequence[str]:
        if self._for_good:
            bypass(proto, {one.result: one.source for one in self._bypasses})
        return ()

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
