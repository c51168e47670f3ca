"""Uniform affine quantization in numpy: integer grids, scales and zero points from ranges, rounding, fake quantization.

    q = clip(round_half_even(x / scale) + zero_point, low, high)        x' = (q - zero_point) * scale

1. Zero is always exactly a step of the grid: ranges are widened to hold it, and zero points are whole numbers. So what
   is pruned stays exactly the zero point.
2. Numbers are float32 as in ONNX's QuantizeLinear, and halves go to the even neighbour.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onnxsparse.math.values import Array

SMALLEST_SCALE = float(np.finfo(np.float32).tiny)
"""Smaller ones are subnormal, which kernels flush to zero."""
LARGEST = float(np.finfo(np.float32).max) * (1 - 2.0**-22)
"""So that no integer of a grid stands for more than float32 holds."""
WIDEST_BIAS = 2**30
"""Steps that a 32-bit bias may take: half of its range, so that a sum of products has room beside it."""


@dataclass(frozen=True)
class Grid:
    """The integers that a tensor is rounded to. `reduced` leaves one bit unused, for CPUs whose 16-bit sums saturate;
    `narrow` leaves the lowest integer out, so that the grid is as far on both sides."""

    bits: int = 8
    signed: bool = True
    symmetric: bool = True
    reduced: bool = False
    narrow: bool = False

    @property
    def low(self) -> int:
        return (-(1 << (self._used - 1)) + int(self.narrow)) if self.signed else 0

    @property
    def high(self) -> int:
        return (1 << (self._used - 1)) - 1 if self.signed else (1 << self._used) - 1

    @property
    def _used(self) -> int:
        return self.bits - int(self.reduced)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest type of numpy that holds them: int8 for four bits, too."""
        width = next(width for width in (8, 16, 32) if self.bits <= width)
        return np.dtype(f"{'' if self.signed else 'u'}int{width}")

    @property
    def text(self) -> str:
        return f"{'' if self.signed else 'u'}int{self.bits}"


WEIGHTS = Grid(narrow=True)
ACTIVATIONS = Grid(signed=False, symmetric=False)
SYMMETRIC_ACTIVATIONS = Grid()


@dataclass(frozen=True, eq=False)
class QParams:
    """Scale and zero point of a tensor: one of each, one for each index of `axis`, or, with `block`, one for so many
    neighbours along `axis`, in an array of the tensor's rank."""

    scale: Array
    zero_point: Array
    grid: Grid
    axis: int | None = None
    block: int = 0

    def quantize(self, numbers: Array) -> Array:
        """The integers of the grid, in its type."""
        scale, zero_point = self._over(self.scale, numbers), self._over(self.zero_point, numbers)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            precise = np.float64 if self.grid.bits > 16 else np.float32
            steps = np.rint(numbers.astype(precise, copy=False) / scale) + zero_point
        integers: Array = np.clip(np.nan_to_num(steps), self.grid.low, self.grid.high).astype(self.grid.dtype)
        return integers

    def dequantize(self, integers: Array) -> Array:
        """The numbers that integers stand for."""
        steps = integers.astype(np.int32) - self._over(self.zero_point, integers).astype(np.int32)
        with np.errstate(over="ignore"):
            numbers: Array = steps.astype(np.float32) * self._over(self.scale, integers)
        return numbers

    def fake(self, numbers: Array) -> Array:
        """The numbers after rounding to the grid and back."""
        return self.dequantize(self.quantize(numbers))

    def with_scale(self, scale: Array) -> QParams:
        return replace(self, scale=np.asarray(scale, np.float32))

    def spread(self, numbers: Array) -> tuple[Array, Array]:
        """Scale and zero point of every number, as views of the shape of an array."""
        values = (self._over(one, numbers) for one in (self.scale, self.zero_point))
        scale, zero_point = (np.broadcast_to(one, numbers.shape) for one in values)
        return scale, zero_point

    def _over(self, values: Array, numbers: Array) -> Array:
        if values.size == 1:
            return values.reshape(())
        assert self.axis is not None
        if self.block:
            size = numbers.shape[self.axis]
            return np.repeat(values, self.block, self.axis).take(np.arange(size), self.axis)
        return values.reshape([-1 if axis == self.axis % numbers.ndim else 1 for axis in range(numbers.ndim)])


def from_range(low: Any, high: Any, grid: Grid, axis: int | None = None, block: int = 0) -> QParams:
    """Scale and zero point such that a range, and zero, lie on the grid; arrays for one of each."""
    bottom = np.minimum(np.asarray(low, np.float64), 0.0)
    top = np.maximum(np.asarray(high, np.float64), 0.0)
    if grid.symmetric:
        side = np.maximum(-bottom, top)
        scale = side / ((grid.high - grid.low) // 2)
        middle = 0 if grid.signed else (grid.high + grid.low + 1) // 2
        zero_point = np.full(scale.shape, middle, np.int32)
    else:
        scale = (top - bottom) / (grid.high - grid.low)
        with np.errstate(divide="ignore", invalid="ignore"):
            zero_point = np.rint(grid.low - np.where(scale > 0, bottom / np.where(scale > 0, scale, 1), 0))
        zero_point = np.clip(zero_point, grid.low, grid.high).astype(np.int32)
    scale = np.minimum(scale, LARGEST / max(grid.high, -grid.low))
    return QParams(_usable(scale), zero_point, grid, axis, block)


def _usable(scale: Array) -> Array:
    """Float32, with 1 where there was no range and nothing that a kernel would flush to zero."""
    return np.where(scale > 0, np.maximum(scale, SMALLEST_SCALE), 1.0).astype(np.float32)


def of_weight(numbers: Array, grid: Grid = WEIGHTS, axis: int | None = None, block: int = 0) -> QParams:
    """Scale and zero point by the range of a weight; for every index of `axis`, every block along it, or all at once.

    Where all is zero along an index the scale is the mean of the others: its bias has to be rounded by it, too.
    """
    low, high = ranges(numbers, axis, block)
    params = from_range(low, high, grid, axis, block)
    empty = (low == 0) & (high == 0)
    if empty.any() and not empty.all():
        params = params.with_scale(np.where(empty, params.scale[~empty].mean(dtype=np.float64), params.scale))
    return params


def ranges(numbers: Array, axis: int | None, block: int = 0) -> tuple[Array, Array]:
    """The least and the greatest number: of all, for every index of an axis, or for every block along it."""
    if axis is None:
        return np.asarray(numbers.min(initial=0.0)), np.asarray(numbers.max(initial=0.0))
    if block:
        starts = np.arange(0, numbers.shape[axis], block)
        return np.minimum.reduceat(numbers, starts, axis), np.maximum.reduceat(numbers, starts, axis)
    others = tuple(one for one in range(numbers.ndim) if one != axis % numbers.ndim)
    return numbers.min(axis=others, initial=0.0), numbers.max(axis=others, initial=0.0)


def of_bias(inputs: QParams, weight: QParams) -> QParams:
    """A bias in 32 bits at the scale of the products that it is added to."""
    with np.errstate(over="ignore"):
        scale = (inputs.scale.reshape(()) * weight.scale).astype(np.float32)
    grid = Grid(32, signed=True)
    axis = 0 if scale.size > 1 else None
    return QParams(scale, np.zeros(scale.shape, np.int32), grid, axis)


def widened_for_bias(weight: QParams, inputs: QParams, bias: Array) -> QParams:
    """The scale of a weight, grown where its bias would not fit into 32 bits at the scale of the products, or a kernel
    would flush that to zero."""
    step = float(inputs.scale.reshape(()))
    least = np.abs(bias).astype(np.float64) / (step * WIDEST_BIAS)
    least = least if weight.scale.size > 1 else np.asarray(least.max(initial=0.0))
    return weight.with_scale(np.maximum(weight.scale, np.maximum(least, SMALLEST_SCALE / min(step, 1.0))))


def as_signed(integers: Array, params: QParams) -> tuple[Array, QParams]:
    """uint8 as int8: integers and zero point are both 128 less."""
    if params.grid.signed or params.grid.bits != 8:
        return integers, params
    zero = params.zero_point - 128
    grid = Grid(8, True, bool((zero == 0).all()))
    return (integers.astype(np.int32) - 128).astype(np.int8), replace(params, zero_point=zero, grid=grid)


def rescaled(params: QParams, before: Array, after: Array) -> QParams | None:
    """The scale under which numbers that were multiplied along an axis have the same integers, but for signs.

    None where there is none: no axis has one factor, or an integer has no other sign.
    """
    if np.array_equal(before, after):
        return params
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(before == 0, np.nan, after.astype(np.float64) / before)
    axes = [params.axis] if params.axis is not None else [None, *range(before.ndim)]
    for axis in axes:
        factor = _along(ratio, axis)
        if factor is not None:
            break
    else:
        return None
    turned, gone = factor < 0, factor == 0
    scale = params.scale * np.where(gone, 1.0, np.abs(factor))
    zero = np.broadcast_to(np.where(gone, 0, np.where(turned, -params.zero_point, params.zero_point)), scale.shape)
    made = replace(params, scale=scale.astype(np.float32), zero_point=zero.astype(np.int32), axis=axis)
    integers = params.quantize(before).astype(np.int32)
    wanted = np.where(_spread(gone, axis, before), 0, np.where(_spread(turned, axis, before), -integers, integers))
    return made if (scale >= SMALLEST_SCALE).all() and np.array_equal(made.quantize(after), wanted) else None


def _along(ratio: Array, axis: int | None) -> Array | None:
    """The one number that every index of an axis has, where it has; 1 where nothing says."""
    others = tuple(one for one in range(ratio.ndim) if one != axis)
    known = ~np.isnan(ratio)
    low = np.where(known, ratio, np.inf).min(axis=others)
    high = np.where(known, ratio, -np.inf).max(axis=others)
    none = low > high
    low, high = np.where(none, 1.0, low), np.where(none, 1.0, high)
    return np.asarray((low + high) / 2) if np.allclose(low, high, rtol=1e-6, atol=0.0) else None


def _spread(values: Array, axis: int | None, numbers: Array) -> Array:
    return values if axis is None else values.reshape([-1 if one == axis else 1 for one in range(numbers.ndim)])
