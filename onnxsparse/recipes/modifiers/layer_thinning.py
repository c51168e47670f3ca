"""Layer thinning: pruned filters or channels are taken out of the layers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from onnx import ModelProto

from onnxsparse.acts.act import MASK, TimedAct
from onnxsparse.acts.channel_groups import ChannelGroup, GroupMap, found_again
from onnxsparse.acts.params import Param, find
from onnxsparse.acts.trainee import Trainee
from onnxsparse.engines.engine import Spec
from onnxsparse.errors import OptionError
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import StoredTensor
from onnxsparse.math.values import Array
from onnxsparse.passes.permuting import channels_of
from onnxsparse.passes.thin import blocking, thin
from onnxsparse.planning.plan import PlanRow
from onnxsparse.recipes.modifiers.masked import CHANNEL, FILTER
from onnxsparse.recipes.modifiers.modifier import (
    NEVER,
    REQUIRED,
    Scheduled,
    WrongOptionError,
    demand_from,
    demand_known,
    scaled_epochs,
)

STATISTICS = ("running_mean", "running_var")
WHOLE = ("unstructured", "alive", FILTER, CHANNEL)
SHOWN = 8
Groups = list[tuple[list[Param], list[Param]]]


@dataclass(frozen=True)
class LayerThinningModifier(Scheduled):
    """Take pruned filters or channels out of the layers.

    - !LayerThinningModifier
      param_group_dependency_map: {'conv1.weight': ['bn1.weight', 'conv2.weight']}
      structure_type: filter
      update_epochs: [4.0, 8.0]
    """

    name: ClassVar[str] = "LayerThinningModifier"

    param_group_dependency_map: dict[str, tuple[str, ...]] | str = REQUIRED
    structure_type: str = FILTER
    update_epochs: tuple[float, ...] = ()
    strict: bool = True

    def check(self) -> None:
        demand_known("structure_type", self.structure_type, (FILTER, CHANNEL))
        for epoch in self.update_epochs:
            demand_from("update_epochs", epoch, 0)
        _ = self.dependents

    @property
    def dependents(self) -> Mapping[tuple[str, ...], tuple[str, ...]]:
        """By the parameters that are thinned together, those that depend on them."""
        given: Any = self.param_group_dependency_map
        try:
            found = json.loads(given) if isinstance(given, str) else given
            return {
                tuple(one.strip() for one in key.split(",")): tuple(map(str, names)) for key, names in found.items()
            }
        except (ValueError, AttributeError, TypeError, RecursionError):
            raise WrongOptionError(
                "param_group_dependency_map", "it is a mapping, or JSON of one: {'a.weight,b.weight': ['c.weight']}"
            ) from None

    def act(self) -> ThinLayers:
        return ThinLayers(self)

    def times_after(self, epochs: float) -> dict[str, Any]:
        return {**super().times_after(epochs), "update_epochs": tuple(epoch + epochs for epoch in self.update_epochs)}

    def times_within(self, epochs: float, of: float) -> dict[str, Any]:
        updates = tuple(epoch * epochs / of for epoch in self.update_epochs)
        return {**scaled_epochs(self, ("start_epoch",), epochs, of), "update_epochs": updates}


class ThinLayers(TimedAct):
    """Takes out what is zero in all parameters of a group, at its start and at its update_epochs.

    Where neither came, it does so when the training is over. In an ONNX model these channels are held at zero from then
    on, with all that belongs to them, which is the same function; the file that is delivered does not have them.
    """

    def __init__(self, options: LayerThinningModifier) -> None:
        super().__init__(options.called, options.span)
        self.outputs, self.strict = options.structure_type == FILTER, options.strict
        self.groups_of_names = options.dependents
        starts = () if options.start_epoch == NEVER else (options.start_epoch,)
        self._times = sorted({*starts, *options.update_epochs})
        self._last = -math.inf
        self._groups: Groups = []
        self._in_graph: Sequence[ChannelGroup] | None = None
        self._of_tensor: Mapping[StoredTensor, Param] = {}
        self._sizes: dict[str, int] = {}
        self._notes: list[str] = []

    @property
    def _map(self) -> str:
        return f"{self.where}: param_group_dependency_map"

    def bind(self, params: Sequence[Param]) -> None:
        if self._in_graph is None:
            self._groups = [
                (
                    find(params, names, self._map),
                    find(params, tuple(filter(_is_param, others)), self._map) if others else [],
                )
                for names, others in self.groups_of_names.items()
            ]

    # -- in a run of our own

    def bind_graph(self, model: Model, params: Sequence[Param]) -> None:
        self._sizes = model.sizes
        found = GroupMap(model, params, self.outputs, self._map)
        self._in_graph, missing = found.groups(self.groups_of_names)
        found.demand_free(self._in_graph)
        by_tag = {param.tag: param for param in params if not param.refusal}
        tags = {tensor: home.tag for tensor, home in model.flow.stores.homes.items()}
        held = dict.fromkeys(one.tensor for group in self._in_graph for one in group.channels.members)
        self._of_tensor = {tensor: by_tag[tags[tensor]] for tensor in held if tags[tensor] in by_tag}
        if missing:
            shown = ", ".join(missing[:SHOWN]) + (f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else "")
            self._notes = [f"{self._map}: nothing of the model is called {shown}: exporters fold normalizations"]

    def demand_plan(self, rows: Iterable[PlanRow]) -> None:
        for row in rows:
            if row.weight.tensor in self._of_tensor and row.pattern is not None and row.pattern.name not in WHOLE:
                raise OptionError(
                    f"{self.where}: '{row.name}' is pruned by {row.pattern.text}, whose groups would be torn where "
                    "channels are taken out; prune it by filter, channel or single numbers, or leave it out of the map"
                )

    def masked(self) -> Iterable[Param]:
        return self._of_tensor.values()

    def shape(self, trainee: Trainee, spec: Spec, step: int) -> Spec:
        trained = [param.tag for param in self.masked() if param.tag in spec.trained]
        missing = [tag for tag in trained if tag not in spec.sparsers]
        return spec.with_sparsers({**spec.sparsers, **dict.fromkeys(missing, MASK)}) if missing else spec

    def final_from(self, trainee: Trainee) -> int:
        """Without an epoch, or where all come later, it is done when the training is over."""
        times = [trainee.step_at(time) for time in self._times]
        return max((step for step in times if step < trainee.total), default=trainee.total)

    def changed_graph(self, proto: ModelProto) -> Sequence[str]:
        model, notes = Model.over(proto), list(self._notes)
        model.sizes = self._sizes
        channels, kept = channels_of(model), dict[int, Array]()
        for group in self._in_graph or ():
            own = found_again(group, model, channels)
            why = "its layers are not there any more" if own is None else blocking(model, channels, own.channels)
            if own is None or why:
                notes.append(f"{self.where}: the channels of {group.name} stay: {why}")
                continue
            gone = own.unread(StoredTensor.array)
            if gone.any():
                kept[own.channels.number] = kept.get(own.channels.number, True) & ~gone
                said = f"{int(gone.sum())} of {len(gone)} channels of {group.name} are taken out of the file"
            else:
                said = f"no channel is zero in all of the group of {group.name}: nothing is taken out"
            notes.append(f"{self.where}: {said}")
        thin(model, channels, kept)
        return notes

    def _hold(self, trainee: Trainee) -> None:
        """Unused channels are zero from now on, in all that has numbers of them."""
        for group in self._in_graph or ():
            gone = group.unused(self.where, partial(self._numbers, trainee), self.strict)
            for tensor, keep in group.keeps(gone).items() if gone.any() else ():
                param = self._of_tensor.get(tensor)
                before = None if param is None else trainee.own_mask(self, param)
                if param is not None:
                    flat = keep.reshape(-1)
                    trainee.put_for(self, param, flat if before is None else flat & before)

    def _numbers(self, trainee: Trainee, tensor: StoredTensor) -> Array:
        return trainee.numbers(self._of_tensor[tensor]).reshape(tensor.shape)

    # -- by the clock

    def before(self, trainee: Trainee, epoch: float) -> None:
        self.clock.tick(epoch)
        never = epoch == math.inf and self._last == -math.inf
        if never or any(self._last < time <= epoch for time in self._times):
            self._thin(trainee, epoch)

    def finish(self, trainee: Trainee) -> None:
        if self._last == -math.inf:
            self._thin(trainee, math.inf)

    def _thin(self, trainee: Trainee, epoch: float) -> None:
        for group, dependents in self._groups:
            trainee.thin(self, group, dependents, self.outputs, self.strict)
        self._hold(trainee)
        self._last = epoch

    def state(self) -> dict[str, Any]:
        return {**super().state(), "last": self._last}

    def restore(self, state: dict[str, Any], trainee: Trainee) -> None:
        super().restore(state, trainee)
        self._last = float(state["last"])


def _is_param(name: str) -> bool:
    """Statistics go with the parameters of their normalization."""
    return name.rpartition(".")[2] not in STATISTICS
