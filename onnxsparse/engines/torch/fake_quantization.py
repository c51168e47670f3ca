"""Fake quantization in torch: rounding to an integer grid and back, with gradients, and scales by the range of tensors.

    x' = (clip(round_half_even(x / scale) + zero_point, low, high) - zero_point) * scale

1. `math.quantization` is the definition; on the CPU all of this is equal to it, bit for bit.
2. Gradients are straight-through: that of a number inside of the grid goes through, that of one which was clipped is
   zero. A scale that has a gradient is learned: LSQ (Esser et al. 2020), with its gradient divided by
   sqrt(numbers for each scale * steps of the grid).
3. It is float32 inside whatever comes in, also under autocast, and gives back the type that came in.
4. While a module is exported to ONNX it is torch's own operator, which exporters write as QuantizeLinear and
   DequantizeLinear.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from onnxsparse.engines.torch.library import torch
from onnxsparse.errors import OptionError
from onnxsparse.math.quantization import LARGEST, SMALLEST_SCALE, WEIGHTS, Grid

Pair = tuple[Any, Any]
AVERAGING = 0.01
"""The share of each batch in a moving average of ranges, as in torch and in SparseML."""


def fake(x: Any, scale: Any, zero_point: Any, grid: Grid, axis: int | None = None, block: int = 0) -> Any:
    """A tensor rounded to a grid and back; one scale and zero point, or one of each for every index of an axis."""
    if is_exporting():
        return _exported(x, scale, zero_point, grid, axis)
    over = _over(scale, x, axis, block), _over(zero_point, x, axis, block)
    return _rounding().apply(x, *over, grid)[0]


@cache
def _rounding() -> Any:
    """The function with its gradient; made when torch is there."""

    class Rounding(torch().autograd.Function):  # type: ignore[misc]
        """Scale and zero point have one number, or the rank of what is rounded."""

        @staticmethod
        def forward(x: Any, scale: Any, zero_point: Any, grid: Grid) -> Any:
            rounded, inside, _ = _rounded(x, scale, zero_point, grid)
            return rounded.to(x.dtype), inside

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            x, scale, zero_point, grid = inputs
            ctx.grid = grid
            ctx.mark_non_differentiable(output[1])
            learned = (x, scale, zero_point) if scale.requires_grad else ()  # else a byte for each number is enough
            ctx.save_for_backward(output[1], *learned)

        @staticmethod
        def backward(ctx: Any, grad: Any, _: Any) -> Any:
            inside, *learned = ctx.saved_tensors
            if not learned:
                return torch().where(inside, grad, 0), None, None, None
            x, scale, zero_point = learned
            steps = _rounded(x, scale, zero_point, ctx.grid)[2]
            slope = torch().where(inside, steps - x.float() / scale, steps)
            fewer = 1 / (slope.numel() / scale.numel() * max(ctx.grid.high, 1)) ** 0.5
            of_scale = ((grad.float() * slope).sum_to_size(scale.shape) * fewer).to(scale.dtype)
            return torch().where(inside, grad, 0), of_scale, None, None

    return Rounding


def _rounded(x: Any, scale: Any, zero_point: Any, grid: Grid) -> tuple[Any, Any, Any]:
    """The numbers after rounding, which of them were not clipped, and their steps from zero."""
    precise = torch().float64 if grid.bits > 16 else torch().float32
    whole = torch().round(x.to(precise) / scale) + zero_point
    clipped = torch().clamp(torch().nan_to_num(whole), grid.low, grid.high)
    steps = (clipped - zero_point).float()
    return steps * scale, whole == clipped, steps


def _over(values: Any, x: Any, axis: int | None, block: int) -> Any:
    if axis is None:
        return values.reshape(())
    if block:
        return values.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])
    return values.reshape([-1 if one == axis % x.dim() else 1 for one in range(x.dim())])


# -- what exporters read


def is_exporting() -> bool:
    """Whether one of torch's exporters to ONNX runs the module."""
    return bool(torch().onnx.is_in_onnx_export())


def _exported(x: Any, scale: Any, zero_point: Any, grid: Grid, axis: int | None) -> Any:
    """ONNX has the grids of whole types: what lies outside of fewer integers is clipped before.

    Where scale and zero point are numbers it is written out: torch 2.13 knows no sizes of what its operator gives, and
    cannot export it by `dynamo=True` where one is free.
    """
    if grid.bits > 8:
        raise OptionError(f"torch exports fake quantization to 8 bits and not to {grid.text}")
    if isinstance(scale, float):
        whole = torch().clamp(torch().round(x / scale) + zero_point, grid.low, grid.high)
        return (whole - zero_point) * scale
    scale, zero_point = scale.detach().float(), zero_point.int()
    low, high = (-128, 127) if grid.signed else (0, 255)
    if (grid.low, grid.high) != (low, high):
        ends = [_over((end - zero_point) * scale, x, axis, 0).to(x.dtype) for end in (grid.low, grid.high)]
        x = torch().minimum(torch().maximum(x, ends[0]), ends[1])
    if axis is None:
        return torch().fake_quantize_per_tensor_affine(x, scale.reshape(()), zero_point.reshape(()), low, high)
    return torch().fake_quantize_per_channel_affine(x, scale, zero_point, axis % x.dim(), low, high)


# -- scales by ranges


def from_range(low: Any, high: Any, grid: Grid) -> Pair:
    """Scale and zero point such that a range, and zero, lie on the grid; tensors for one of each."""
    device = low.device
    if device.type == "mps":  # which has no float64
        low, high = low.cpu(), high.cpu()
    bottom, top = low.detach().double().clamp(max=0), high.detach().double().clamp(min=0)
    if grid.symmetric:
        scale = torch().maximum(-bottom, top) / ((grid.high - grid.low) // 2)
        middle = 0 if grid.signed else (grid.high + grid.low + 1) // 2
        zero_point = torch().full_like(scale, middle)
    else:
        scale = (top - bottom) / (grid.high - grid.low)
        zero_point = torch().round(grid.low - torch().where(scale > 0, bottom / torch().where(scale > 0, scale, 1), 0))
        zero_point = zero_point.clamp(grid.low, grid.high)
    scale = scale.clamp(max=LARGEST / max(grid.high, -grid.low))
    scale = torch().where(scale > 0, scale.clamp(min=SMALLEST_SCALE), 1).float()
    return scale.to(device), zero_point.int().to(device)


def of_weight(weight: Any, grid: Grid = WEIGHTS, axis: int | None = None, block: int = 0) -> Pair:
    """Scale and zero point by the range of a weight; for every index of `axis`, every block along it, or all at once.

    Where all is zero along an index the scale is the mean of the others.
    """
    low, high = ranges(weight, axis, block)
    scale, zero_point = from_range(low, high, grid)
    empty = (low == 0) & (high == 0)
    count = (~empty).sum().clamp(min=1)
    precise = torch().float32 if scale.device.type == "mps" else torch().float64
    mean = torch().where(empty, 0, scale).sum(dtype=precise) / count
    return torch().where(empty & ~empty.all(), mean.float(), scale), zero_point


def ranges(x: Any, axis: int | None = None, block: int = 0) -> Pair:
    """The least and the greatest number: of all, for every index of an axis, or for every block along it."""
    x = x.detach().float()
    if axis is None:
        return (x.amin(), x.amax()) if x.numel() else (x.new_zeros(()), x.new_zeros(()))
    if block:
        parts = x.split(block, axis)
        return (
            torch().cat([part.amin(axis, keepdim=True) for part in parts], axis),
            torch().cat([part.amax(axis, keepdim=True) for part in parts], axis),
        )
    others = [one for one in range(x.dim()) if one != axis % x.dim()]
    return (x.amin(others), x.amax(others)) if others else (x, x)


def averaged(known: Pair, found: Pair, share: float = AVERAGING) -> Pair:
    """A moving average of ranges; ranges that are not known yet are infinite."""
    return tuple(
        torch().where(torch().isfinite(before), before + share * (now - before), now)
        for before, now in zip(known, found)
    )
