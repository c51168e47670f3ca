"""The sweep through a model: layer by layer in the order of the graph, masks are chosen and the kept weights refitted.

1. The inputs of a layer are those that the net pruned so far gives it; its outputs are held to those of the dense net.
2. Statistics are additive moments, collected batch by batch; no activation is kept but what later nodes read.
3. A recurrent layer is refitted to the states that it gives itself then: see `own_states`.
4. Some batches are held out: where the refitted layer is worse on them than the same mask without a refit, the dense
   numbers stay under the mask, and its row says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from onnxsparse.calibration.batch_norms import PairMoments, batch_norms, re_estimated
from onnxsparse.calibration.layers import CalibratedLayer
from onnxsparse.calibration.moments import Moments, Samples, dense_moments, run_before, swept_moments
from onnxsparse.calibration.new_numbers import NewNumbers
from onnxsparse.calibration.own_states import Candidate, OwnStates, feeds_itself
from onnxsparse.calibration.sensitivity import Sensitivity
from onnxsparse.calibration.streams import Cut, Store, Stream
from onnxsparse.errors import ModelError
from onnxsparse.math.values import Array
from onnxsparse.scores import Obs, Score
from onnxsparse.solvers.quadratic import Quadratic, mean_errors
from onnxsparse.solvers.rounds import Fitted, Layer
from onnxsparse.solvers.solver import LeastSquares, Solver

RIDGE = 1e-2
"""Of the mean of the diagonal of a layer's Gram matrix: how much the refit holds to the dense weights."""
ROUNDS = 12
"""To the level of a recurrent layer. What it gives moves by a fifth less than after five."""
FLOOR = 1e-6
"""Outputs that vary less than such a part of the one that varies most count as if they varied so much."""


@dataclass(frozen=True, eq=False)
class Swept:
    """One layer after the sweep. Errors are those of its outputs, as shares of what they vary."""

    layer: CalibratedLayer
    masks: Mapping[str, Array]
    """What is kept of each weight, flat in stored order."""
    error: float
    unfitted: float
    """The error of the same mask over the dense numbers."""
    fell_back: bool
    solved: tuple[str, ...]
    done: str
    """What was done to the kept numbers; nothing where they stay."""
    still: int = 0
    """Inputs that never vary."""
    rows: int = 0
    """Positions of the samples that it was fitted to, if they are fewer than its inputs."""
    products: float = 0.0
    """Multiply-accumulates that it takes for these samples, as if it were dense."""


class Sweep:
    """A sweep on its way: both nets, and the new numbers so far, by the name of the stored tensor."""

    def __init__(
        self,
        cut: Cut,
        layers: Sequence[CalibratedLayer],
        samples: Samples,
        sensitivity: Sensitivity,
        store: Store,
        solver: Solver | None = None,
        score: Score | None = None,
        ridge: float = RIDGE,
    ) -> None:
        self._solver, self._score, self._ridge = solver or LeastSquares(), score or Obs(), ridge
        self._samples, self._sensitivity = samples, sensitivity
        self.numbers = NewNumbers(store.folder)
        self._dense, self._pruned = Stream(cut, samples.feeds, store), Stream(cut, samples.feeds, store, self.numbers)
        self._states = OwnStates(self._dense, self._pruned, samples, store)
        self._norms = list(batch_norms(cut, cut.tensors))
        several = [layer for layer in layers if len(layer.places) > 1]
        self._later = dict(dense_moments(cut, several, samples, store, later=True)) if several else {}

    def skip(self, layer: CalibratedLayer) -> None:
        """Go on behind a layer whose numbers are known from an earlier run; what comes before it runs."""
        self._norms = [norm for norm in self._norms if norm.place >= layer.place]
        run_before(layer, self._dense, self._pruned)
        self._later.pop(layer, None)

    def layer(self, layer: CalibratedLayer, drops: Sequence[int]) -> Swept:
        """Prune one layer by so many units of each of its weights, and refit it."""
        self.normalise(layer.place)
        moments = swept_moments(layer, self._dense, self._pruned, self._samples, self._sensitivity)
        if layer in self._later:
            moments.merge(self._later.pop(layer))
        problem = self._problem(layer, moments)
        fitted = self._solver.solve(problem, [one.part for one in layer.parts], drops, self._score, False)
        if isinstance(self._solver, LeastSquares) and feeds_itself(layer):
            first = Candidate(problem, fitted, moments)
            best = self._states.better(layer, first, partial(self._problem, layer), self.numbers)
            problem, fitted, moments = best.problem, best.fitted, best.moments
        choices = self._choices(problem, layer, fitted, moments.held() or problem.blocks)
        fell_back = bool(layer.held) or not choices[0].cost <= choices[1].cost
        self.numbers.update(choices[fell_back].numbers)
        masks = {one.weight.name: one.kept(fitted.mask[:, one.part.columns]) for one in layer.parts if one.row}
        whole = choices[2].cost or 1.0
        costs, how = [one.cost / whole for one in choices], (fitted.solved, self._solver.does)
        still = min(int(block.still.sum()) for block in problem.blocks)
        rows = min(block.count for block in problem.blocks)
        few = rows if rows < layer.shape[1] else 0
        return Swept(layer, masks, costs[fell_back], costs[1], fell_back, *how, still, few, moments.products)

    def _problem(self, layer: CalibratedLayer, moments: Moments) -> Layer:
        problem = problem_of(layer, moments.fit(), self._sensitivity.rows.get(layer), self._ridge)
        return replace(problem, count=ROUNDS) if feeds_itself(layer) else problem

    def normalise(self, place: int | None = None) -> None:
        """Re-estimate the statistics of the normalisations before a node that are not done, or of all that are left.
        A solver that leaves numbers as they are leaves them, too."""
        if not self._solver.does:
            return
        while self._norms and (place is None or self._norms[0].place < place):
            norm, found = self._norms.pop(0), [PairMoments(), PairMoments()]
            values = zip(self._dense.values([norm.value]), self._pruned.values([norm.value]))
            for batch, (dense, pruned) in enumerate(values):
                found[self._samples.is_held(batch)].add(dense[norm.value], pruned[norm.value])
            judge = found[1] if found[1].count else found[0]
            self.numbers.update(re_estimated(norm, found[0], judge, self.numbers))

    def _choices(
        self, problem: Layer, layer: CalibratedLayer, fitted: Fitted, judged: Sequence[Quadratic]
    ) -> list[_Choice]:
        """Refitted, only pruned, and all zero: their costs as the file would store them."""
        plain, still, none = np.where(fitted.mask, problem.dense, 0.0), np.zeros(len(problem.dense)), fitted.rows * 0.0
        found = []
        for rows, bias in ((fitted.rows, fitted.bias), (plain, still), (none, problem.bias(none))):
            numbers = layer.numbers(rows, bias, self.numbers)
            found.append(_Choice(numbers, _cost(problem, judged, layer.matrix(numbers), bias)))
        return found


@dataclass(frozen=True, eq=False)
class _Choice:
    """What a layer may become, and what that costs."""

    numbers: Mapping[str, Array]
    cost: float


def _cost(problem: Layer, blocks: Sequence[Quadratic], rows: Array, bias: Array) -> float:
    return float(problem.sensitivity @ mean_errors(blocks, rows, bias))


def problem_of(
    layer: CalibratedLayer, blocks: Sequence[Quadratic], sensitivity: Array | None, ridge: float = RIDGE
) -> Layer:
    """A layer as numbers; without a sensitivity every output counts by what it varies."""
    if not all(block.finite for block in blocks):
        raise ModelError(
            f"the inputs of {layer.called} have no finite moments on these samples: look for numbers that overflow, or "
            "leave it out by --exclude"
        )
    if sensitivity is None:
        energy = np.zeros(layer.shape[0])
        for block in blocks:
            energy[block.outputs] += block.energy
        sensitivity = 1.0 / np.maximum(energy, FLOOR * energy.max(initial=0.0) or 1.0)
    return Layer(layer.matrix(), blocks, sensitivity, ridge)


__all__ = ["Sweep", "Swept", "problem_of"]
