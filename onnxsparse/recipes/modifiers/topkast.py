"""Top-KAST pruning: one level from the start, and more places that train than the model uses (Jayakumar et al., 2020).

1. The model computes with the largest numbers, `forward_sparsity` of all being zero; gradients come to the largest of
   `backward_sparsity`, which are more. Both are chosen anew at every update, of each weight or of all together.
2. What is not used stays as it is beside the weights, and in their place while the optimizer moves them: so the
   model, its states and what is measured are as sparse as the result all the time.
3. Before a step of the optimizer what is used shrinks by `active_weight_decay` times the learning rate, what trains
   without being used by 1 / (1 - forward_sparsity) times as much. It does so before the start, too, and behind the end
   while the masks stay, as in SparseML.
4. At the end what is used is all that is left; with `leave_enabled: false` what was hidden comes back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from onnxsparse.acts.act import FinalMask, TimedAct
from onnxsparse.acts.params import Param, find
from onnxsparse.acts.trainee import Trainee
from onnxsparse.math.values import Array
from onnxsparse.patterns.unstructured import Unstructured
from onnxsparse.recipes.modifiers.masked import UNSTRUCTURED, Masked, drop_of, drops_together, keep_of
from onnxsparse.recipes.modifiers.modifier import REQUIRED, WrongOptionError, demand_from, demand_inside


@dataclass(frozen=True)
class TopKASTPruningModifier(Masked):
    """Prune at once, and train more places than are used.

    - !TopKASTPruningModifier
      start_epoch: 0.0
      end_epoch: 8.0
      update_frequency: 0.5
      forward_sparsity: 0.9
      backward_sparsity: 0.5
      params: __ALL_PRUNABLE__
    """

    name: ClassVar[str] = "TopKASTPruningModifier"

    mask_types: ClassVar[tuple[str, ...]] = (UNSTRUCTURED,)

    forward_sparsity: float = REQUIRED
    backward_sparsity: float = REQUIRED
    global_sparsity: bool = True
    leave_enabled: bool = True
    active_weight_decay: float = 1e-4

    def check(self) -> None:
        super().check()
        demand_inside("forward_sparsity", self.forward_sparsity, 0, 1)
        demand_from("backward_sparsity", self.backward_sparsity, 0)
        if self.backward_sparsity > self.forward_sparsity:
            raise WrongOptionError(
                "backward_sparsity", "more places train than are used, so it is at most forward_sparsity"
            )
        demand_from("active_weight_decay", self.active_weight_decay, 0)

    @property
    def levels(self) -> tuple[float, ...]:
        return (self.forward_sparsity,)

    def act(self) -> TwoMasks:
        return TwoMasks(self)


class TwoMasks(TimedAct):
    """A mask for the model, inside of one for its gradients; the latter is the mask of the trainee."""

    def __init__(self, options: TopKASTPruningModifier) -> None:
        super().__init__(options.called, options.span)
        self._options = options
        self._params: list[Param] = []
        self._used: dict[str, Array] = {}
        """What the model computes with: True, by tag; all of it before the start."""
        self._hidden: dict[str, Array] = {}
        """The numbers of the other places, while it lasts."""

    # -- what is known before anything runs

    def bind(self, params: Sequence[Param]) -> None:
        self._params = find(params, self._options.params, f"{self.where}: params")

    def masked(self) -> list[Param]:
        return self._params

    def remembered(self) -> list[Param]:
        return self._params

    def scales_and_biases(self) -> list[Param]:
        return [param for param in self._params if param.is_small]

    def final_masks(self) -> dict[str, FinalMask]:
        known = [param.numbers().reshape(-1) for param in self._params if param.numbers is not None]
        together, stays = self._options.global_sparsity, self._options.leave_enabled
        drops = self._drops(known, self._options.forward_sparsity)
        return {
            param.tag: FinalMask(Unstructured(), drop, None, together, stays)
            for param, drop in zip(self._params, drops)
        }

    def _drops(self, numbers: Sequence[Array], level: float) -> list[int]:
        if self._options.global_sparsity and level > 0:
            return drops_together([Unstructured()] * len(self._params), self._params, numbers, level)
        return [drop_of(Unstructured(), param, level) for param in self._params]

    def _keeps(self, numbers: Sequence[Array], level: float) -> list[Array]:
        drops = self._drops(numbers, level)
        return [keep_of(Unstructured(), *each) for each in zip(self._params, numbers, drops)]

    # -- what it does

    def update(self, trainee: Trainee, epoch: float) -> None:
        numbers = [self._whole(trainee, param) for param in self._params]
        used = self._keeps(numbers, self._options.forward_sparsity)
        trains = self._keeps(numbers, self._options.backward_sparsity) if trainee.moves else used
        for param, whole, own, mask in zip(self._params, numbers, used, trains):
            self._used[param.tag] = own
            trainee.put_for(self, param, mask)
            self._hide(trainee, param, whole)

    def _whole(self, trainee: Trainee, param: Param) -> Array:
        """All numbers, in an array of their own."""
        seen = trainee.numbers(param)
        if param.tag not in self._hidden:
            return np.array(seen)
        return np.where(self._used[param.tag], seen, self._hidden[param.tag])

    def _hide(self, trainee: Trainee, param: Param, whole: Array) -> None:
        used = self._used[param.tag]
        self._hidden[param.tag] = np.where(used, np.float32(0), whole)
        trainee.fill(param, np.where(used, whole, np.float32(0)))

    def before_move(self, trainee: Trainee) -> None:
        if self.clock.ended and not self._options.leave_enabled:
            return
        rate = trainee.rates(None)[0] * trainee.caution * self._options.active_weight_decay
        for param in self._params:
            if not trainee.held(param) and (rate or self._hidden):
                whole = self._whole(trainee, param)
                self._decay(whole, param.tag, trainee.own_mask(self, param), rate)
                trainee.fill(param, whole)

    def _decay(self, whole: Array, tag: str, mask: Array | None, rate: float) -> None:
        if tag not in self._used:
            whole -= np.float32(rate) * whole
            return
        used = self._used[tag]
        trains = ~used if mask is None else mask & ~used
        whole[used] -= np.float32(rate) * whole[used]
        whole[trains] -= np.float32(rate * (1 / (1 - self._options.forward_sparsity))) * whole[trains]

    def after_move(self, trainee: Trainee) -> None:
        for param in self._params:
            if param.tag in self._hidden and not trainee.held(param):
                self._hide(trainee, param, np.array(trainee.hidden_numbers(param)))

    def end(self, trainee: Trainee) -> None:
        for param in self._params:
            if self._options.leave_enabled:
                trainee.put_for(self, param, self._used[param.tag])
            else:
                whole = self._whole(trainee, param)
                trainee.release_for(self, param)
                trainee.fill(param, whole)
        self._hidden = {}

    # -- what a checkpoint holds

    def arrays(self) -> Mapping[str, Array]:
        kinds = {"used": self._used, "hidden": self._hidden}
        return {self._key(kind, tag): array for kind, arrays in kinds.items() for tag, array in arrays.items()}

    def load(self, arrays: Mapping[str, Array]) -> None:
        kinds = {"used": self._used, "hidden": self._hidden}
        for kind, own in kinds.items():
            own.update(
                {
                    param.tag: np.array(arrays[key])
                    for param in self._params
                    if (key := self._key(kind, param.tag)) in arrays
                }
            )

    def _key(self, kind: str, tag: str) -> str:
        return f"top-kast {self.number}/{kind}/{tag}"

    def restore(self, state: dict[str, Any], trainee: Trainee) -> None:
        super().restore(state, trainee)
        if not self.clock.started:  # begun again
            self._used, self._hidden = {}, {}
