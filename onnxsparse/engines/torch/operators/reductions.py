"""Reductions as torch functions: sums, extremes and norms over axes. Axes are attributes or inputs, all by default."""

from __future__ import annotations

import torch

from onnxsparse.engines.torch.operators.values import Ints, Tensor, axes_of, empty, highest, lowest


def _over(data: Tensor, axes: Ints | None, noop: int) -> list[int] | None:
    """The axes to reduce over; None where nothing is to be done."""
    if not empty(axes):
        return axes_of(axes, data.dim())
    return None if noop else list(range(data.dim()))


def ReduceSum(data: Tensor, axes: Ints | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
    over = _over(data, axes, noop_with_empty_axes)
    return data if over is None else data.sum(over, keepdim=bool(keepdims), dtype=data.dtype) if over else data


def ReduceMean(data: Tensor, axes: Ints | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
    over = _over(data, axes, noop_with_empty_axes)
    if not over:
        return data
    if data.is_floating_point():
        return data.mean(over, keepdim=bool(keepdims))
    return data.double().mean(over, keepdim=bool(keepdims)).to(data.dtype)


def ReduceMax(data: Tensor, axes: Ints | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
    over = _over(data, axes, noop_with_empty_axes)
    if not over:
        return data
    return data.amax(over, keepdim=bool(keepdims)) if data.numel() else _filled(data, over, keepdims, lowest)


def ReduceMin(data: Tensor, axes: Ints | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
    over = _over(data, axes, noop_with_empty_axes)
    if not over:
        return data
    return data.amin(over, keepdim=bool(keepdims)) if data.numel() else _filled(data, over, keepdims, highest)


def _filled(data: Tensor, over: list[int], keepdims: int, extreme: object) -> Tensor:
    shape = [1 if axis in over else size for axis, size in enumerate(data.shape)]
    if not keepdims:
        shape = [size for axis, size in enumerate(shape) if axis not in over]
    assert callable(extreme)
    return torch.full(shape, extreme(data.dtype), dtype=data.dtype, device=data.device)


def ReduceProd(data: Tensor, axes: Ints | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
    over = _over(data, axes, noop_with_empty_axes)
    for axis in sorted(over or [], reverse=True):
        data = data.prod(axis, keepdim=bool(keepdims), dtype=data.dtype)
    return data


def ReduceL1(data: Tensor, axes: Ints | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
    return ReduceSum(data.abs(), axes, keepdims=keepdims, noop_with_empty_axes=noop_with_empty_axes)


def ReduceL2(data: Tensor, axes: Ints | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
    over = _over(data, axes, noop_with_empty_axes)
    if over is None or not data.is_floating_point():
        squares = ReduceSum(data * data, axes, keepdims=keepdims, noop_with_empty_axes=noop_with_empty_axes)
        return squares.sqrt().to(data.dtype)
    return torch.linalg.vector_norm(data, 2, over, keepdim=bool(keepdims)) if over else data.abs()


def ReduceSumSquare(
    data: Tensor, axes: Ints | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    return ReduceSum(data * data, axes, keepdims=keepdims, noop_with_empty_axes=noop_with_empty_axes)


def ReduceLogSum(data: Tensor, axes: Ints | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
    return ReduceSum(data, axes, keepdims=keepdims, noop_with_empty_axes=noop_with_empty_axes).log()


def ReduceLogSumExp(
    data: Tensor, axes: Ints | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    over = _over(data, axes, noop_with_empty_axes)
    return torch.logsumexp(data, over, keepdim=bool(keepdims)) if over else data
