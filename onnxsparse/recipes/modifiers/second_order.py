"""OBS and M-FAC pruning: what a model of second order says the loss needs least goes, more and more.

With F the damped empirical Fisher matrix in blocks along the diagonal (see `math.fisher`), pruning weight i costs the
loss w_i^2 / (2 (F^-1)_ii), and the weights that stay are moved against it, by -F^-1 e_i w_i / (F^-1)_ii for each.

1. Gradients are those of samples, taken anew at each update, or, where there are no samples, those of the last steps.
2. OBS (Kurtic et al., 2022) has a matrix for each weight, M-FAC (Frantar et al., 2021) one over what is kept of all
   weights together, one after the other.
3. What is masked stays masked. Where no gradient has come the order is that of magnitude.
4. Blocks are neighbours in the order of the numbers of a torch layer: (out, in) of matrices, whichever way they are
   stored, and the stored order of convolutions; for `block4` in (group, out, tap, in), in which the four
   of a block are neighbours.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from onnxsparse.acts.params import Param
from onnxsparse.acts.trainee import Trainee
from onnxsparse.errors import OptionError
from onnxsparse.math.fisher import Inverse, Rows, Sums
from onnxsparse.math.values import Array
from onnxsparse.recipes.modifiers.magnitude import Gradual, GradualPruning
from onnxsparse.recipes.modifiers.masked import BLOCK4
from onnxsparse.recipes.modifiers.modifier import WrongOptionError, demand_from, demand_positive


@dataclass(frozen=True)
class MFACPruningModifier(GradualPruning):
    """Prune by a loss of second order from the last gradients, more and more.

    - !MFACPruningModifier
      start_epoch: 0.0
      end_epoch: 40.0
      update_frequency: 1.0
      init_sparsity: 0.05
      final_sparsity: 0.85
      params: __ALL_PRUNABLE__
    """

    name: ClassVar[str] = "MFACPruningModifier"

    global_sparsity: bool = False
    num_grads: int | dict[float, int] = 64
    damp: float = 1e-5
    fisher_block_size: int | None = 2000
    grads_device: str | int = "cpu"
    num_pages: int = 1
    available_devices: tuple[str, ...] | None = None
    use_gradient_buffering: bool | None = None
    grad_sampler_kwargs: dict[str, Any] | None = None

    def check(self) -> None:
        super().check()
        counts = self.num_grads if isinstance(self.num_grads, dict) else {0.0: self.num_grads}
        if 0.0 not in counts:
            raise WrongOptionError("num_grads", "counts by sparsity begin at 0.0")
        demand_from("num_grads", min(counts.values()), 1)
        demand_from("num_pages", self.num_pages, 1)
        demand_from("fisher_block_size", self.fisher_block_size or 1, 1)
        demand_positive("damp", self.damp)

    def act(self) -> MatrixFree:
        return MatrixFree(self)


@dataclass(frozen=True)
class OBSPruningModifier(GradualPruning):
    """Prune by a loss of second order, more and more.

    - !OBSPruningModifier
      start_epoch: 0.0
      end_epoch: 40.0
      update_frequency: 1.0
      init_sparsity: 0.05
      final_sparsity: 0.85
      params: __ALL_PRUNABLE__
    """

    name: ClassVar[str] = "OBSPruningModifier"

    global_sparsity: bool = True
    num_grads: int = 1024
    damp: float = 1e-7
    fisher_block_size: int = 1
    grad_sampler_kwargs: dict[str, Any] | None = None
    num_recomputations: int = 1

    def check(self) -> None:
        super().check()
        for option in ("num_grads", "fisher_block_size", "num_recomputations"):
            demand_from(option, getattr(self, option), 1)
        demand_positive("damp", self.damp)

    def act(self) -> Surgeon:
        return Surgeon(self)


# -- what both do

SIDE = 4
"""Neighbours of a block of `block4`."""
EPSILON = float(np.finfo(np.float32).eps)
MOST_BYTES = 64 << 30
AT_ONCE = 16
"""Gradients of samples that are added up together."""
BY_MAGNITUDE = ", so the masks go by magnitude"


class SecondOrder(Gradual):
    """New masks at every update, by what pruning costs, and weights that make up for it."""

    by_gradients = True

    def __init__(self, options: MFACPruningModifier | OBSPruningModifier) -> None:
        super().__init__(
            options, options.init_sparsity, options.final_sparsity, options.inter_func, options.global_sparsity,
            options.leave_enabled,
        )  # fmt: skip
        self._damp, self._block, self._options = options.damp, options.fisher_block_size, options.grad_sampler_kwargs
        self._reached: list[float] = []
        self._costs: list[Array] = []
        self._loaded: Mapping[str, Array] = {}

    # -- gradients

    def samples(self, trainee: Trainee) -> bool:
        """Whether gradients are those of samples."""
        return trainee.has_samples

    @abstractmethod
    def count(self) -> int:
        """How many gradients are wanted now."""

    @abstractmethod
    def fresh(self, trainee: Trainee) -> None:
        """Forget the gradients."""

    @abstractmethod
    def take(self, trainee: Trainee, gradients: Sequence[Sequence[Array]]) -> None:
        """Some gradients of all parameters."""

    @property
    @abstractmethod
    def seen(self) -> int:
        """How many gradients there were since the last update."""

    def before_step(self, trainee: Trainee, step: int) -> None:
        if self.samples(trainee):
            self.before(trainee, trainee.epoch_at(step))

    def before_update(self, trainee: Trainee, step: int) -> None:
        if not self.samples(trainee):
            super().before_update(trainee, step)

    def gather(self, trainee: Trainee, epoch: float) -> None:
        if self.clock.ended or self.samples(trainee):
            return
        found = self._of_all({param.tag: trainee.gradient(param) for param in self._params})
        if found is not None:
            self.take(trainee, [found])

    def _of_all(self, gradients: Mapping[str, Array | None]) -> list[Array] | None:
        """Of all parameters; zeros for what none comes to, and nothing where none has any or one is no number."""
        found = [gradients.get(param.tag) for param in self._params]
        if all(one is None for one in found) or not all(one is None or np.isfinite(one).all() for one in found):
            return None
        return [np.zeros(param.size, np.float32) if one is None else one for param, one in zip(self._params, found)]

    def _sample(self, trainee: Trainee) -> None:
        self.fresh(trainee)
        waiting: list[list[Array]] = []
        for gradients in trainee.sample_gradients(self._params, self.count(), self._options):
            found = self._of_all(gradients)
            waiting += [] if found is None else [[np.array(one) for one in found]]
            if len(waiting) == AT_ONCE:
                self.take(trainee, waiting)
                waiting = []
        if waiting:
            self.take(trainee, waiting)

    # -- masks

    def update(self, trainee: Trainee, epoch: float) -> None:
        goal = self.levels_at(self.span.progress(epoch))
        before = self._reached or [0.0] * len(goal)
        for share in self.shares():
            if self.samples(trainee):
                self._sample(trainee)
            self.tell_few(trainee, self.seen, self.count(), BY_MAGNITUDE)
            numbers, kept = [trainee.numbers(param) for param in self._params], self._kept(trainee)
            self._costs = [kept_first(cost, keep) for cost, keep in zip(self.weigh(numbers, kept), kept)]
            levels = [share * (last - first) + first for first, last in zip(before, goal)]
            self.prune(trainee, goal if share == 1 else levels)
        self._reached, self._costs = goal, []
        self.fresh(trainee)

    def shares(self) -> Sequence[float]:
        """The parts of the way of one update, each with gradients of its own where they are of samples."""
        return (1.0,)

    def chosen_by(self, trainee: Trainee, place: int) -> Array:
        return self._costs[place]

    def put(self, trainee: Trainee, keeps: Iterable[Array]) -> None:
        made, kept = list(keeps), self._kept(trainee)
        numbers = [trainee.numbers(param) for param in self._params]
        gone = [before & ~keep for before, keep in zip(kept, made)]
        for param, keep, moved in zip(self._params, made, self.compensated(numbers, gone)):
            trainee.fill(param, np.where(keep, moved, 0).astype(np.float32))
            trainee.put_for(self, param, keep)

    @abstractmethod
    def weigh(self, numbers: Sequence[Array], kept: Sequence[Array]) -> Iterable[Array]:
        """What pruning each number of each parameter would cost."""

    @abstractmethod
    def compensated(self, numbers: Sequence[Array], gone: Sequence[Array]) -> Iterable[Array]:
        """The numbers of each parameter, moved against what goes now."""

    def _kept(self, trainee: Trainee) -> list[Array]:
        masks = [trainee.own_mask(self, param) for param in self._params]
        return [np.ones(param.size, bool) if one is None else one for param, one in zip(self._params, masks)]

    def _demand_memory(self, numbers: int) -> None:
        if 4 * numbers > MOST_BYTES:
            raise OptionError(
                f"{self.where}: what it keeps of gradients would take {4 * numbers / 2**30:.0f} GB; take a smaller "
                "fisher_block_size for OBS, fewer num_grads for M-FAC, or fewer params"
            )

    # -- what a checkpoint holds

    @property
    def _prefix(self) -> str:
        return f"fisher {self.number}/"

    def load(self, arrays: Mapping[str, Array]) -> None:
        self._loaded = {key[len(self._prefix) :]: one for key, one in arrays.items() if key.startswith(self._prefix)}

    def state(self) -> dict[str, Any]:
        return {**super().state(), "reached": self._reached, "seen": self.seen, "told": self.told_few}

    def restore(self, state: dict[str, Any], trainee: Trainee) -> None:
        super().restore(state, trainee)
        self._reached, self.told_few = [float(one) for one in state["reached"]], bool(state["told"])
        self._take_over(int(state["seen"]))
        self._loaded = {}

    @abstractmethod
    def _take_over(self, seen: int) -> None:
        """So many gradients, as they were loaded."""


def kept_first(costs: Array, keep: Array) -> Array:
    """Costs above zero of what is kept, and zero of what is masked: that goes again before anything else."""
    return np.where(keep, np.maximum(costs, np.finfo(np.float64).tiny), 0.0)


class Surgeon(SecondOrder):
    """OBS: sums of outer products for each weight."""

    def __init__(self, options: OBSPruningModifier) -> None:
        super().__init__(options)
        self._count, self._recomputations = options.num_grads, options.num_recomputations
        self._fours = options.mask_type == BLOCK4
        if self._fours:
            self._block = -(-options.fisher_block_size // SIDE) * SIDE
        self._sums: list[Sums] = []

    def bind(self, params: Sequence[Param]) -> None:
        super().bind(params)
        self._layouts = [Layout(param, SIDE if self._fours else 1) for param in self._params]
        self._demand_memory(sum(one.size * min(one.size, self._block or one.size) for one in self._layouts))

    def count(self) -> int:
        return self._count

    @property
    def seen(self) -> int:
        return self._sums[0].seen if self._sums else 0

    def shares(self) -> Sequence[float]:
        return [share / self._recomputations for share in range(1, self._recomputations + 1)]

    def fresh(self, trainee: Trainee) -> None:
        self._sums = []

    def take(self, trainee: Trainee, gradients: Sequence[Sequence[Array]]) -> None:
        self._sums = self._sums or self._empty()
        for sums, layout, rows in zip(self._sums, self._layouts, zip(*gradients)):
            sums.add(np.stack([layout.laid(row) for row in rows]))

    def _empty(self) -> list[Sums]:
        assert self._block is not None
        return [Sums(one.size, self._block, self._damp, self._count) for one in self._layouts]

    def weigh(self, numbers: Sequence[Array], kept: Sequence[Array]) -> Iterator[Array]:
        self._sums = self._sums or self._empty()
        self._before = kept
        for layout, sums, own, keep in zip(self._layouts, self._sums, numbers, kept):
            weights, inverse = layout.laid(own).astype(np.float64), sums.inverse(layout.laid(keep))
            if self._fours:
                cells = weights.reshape(-1, SIDE, 1)
                costs = (cells * np.linalg.solve(inverse.cells(SIDE), cells)).sum(axis=(1, 2)) / 2
                yield layout.stored(np.repeat(costs, SIDE))
            else:
                yield layout.stored(np.square(weights) / (2 * inverse.diagonal() + EPSILON))

    def compensated(self, numbers: Sequence[Array], gone: Sequence[Array]) -> Iterator[Array]:
        every = zip(self._layouts, self._sums, numbers, gone, self._before)
        for layout, sums, own, leaving, keep in every:
            # Made again rather than kept since `weigh`: those of all weights at once are several times their sums.
            weights, inverse = layout.laid(own).astype(np.float64), sums.inverse(layout.laid(keep))
            if self._fours:
                pulls = np.linalg.solve(inverse.cells(SIDE), weights.reshape(-1, SIDE, 1)).reshape(-1)
            else:
                pulls = weights / (inverse.diagonal() + EPSILON)
            yield layout.stored(weights - inverse.times(pulls * layout.laid(leaving)))

    def arrays(self) -> Mapping[str, Array]:
        return {f"{self._prefix}{param.tag}": sums.total for param, sums in zip(self._params, self._sums)}

    def _take_over(self, seen: int) -> None:
        self._sums = self._empty() if seen else []
        for param, sums in zip(self._params, self._sums):
            sums.total[...], sums.seen = self._loaded[param.tag], seen


class MatrixFree(SecondOrder):
    """M-FAC: the last gradients of what is kept, of all weights together."""

    def __init__(self, options: MFACPruningModifier) -> None:
        super().__init__(options)
        self._counts, self._buffering = options.num_grads, options.use_gradient_buffering
        self._rows: Rows | None = None

    def bind(self, params: Sequence[Param]) -> None:
        super().bind(params)
        self._layouts = [Layout(param, 1) for param in self._params]
        most = max(self._counts.values()) if isinstance(self._counts, dict) else self._counts
        self._demand_memory(most * sum(param.size for param in self._params))

    def demand_samples(self, has_samples: bool) -> None:
        if self._buffering is False and not has_samples:
            raise OptionError(
                f"{self.where}: use_gradient_buffering: false needs samples to take gradients of: pass grad_sampler, "
                "or leave the option out"
            )

    def samples(self, trainee: Trainee) -> bool:
        self.demand_samples(trainee.has_samples)
        return trainee.has_samples and self._buffering is not True

    def count(self) -> int:
        """By the mean level so far the first count whose sparsity is not below it, as SparseML picks it."""
        if isinstance(self._counts, int):
            return self._counts
        level = float(np.mean(self._reached)) if self._reached else 0.0
        known = sorted(self._counts)
        return self._counts[next((one for one in known if one >= level), known[-1])]

    @property
    def seen(self) -> int:
        return 0 if self._rows is None else self._rows.seen

    def fresh(self, trainee: Trainee) -> None:
        self._rows = None

    def take(self, trainee: Trainee, gradients: Sequence[Sequence[Array]]) -> None:
        kept = self._kept(trainee)
        if self._rows is None:
            self._rows = self._empty(kept)
        for one in gradients:
            self._rows.add(self._joined(one, kept))

    def _empty(self, kept: Sequence[Array]) -> Rows:
        return Rows(sum(int(np.count_nonzero(keep)) for keep in kept), self.count())

    def _joined(self, arrays: Sequence[Array], kept: Sequence[Array]) -> Array:
        """What is kept of all parameters."""
        every = zip(self._layouts, arrays, kept)
        return np.concatenate([layout.laid(one)[layout.laid(keep)] for layout, one, keep in every])

    def _apart(self, joined: Array, kept: Sequence[Array]) -> Iterator[Array]:
        """The same back, with zeros in the other places."""
        start = 0
        for layout, keep in zip(self._layouts, kept):
            inside = layout.laid(keep)
            stop = start + int(np.count_nonzero(inside))
            laid = np.zeros(inside.size)
            laid[inside] = joined[start:stop]
            start = stop
            yield layout.stored(laid)

    def weigh(self, numbers: Sequence[Array], kept: Sequence[Array]) -> Iterable[Array]:
        rows = self._empty(kept) if self._rows is None else self._rows
        self._inverse: Inverse = rows.inverse(self._block, self._damp)
        self._before, self._diagonal = kept, self._inverse.diagonal()
        weights = self._joined(numbers, kept).astype(np.float64)
        return self._apart(np.square(weights) / (2 * self._diagonal), kept)

    def compensated(self, numbers: Sequence[Array], gone: Sequence[Array]) -> Iterator[Array]:
        leaving = self._joined(numbers, self._before) * self._joined(gone, self._before)
        moves = self._apart(self._inverse.times(leaving / self._diagonal), self._before)
        return (own.astype(np.float64) - move for own, move in zip(numbers, moves))

    def arrays(self) -> Mapping[str, Array]:
        return {} if self._rows is None else {f"{self._prefix}rows": self._rows.rows}

    def _take_over(self, seen: int) -> None:
        self._rows = None
        if seen:
            rows = self._loaded["rows"]
            self._rows = Rows(rows.shape[1], len(rows))
            self._rows.rows[...], self._rows.seen = rows, seen


class Layout:
    """The order of a weight in its blocks; with a side, inputs are neighbours, in whole blocks of so many."""

    def __init__(self, param: Param, side: int) -> None:
        self._param, self._side = param, side
        # Matrices alone are stored either way round; convolutions are in a file as they are in torch.
        self._as_stored = side == 1 and len(param.shape) != 2
        group, out, inputs, taps = param.shape4 if param.matrix is not None else (1, 1, param.size, 1)
        self._view = (group, out, inputs, taps)
        self._inputs = inputs + -inputs % side
        self.size = group * out * taps * self._inputs

    def laid(self, flat: Array) -> Array:
        """Numbers in stored order, in the order of the blocks."""
        if self._as_stored or self._param.matrix is None:
            return flat.reshape(-1)
        view = self._param.matrix(flat.reshape(-1))
        if self._side == 1:
            return view.reshape(-1)
        rows = view.transpose(0, 1, 3, 2)
        return np.pad(rows, ((0, 0), (0, 0), (0, 0), (0, self._inputs - rows.shape[3]))).reshape(-1)

    def stored(self, laid: Array) -> Array:
        """The other way round."""
        if self._as_stored or self._param.restore is None:
            return laid.reshape(-1)
        group, out, inputs, taps = self._view
        if self._side > 1:
            laid = np.ascontiguousarray(
                laid.reshape(group, out, taps, self._inputs)[..., :inputs].transpose(0, 1, 3, 2)
            )
        return self._param.restore(laid.reshape(self._view)).reshape(-1)
