"""RigL pruning: one level from the start, with places that move by the gradient (Evci et al., 2020).

1. The sparsity is `final_sparsity` from `start_epoch` on. The weights share it by `sparsity_strategy`: the density of
   each goes with a factor, and none is above 1, so that where one would be the whole is sparser than was asked.
2. At every update t of T epochs the share f0 / 2 (1 + cos(pi t / T)) of what is kept is exchanged, f0 being
   `init_update_fraction`: the smallest numbers go, and those places grow whose gradients are the largest, of what was
   just dropped, too. They are sums of `num_grads`, taken of samples, or of the steps of a loop that has none, and of
   a run whose data come as a stream.
3. `global_sparsity` changes nothing, as in SparseML: it is the strategy that says which weight loses how much.
4. With `momentum_buffer_reset` momentum is zero at masked places before every step, so that grown ones start anew.
5. In a torch loop with samples the gradients of the step that brings new masks are dropped, as in SparseML: nothing
   moves in it. In a run of ours the step is taken, and by its gradients under the new masks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from onnxsparse.acts.act import FinalMask, TimedAct
from onnxsparse.acts.params import Param, find, named
from onnxsparse.acts.trainee import Trainee
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array
from onnxsparse.patterns.unstructured import Unstructured
from onnxsparse.recipes.modifiers.masked import UNSTRUCTURED, Masked, choice_of, demand_levels
from onnxsparse.recipes.modifiers.modifier import REQUIRED, demand_between, demand_end, demand_from, demand_known
from onnxsparse.schedules import NEVER
from onnxsparse.sparsers.mask_updates import exchanged

KERNEL, ERDOS_RENYI, UNIFORM = "erdos_renyi_kernel", "erdos_renyi", "uniform"
STRATEGIES = (KERNEL, ERDOS_RENYI, UNIFORM)
NO_AXES = "it has one axis, and RigL shares out what matrices and convolutions keep"
NO_GRADIENTS = (
    "places grow by gradients, and there are none here: train with the recipe, or give modify and apply a grad_sampler"
)
DENSE = "sparsity_strategy gives it a density of 1 or more, so it keeps everything, and the whole is sparser than asked"


@dataclass(frozen=True)
class RigLPruningModifier(Masked):
    """Prune at once, and exchange places while training.

    - !RigLPruningModifier
      start_epoch: 0.0
      end_epoch: 8.0
      update_frequency: 0.5
      final_sparsity: 0.9
      params: __ALL_PRUNABLE__
    """

    name: ClassVar[str] = "RigLPruningModifier"

    mask_types: ClassVar[tuple[str, ...]] = (UNSTRUCTURED,)

    final_sparsity: float | dict[float, tuple[str, ...]] = REQUIRED
    num_grads: int = 1
    init_update_fraction: float = 0.3
    momentum_buffer_reset: bool = True
    sparsity_strategy: str = STRATEGIES[0]
    leave_enabled: bool = True
    global_sparsity: bool = False
    grad_sampler_kwargs: dict[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        super().check()
        demand_levels(self, "final_sparsity", self.final_sparsity)
        demand_end(self)
        demand_from("num_grads", self.num_grads, 1)
        demand_between("init_update_fraction", self.init_update_fraction, 0, 1)
        demand_known("sparsity_strategy", self.sparsity_strategy, STRATEGIES)

    @property
    def levels(self) -> tuple[float, ...]:
        last = self.final_sparsity
        return tuple(last) if isinstance(last, Mapping) else (last,)

    def act(self) -> Exchanging:
        return Exchanging(self)


def sparsities(shapes: Sequence[tuple[int, ...]], sparsity: float, strategy: str) -> list[float]:
    """What each of some weights loses.

    With the factors d and the sizes n, the density of a weight is d (1 - sparsity) sum(n) / sum(d n), and 1 at most.
    That is SparseML's rule; the allocation `erk` shares what is above 1 among the other weights.
    """
    factors = [_factor(shape, strategy) for shape in shapes]
    sizes = [math.prod(shape) for shape in shapes]
    whole = sum(factor * size for factor, size in zip(factors, sizes))
    unit = (1 - sparsity) * sum(sizes) / whole if whole else 0.0
    return [min(max(1 - unit * factor, 0.0), 1.0) for factor in factors]


def _factor(shape: tuple[int, ...], strategy: str) -> float:
    sides = shape[:2] if strategy == ERDOS_RENYI else shape
    return 1.0 if strategy == UNIFORM else sum(sides) / max(1, math.prod(sides))


class Exchanging(TimedAct):
    """Masks of one level, whose places move."""

    by_gradients = True

    def __init__(self, options: RigLPruningModifier) -> None:
        super().__init__(options.called, options.span)
        self._options = options
        self._levels: dict[Param, float] = {}
        self._left: dict[str, str] = {}
        self._gains: dict[str, Array] = {}

    # -- what is known before anything runs

    def bind(self, params: Sequence[Param]) -> None:
        found: dict[Param, float] = {}
        for level, meant in self._meant(params):
            names = [param for param in meant if param not in found]
            shared = sparsities([param.shape for param in names], level, self._options.sparsity_strategy)
            found.update(zip(names, shared))
        self._left.update({param.tag: DENSE for param, level in found.items() if level == 0})
        self._levels = {param: found[param] for param in params if param in found}

    def _meant(self, params: Sequence[Param]) -> list[tuple[float, list[Param]]]:
        """The weights of each level, which share it."""
        options = self._options
        if not isinstance(options.final_sparsity, Mapping):
            return [(options.final_sparsity, self._fitting(params, options.params, f"{self.where}: params"))]
        where = f"{self.where}: final_sparsity"
        return [(level, self._fitting(params, names, where)) for level, names in options.final_sparsity.items()]

    def _fitting(self, params: Sequence[Param], wanted: Any, where: str) -> list[Param]:
        meant, own = find(params, wanted, where), named(params, wanted, where)
        flat = [param for param in meant if len(param.shape) < 2]
        for param in flat:
            if param.tag in own or len(flat) == len(meant):
                raise OptionError(f"{self.where}: {param.name} cannot be pruned: {NO_AXES}")
            self._left[param.tag] = NO_AXES
        return [param for param in meant if len(param.shape) > 1]

    def left_dense(self) -> dict[str, str]:
        return self._left

    def masked(self) -> list[Param]:
        return list(self._levels)

    def remembered(self) -> list[Param]:
        return list(self._levels)

    def final_masks(self) -> dict[str, FinalMask]:
        return {
            param.tag: FinalMask(Unstructured(), self._drop(param), stays=self._options.leave_enabled)
            for param, level in self._levels.items()
            if level > 0
        }

    def _drop(self, param: Param) -> int:
        return math.floor(self._levels[param] * param.size + 0.5)

    # -- when it acts: with the gradients of a user's step, and in a run before the loss, which takes its own of samples

    def before_step(self, trainee: Trainee, step: int) -> None:
        epoch = trainee.epoch_at(step)
        if not trainee.has_samples and self._is_near(trainee, epoch):
            self._take(trainee, 1)  # of the batch of this step
        self.before(trainee, epoch)

    def before_update(self, trainee: Trainee, step: int) -> None:
        """Its samples would take the place of the gradients that are there."""

    def samples(self, trainee: Trainee) -> bool:
        return trainee.has_samples

    def gather(self, trainee: Trainee, epoch: float) -> None:
        if not trainee.has_samples and self._is_near(trainee, epoch):
            found = ((param.tag, trainee.dense_gradient(param)) for param in self._levels)
            self._add({tag: gradient for tag, gradient in found if gradient is not None})

    def _is_near(self, trainee: Trainee, epoch: float) -> bool:
        """Whether a step is one of the last `num_grads` until the next update, that one included."""
        clock, span = self.clock, self.span
        due = clock.last + span.frequency if clock.started and span.frequency != NEVER else span.start
        ahead = (self._options.num_grads - 0.5) / trainee.per_epoch
        return not clock.ended and epoch + ahead >= min(due, span.end)

    def _add(self, gradients: Mapping[str, Array]) -> None:
        for tag, gradient in gradients.items():
            self._gains[tag] = self._gains[tag] + gradient if tag in self._gains else np.array(gradient)

    # -- what it does

    def begin(self, trainee: Trainee, epoch: float) -> None:
        trainee.watch(self.masked())

    def update(self, trainee: Trainee, epoch: float) -> None:
        share = self._options.init_update_fraction * 0.5 * (1 + math.cos(math.pi * self.span.progress(epoch)))
        if share > 0:
            self._sample(trainee)
        if trainee.has_samples:
            trainee.discard_gradients()
        for param in self._levels:
            trainee.put_for(self, param, self._exchanged(trainee, param, share))
        self._gains = {}

    def _sample(self, trainee: Trainee) -> None:
        if trainee.has_samples:
            wanted = self._options.num_grads
            self.tell_few(trainee, self._take(trainee, wanted), wanted)
        if not self._gains:
            raise OptionError(f"{self.where}: {NO_GRADIENTS}")

    def _take(self, trainee: Trainee, count: int) -> int:
        """Add gradients of samples up; how many there were."""
        params, taken = self.masked(), 0
        with trainee.opened(params):
            for found in trainee.sample_gradients(params, count, self._options.grad_sampler_kwargs):
                self._add(found)
                taken += 1
        return taken

    def _exchanged(self, trainee: Trainee, param: Param, share: float) -> Array:
        """The mask by what is there and by gradients; by what is there alone, where no gradient comes."""
        numbers, kept, gains = trainee.numbers(param), trainee.own_mask(self, param), self._gains.get(param.tag)
        if gains is None:
            gains, share = np.zeros(param.size, np.float32), 0.0
        drop, level = self._drop(param), self._levels[param]
        left = param.size - drop
        sure = math.floor((1 - (level + (1 - level) * share)) * param.size + 0.5)  # of the level, not of the count
        kept = np.ones(param.size, bool) if kept is None else kept
        return exchanged(numbers, kept, gains, choice_of(drop), (left - sure) / max(1, left), return_at_once=True)

    def before_move(self, trainee: Trainee) -> None:
        for param in self._levels if self._options.momentum_buffer_reset else ():
            trainee.forget_masked_momentum(param)

    def end(self, trainee: Trainee) -> None:
        trainee.watch(())
        if not self._options.leave_enabled:
            for param in self._levels:
                trainee.release_for(self, param)

    # -- what a checkpoint holds

    def arrays(self) -> Mapping[str, Array]:
        return {f"{self._prefix}{tag}": gains for tag, gains in self._gains.items()}

    def load(self, arrays: Mapping[str, Array]) -> None:
        start = len(self._prefix)
        self._gains = {key[start:]: np.array(one) for key, one in arrays.items() if key.startswith(self._prefix)}

    def state(self) -> dict[str, Any]:
        return {**super().state(), "summed": sorted(self._gains), "told": self.told_few}

    def restore(self, state: dict[str, Any], trainee: Trainee) -> None:
        super().restore(state, trainee)
        self._gains = {tag: self._gains[tag] for tag in state.get("summed", ())}
        self.told_few = bool(state.get("told"))
        if self.clock.active:
            trainee.watch(self.masked())

    @property
    def _prefix(self) -> str:
        return f"rigl {self.number}/"
