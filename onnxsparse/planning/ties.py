"""Weights that are equal, or equal up to a scale for each output: copies of one, as exporters make of shared layers.

1. Two weights can be tied where their shape, type and layout are the same, and both would be pruned alike.
2. They are equal where all their numbers are; or where each output of the one is that of the other times a number, as
   a batch normalization leaves it when it is folded into the copies of a shared convolution.
3. The first one in the model leads: it has the mask, and is counted once.
A tensor that is stored once and read by many is one weight already, and nothing is to be tied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from onnxsparse.graph.storage import FLOAT_KINDS
from onnxsparse.graph.weights import Weight
from onnxsparse.math.values import Array
from onnxsparse.planning.stored_params import weight_param

CLOSE = 1e-4
"""How far a copy may be from its scaled original, relative to its own size; rounding leaves less than 1e-6."""


@dataclass(frozen=True, eq=False)
class Tie:
    """What a weight is a copy of, and the factors of its outputs, laid out as its numbers; none where it is equal."""

    leader: Weight
    factors: Array | None = None

    def numbers(self, led: Array) -> Array:
        """The copy's numbers, of the leader's."""
        return led if self.factors is None else np.asarray(led * self.factors, led.dtype)


def ties_among(weights: Iterable[tuple[Weight, str]]) -> dict[Weight, Tie]:
    """By copy: what it is a copy of, among weights that are pruned, each with its pattern."""
    alike: dict[object, list[Weight]] = {}
    for weight, pattern in weights:
        tensor = weight.tensor
        if tensor.kind in FLOAT_KINDS and not weight.twins and len(weight.uses) == 1:
            use = weight.uses[0]
            key = tensor.shape, tensor.kind, use.shape4, use.op, use.matrix_key(), pattern
            alike.setdefault(key, []).append(weight)
    found: dict[Weight, Tie] = {}
    for several in alike.values():
        found.update(_ties(several))
    return found


def _ties(weights: list[Weight]) -> Mapping[Weight, Tie]:
    found: dict[Weight, Tie] = {}
    leaders: list[tuple[Weight, Array]] = []
    for weight in weights if len(weights) > 1 else ():
        numbers = _by_output(weight)
        for leader, led in leaders:
            equal = np.array_equal(led, numbers)
            factors = None if equal else _factors(led, numbers)
            if equal or factors is not None:
                found[weight] = Tie(leader, None if factors is None else _laid_out(weight, factors))
                break
        else:
            leaders.append((weight, numbers))
    return found


def _by_output(weight: Weight) -> Array:
    """The numbers of each output in a row."""
    matrix = weight.uses[0].matrix(weight_param(weight).numbers().reshape(-1))
    return np.asarray(matrix.reshape(matrix.shape[0] * matrix.shape[1], -1), np.float64)


def _factors(led: Array, numbers: Array) -> Array | None:
    """What each output is multiplied with; None where it is no multiple."""
    if not (led.any() and numbers.any()):  # a layer of zeros is nobody's copy
        return None
    for rows in (slice(0, 4), slice(None)):
        one, other = led[rows], numbers[rows]
        square = (one * one).sum(1)
        factors = (one * other).sum(1) / np.where(square > 0, square, 1)
        apart = np.linalg.norm(other - factors[:, None] * one, axis=1)
        if (apart > CLOSE * np.linalg.norm(other, axis=1)).any():
            return None
    return np.asarray(factors)


def _laid_out(weight: Weight, factors: Array) -> Array:
    """The factors as an array that multiplies the stored tensor."""
    use = weight.uses[0]
    group, out, inputs, taps = use.shape4
    full = np.broadcast_to(factors.reshape(group, out, 1, 1), (group, out, inputs, taps))
    array = use.restore(np.ascontiguousarray(full, np.float32)).reshape(weight.shape)
    for axis in range(array.ndim):
        first = np.take(array, [0], axis)
        array = first if (array == first).all() else array
    return np.asarray(array)
