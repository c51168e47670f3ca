"""Sensitivity curves: what each layer alone costs the outputs of the model when less and less of it is kept.

On the inputs of the dense net every layer is pruned further and further, each time refitted. What the error that is
left does to the outputs of the model is a point of its curve: by the gradients of these, or, for layers that no
gradient comes to, by a run of the rest of the model. Both are in one unit.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from onnxsparse import progress
from onnxsparse.allocations.curves import Curve
from onnxsparse.calibration.layers import CalibratedLayer
from onnxsparse.calibration.moments import Moments, Samples, dense_moments
from onnxsparse.calibration.moves import Outputs
from onnxsparse.calibration.sensitivity import Moves, Sensitivity
from onnxsparse.calibration.streams import Cut, Store
from onnxsparse.calibration.sweep import problem_of
from onnxsparse.math.values import Array
from onnxsparse.patterns.nm import NOfM
from onnxsparse.patterns.unstructured import Unstructured
from onnxsparse.planning.plan import Plan, PlanRow
from onnxsparse.solvers import jobs
from onnxsparse.solvers.choosing import Part, goals, groups_of, keep_shares
from onnxsparse.solvers.least_squares import EXACT
from onnxsparse.solvers.rounds import Fitted, Layer, rounds
from onnxsparse.solvers.solver import last

LARGEST, SMALLEST, POINTS = 0.6, 0.01, 9
"""The shares kept at the two ends of a curve, and how many points it has."""
LARGE, OF_LARGE, FEWER = 400, 0.3, 6
"""From so many inputs on a curve begins later, and has fewer points."""


WAVE, WAITING = 4, 1 << 28
"""So many layers for each process are handed out at a time, if what is known of them takes no more bytes than this."""


def shares_of(inputs: int) -> list[float]:
    """Which shares are looked at, by the number of inputs of a layer."""
    top, points = (OF_LARGE, FEWER) if inputs > LARGE else (LARGEST, POINTS)
    return [float(share) for share in np.geomspace(top, SMALLEST, points)]


@dataclass(frozen=True, eq=False)
class LayersOnSamples:
    """Layers of a model on the inputs that the dense net gives them, and what is known of its outputs."""

    cut: Cut
    layers: Sequence[CalibratedLayer]
    samples: Samples
    sensitivity: Sensitivity
    store: Store

    def moments(self, known: Container[CalibratedLayer] = ()) -> Iterator[tuple[CalibratedLayer, Moments]]:
        return dense_moments(self.cut, self.layers, self.samples, self.store, False, self.sensitivity, known)

    def problem(self, layer: CalibratedLayer, moments: Moments) -> Layer:
        return problem_of(layer, moments.fit(), self.sensitivity.rows.get(layer))

    def measured(self) -> Measured:
        return Measured(self.cut, self.samples, self.store)


Found = Callable[[CalibratedLayer, Curve], None]


def curves_of(
    given: LayersOnSamples,
    known: Mapping[CalibratedLayer, Curve] | None = None,
    found: Found | None = None,
) -> list[Curve]:
    """The curve of each layer, in their order; `known` ones are taken as they are, and each new one is told `found`."""
    layers = given.layers
    left = [layer for layer in layers if layer not in (known or {})]
    if not left:
        return [(known or {})[layer] for layer in layers]
    curves = _Curves(dict(known or {}), sum(map(work_of, left)), found, len(layers))
    measured = given.measured()
    for layer, moments in given.moments(known or ()):
        problem = given.problem(layer, moments)
        if moments.probe is not None and moments.probe.wanted:
            curves.predict(layer, problem, moments.probe.moves())
        else:
            curves.add(layer, errors_of(problem, layer_parts(layer), partial(measured, layer, problem)))
    curves.flush()
    return [curves.known[layer] for layer in layers]


def layer_parts(layer: CalibratedLayer) -> list[Part]:
    return [one.part for one in layer.parts]


def work_of(layer: CalibratedLayer) -> float:
    """What the rounds of a curve take: some multiplications and additions."""
    rows, inputs = layer.shape
    return min(rows * float(inputs) ** 3, EXACT) * len(shares_of(inputs))


def errors_of(problem: Layer, parts: Sequence[Part], error: Callable[[Fitted], float]) -> list[float]:
    """The errors of a curve, point by point."""
    shares = shares_of(problem.dense.shape[1])
    return [error(fitted) for fitted in rounds(problem, keep_shares(parts, shares), groups_of(parts))]


def predicted_errors(problem: Layer, parts: Sequence[Part], moves: Moves) -> list[float]:
    """The same by gradients alone: what a process can do that does not have the model."""
    return errors_of(problem, parts, partial(_predicted, problem, moves))


def costs_of(given: LayersOnSamples) -> list[float]:
    """What each layer alone costs the outputs of the model, pruned as its rows say."""
    found = dict[CalibratedLayer, float]()
    for layer, problem, error in _problems(given):
        drops = [one.row.drop if one.row else 0 for one in layer.parts]
        found[layer] = error(_last(problem, layer_parts(layer), drops))
    return [found[layer] for layer in given.layers]


def under(given: LayersOnSamples, pattern: NOfM) -> Iterator[tuple[CalibratedLayer, float, dict[str, Array]]]:
    """Each layer alone under a pattern that fixes how much goes, refitted: what that costs the outputs of the model,
    and the new numbers of its stored tensors, by name."""
    for layer, problem, error in _problems(given):
        parts = [replace(part, pattern=pattern) if part.pattern else part for part in layer_parts(layer)]
        fitted = _last(problem, parts, [0] * len(parts))
        yield layer, error(fitted), layer.numbers(fitted.rows, problem.bias(fitted.rows), {})


def _last(problem: Layer, parts: Sequence[Part], drops: Sequence[int]) -> Fitted:
    """A layer after its rounds."""
    return last(rounds(problem, goals(parts, drops), groups_of(parts)))


def with_joint_parts(plan: Plan, given: LayersOnSamples) -> Plan:
    """A plan in which the weights of one layer share its zeros by what each costs: those of a recurrent layer have one
    matrix, and its inputs bear other levels than its states."""
    rows, drops = {row.name: row for row in plan.rows}, dict[str, int]()
    several = [layer for layer in given.layers if len(_free(layer, rows)) > 1 and not plan.rule.knows_levels]
    if not several:
        return plan
    for layer, problem, _ in _problems(replace(given, layers=several)):
        parts = layer_parts(layer)
        wanted = [rows[one.weight.name].drop if one.row else 0 for one in layer.parts]
        mask = last(rounds(problem, goals(parts, wanted, joint=True))).mask
        gone = {part.name: ~mask[:, part.columns] for part in _free(layer, rows)}
        drops.update({name: min(int(own.sum()), own.size - 1) for name, own in gone.items()})
    return replace(plan, rows=tuple(replace(row, drop=drops.get(row.name, row.drop)) for row in plan.rows))


def _free(layer: CalibratedLayer, rows: Mapping[str, PlanRow]) -> list[Part]:
    """The weights of a layer any numbers of which may go."""
    parts = [part for part in layer_parts(layer) if isinstance(part.pattern, Unstructured)]
    return [part for part in parts if rows[part.name].drop]


def tried(given: LayersOnSamples, shares: Sequence[float]) -> Iterator[tuple[CalibratedLayer, list[dict[str, Array]]]]:
    """Each layer alone at falling shares kept, refitted: the new numbers of its stored tensors, by name."""
    for layer, problem, _ in _problems(given):
        parts = [one.part for one in layer.parts]
        found = rounds(problem, keep_shares(parts, shares), groups_of(parts))
        yield layer, [layer.numbers(fitted.rows, problem.bias(fitted.rows), {}) for fitted in found]


def _problems(given: LayersOnSamples) -> Iterator[tuple[CalibratedLayer, Layer, Callable[[Fitted], float]]]:
    """Each layer on the inputs of the dense net, and what it does to the outputs of the model under a mask."""
    measured = given.measured()
    for layer, moments in given.moments():
        problem = given.problem(layer, moments)
        if moments.probe is not None and moments.probe.wanted:
            yield layer, problem, partial(_predicted, problem, moments.probe.moves())
        else:
            yield layer, problem, partial(measured, layer, problem)


def _predicted(problem: Layer, moves: Moves, fitted: Fitted) -> float:
    """What a layer under a mask does to the outputs of the model, by gradients."""
    return moves.squared(fitted.rows - problem.dense, problem.bias(fitted.rows))


@dataclass(eq=False)
class _Curves:
    """The curves so far, and layers that wait until there are enough of them for all processes."""

    known: dict[CalibratedLayer, Curve]
    work: float
    found: Found | None
    total: int
    waiting: dict[CalibratedLayer, tuple[Layer, Sequence[Part], Moves]] = field(default_factory=dict)
    nbytes: int = 0

    def predict(self, layer: CalibratedLayer, problem: Layer, moves: Moves) -> None:
        self.waiting[layer] = problem, layer_parts(layer), moves
        self.nbytes += moves.nbytes + sum(block.nbytes for block in problem.blocks)
        width = jobs.width(self.work)
        if width == 1 or len(self.waiting) >= WAVE * width or self.nbytes >= WAITING:
            self.flush()

    def flush(self) -> None:
        """Make the curves of all that wait."""
        layers, self.nbytes = list(self.waiting), 0
        for layer, errors in zip(layers, jobs.each(predicted_errors, list(self.waiting.values()), self.work)):
            self.add(layer, errors)
        self.waiting.clear()

    def add(self, layer: CalibratedLayer, errors: Sequence[float]) -> None:
        curve = Curve(layer.name, _size(layer_parts(layer)), tuple(shares_of(layer.shape[1])), tuple(errors))
        self.known[layer] = curve
        if self.found is not None:
            self.found(layer, curve)
        progress.advance("curves", len(self.known), self.total)


class Measured:
    """What layers under a mask do to the outputs of the model, by forward runs. Those of the dense net are made with
    the first."""

    def __init__(self, cut: Cut, samples: Samples, store: Store) -> None:
        self._given = cut, samples, store

    @cached_property
    def outputs(self) -> Outputs:
        return Outputs(*self._given)

    def __call__(self, layer: CalibratedLayer, problem: Layer, fitted: Fitted) -> float:
        return self.outputs.moved(layer.place, layer.numbers(fitted.rows, problem.bias(fitted.rows), {}))


def _size(parts: Sequence[Part]) -> int:
    return sum(int(np.prod(part.shape4)) for part in parts if part.pattern is not None)


__all__ = ["LayersOnSamples", "costs_of", "curves_of", "shares_of", "tried", "under", "with_joint_parts"]
