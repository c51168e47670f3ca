"""Sensitivity curves: what each layer alone costs the outputs of the model when less and less of it is kept.

On the inputs of the dense net every layer is pruned further and further, each time refitted. What the error that is
left does to the outputs of the model, by the gradients of these, is a point of its curve.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxsparse.allocations.curves import Curve
from onnxsparse.calibration.layers import CalibratedLayer
from onnxsparse.calibration.moments import Moments, Samples, dense_moments
from onnxsparse.calibration.sensitivity import Sensitivity
from onnxsparse.calibration.streams import Cut, Store
from onnxsparse.calibration.sweep import last, problem_of
from onnxsparse.solvers.choosing import Part, goals, keep_shares
from onnxsparse.solvers.rounds import Fitted, Layer, rounds

LARGEST, SMALLEST, POINTS = 0.6, 0.01, 9
"""The shares kept at the two ends of a curve, and how many points it has."""
LARGE, OF_LARGE, FEWER = 400, 0.3, 6
"""From so many inputs on a curve begins later, and has fewer points."""


def shares_of(inputs: int) -> list[float]:
    """Which shares are looked at, by the number of inputs of a layer."""
    top, points = (OF_LARGE, FEWER) if inputs > LARGE else (LARGEST, POINTS)
    return [float(share) for share in np.geomspace(top, SMALLEST, points)]


def curves_of(
    cut: Cut,
    layers: Sequence[CalibratedLayer],
    samples: Samples,
    sensitivity: Sensitivity,
    store: Store,
) -> list[Curve]:
    """The curve of each layer, in their order."""
    found = {}
    for layer, moments in dense_moments(cut, layers, samples, store, sensitivity=sensitivity):
        problem = problem_of(layer, moments.fit(), sensitivity.rows.get(layer))
        parts = [one.part for one in layer.parts]
        shares = shares_of(layer.shape[1])
        errors = [_error(problem, moments, fitted) for fitted in rounds(problem, keep_shares(parts, shares))]
        found[layer] = Curve(layer.name, _size(parts), tuple(shares), tuple(errors))
    return [found[layer] for layer in layers]


def costs_of(
    cut: Cut,
    layers: Sequence[CalibratedLayer],
    samples: Samples,
    sensitivity: Sensitivity,
    store: Store,
) -> list[float]:
    """What each layer alone costs the outputs of the model, pruned as its rows say."""
    found = {}
    for layer, moments in dense_moments(cut, layers, samples, store, sensitivity=sensitivity):
        problem = problem_of(layer, moments.fit(), sensitivity.rows.get(layer))
        drops = [one.row.drop if one.row else 0 for one in layer.parts]
        fitted = last(rounds(problem, goals([one.part for one in layer.parts], drops)))
        found[layer] = _error(problem, moments, fitted)
    return [found[layer] for layer in layers]


def _error(problem: Layer, moments: Moments, fitted: Fitted) -> float:
    """What a layer under a mask does to the outputs of the model."""
    if moments.probe is None or not moments.probe.wanted:
        return problem.cost(fitted.rows)
    return moments.probe.moved(fitted.rows - problem.dense, problem.bias(fitted.rows))


def _size(parts: Sequence[Part]) -> int:
    return sum(int(np.prod(part.shape4)) for part in parts if part.pattern is not None)


__all__ = ["costs_of", "curves_of", "shares_of"]
