"""Layer thinning: pruned filters or channels are taken out of the layers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from onnxsparse.acts.act import TimedAct
from onnxsparse.acts.params import Param, find
from onnxsparse.acts.trainee import Trainee
from onnxsparse.errors import OptionError
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
        if self.end_epoch != NEVER:
            raise WrongOptionError("end_epoch", "what is taken out does not come back, so it is -1")
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

    Where neither came, it does so when the training is over.
    """

    def __init__(self, options: LayerThinningModifier) -> None:
        super().__init__(options.called, options.span)
        self.outputs, self.strict = options.structure_type == FILTER, options.strict
        self.groups_of_names = options.dependents
        starts = () if options.start_epoch == NEVER else (options.start_epoch,)
        self._times = sorted({*starts, *options.update_epochs})
        self._last = -math.inf
        self._groups: Groups = []

    def bind(self, params: Sequence[Param]) -> None:
        where = f"{self.where}: param_group_dependency_map"
        self._groups = [
            (find(params, names, where), find(params, tuple(filter(_is_param, others)), where) if others else [])
            for names, others in self.groups_of_names.items()
        ]

    def demand_run(self) -> None:
        raise OptionError(
            f"{self.where} takes channels out of torch modules, in a loop of yours; an ONNX model is trained with its "
            "pruned channels as zeros: take the modifier out, or read the recipe with --lenient"
        )

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
        self._last = epoch

    def state(self) -> dict[str, Any]:
        return {**super().state(), "last": self._last}

    def restore(self, state: dict[str, Any], trainee: Trainee) -> None:
        super().restore(state, trainee)
        self._last = float(state["last"])


def _is_param(name: str) -> bool:
    """Statistics go with the parameters of their normalization."""
    return name.rpartition(".")[2] not in STATISTICS
