"""Movement pruning: what training moves towards zero goes, more and more (Sanh, Wolf and Rush, 2020).

    score = sum over all steps of -0.01 * gradient * weight

1. Scores gather at every step, before the start and behind the end, too; the gradient of a step counts before the masks
   of that step are chosen. Gradients that are no numbers are left out.
2. The lowest go, by sign: a negative score is a weight that moves towards zero. What is masked keeps its score, so a
   place can come back when others fall below it; it begins at zero.
3. Among equals the later in stored order go, as in SparseML: weights that no gradient reaches have a score of zero.
4. The masks of a manager's state_dict have no scores with them: what is masked there goes first.
5. Where nothing was trained yet, as when a recipe is applied at once, scores are those of samples, if there are some;
   without any the masks go by magnitude.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from onnxsparse.acts.params import Param
from onnxsparse.acts.trainee import Trainee
from onnxsparse.math.values import Array
from onnxsparse.patterns.unstructured import Unstructured
from onnxsparse.recipes.modifiers.magnitude import Gradual, GradualPruning
from onnxsparse.recipes.modifiers.masked import keep_of

PACE = np.float32(-0.01)
LAST = np.float32(-1e6)
"""The score of a place that a checkpoint without scores has masked."""
SAMPLES = 64
"""Gradients that are taken where none came from training."""
STILL = "no gradient came before the first masks, which therefore go by magnitude"
SIGN = np.uint32(1 << 31)


@dataclass(frozen=True)
class MovementPruningModifier(GradualPruning):
    """Prune what training moves towards zero, more and more.

    - !MovementPruningModifier
      start_epoch: 0.0
      end_epoch: 40.0
      update_frequency: 1.0
      init_sparsity: 0.05
      final_sparsity: 0.85
      params: __ALL_PRUNABLE__
    """

    name: ClassVar[str] = "MovementPruningModifier"
    not_taken: ClassVar[Mapping[str, str]] = {"global_sparsity": "it prunes layer by layer"}

    def act(self) -> Movement:
        return Movement(self, self.init_sparsity, self.final_sparsity, self.inter_func, False, self.leave_enabled)


class Movement(Gradual):
    """New masks at every update, chosen by the scores."""

    by_gradients = True

    def __init__(self, *options: Any) -> None:
        super().__init__(*options)
        self._scores: dict[str, Array] = {}

    def remembered(self) -> list[Param]:
        """A place that comes back goes on with the momentum that it has, as in SparseML."""
        return self._params

    def gather(self, trainee: Trainee, epoch: float) -> None:
        self._add(trainee, {param.tag: trainee.gradient(param) for param in self._params})

    def update(self, trainee: Trainee, epoch: float) -> None:
        if not self._scores and trainee.has_samples:
            for gradients in trainee.sample_gradients(self._params, SAMPLES):
                self._add(trainee, gradients)
        if not self._scores:
            trainee.note(f"{self.where}: {STILL}")
        super().update(trainee, epoch)

    def chosen_by(self, trainee: Trainee, place: int) -> Array:
        param = self._params[place]
        if not self._scores:
            return super().chosen_by(trainee, place)
        scores = self._scores.get(param.tag)
        scores = np.zeros(param.size, np.float32) if scores is None else scores
        return ordered(scores) if isinstance(self._patterns[place], Unstructured) else raised(scores)

    def _keep(self, trainee: Trainee, place: int, drop: int) -> Array:
        pattern = self._patterns[place]
        if not (self._scores and isinstance(pattern, Unstructured)):
            return super()._keep(trainee, place, drop)
        backwards = np.ascontiguousarray(self.chosen_by(trainee, place)[::-1])
        return np.ascontiguousarray(keep_of(pattern, self._params[place], backwards, drop)[::-1])

    def _add(self, trainee: Trainee, gradients: Mapping[str, Array | None]) -> None:
        for param in self._params:
            gradient = gradients.get(param.tag)
            if gradient is not None and np.isfinite(gradient).all():
                score = self._scores.setdefault(param.tag, np.zeros(param.size, np.float32))
                score += PACE * gradient * trainee.numbers(param)

    # -- what a checkpoint holds

    def take_mask(self, param: Param, keep: Array) -> None:
        if not keep.all():
            self._scores[param.tag] = np.where(keep, np.float32(0), LAST)

    def arrays(self) -> Mapping[str, Array]:
        return {f"{self._prefix}{tag}": scores for tag, scores in self._scores.items()}

    def load(self, arrays: Mapping[str, Array]) -> None:
        start = len(self._prefix)
        self._scores = {key[start:]: np.array(one) for key, one in arrays.items() if key.startswith(self._prefix)}

    def state(self) -> dict[str, Any]:
        return {**super().state(), "scored": sorted(self._scores)}

    def restore(self, state: dict[str, Any], trainee: Trainee) -> None:
        super().restore(state, trainee)
        self._scores = {tag: self._scores[tag] for tag in state["scored"]}

    @property
    def _prefix(self) -> str:
        return f"movement {self.number}/"


def ordered(scores: Array) -> Array:
    """Numbers from 0 in the order of the scores: float32 as its bits are ordered, which float64 holds."""
    bits = (scores.astype(np.float32) + np.float32(0)).view(np.uint32)  # -0.0 is 0.0
    keys: Array = np.where(bits & SIGN, ~bits, bits | SIGN).astype(np.float64)
    return keys


def raised(scores: Array) -> Array:
    """The scores without negative ones: means of blocks keep their order."""
    made: Array = scores.astype(np.float64) - scores.min(initial=0)
    return made
