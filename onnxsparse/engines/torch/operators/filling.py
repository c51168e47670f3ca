"""Tensors that are made, not computed: constants, ranges, random numbers."""

from __future__ import annotations

import torch

from onnxsparse.engines.torch.operators.values import DTYPES, Real, Tensor, ints, real


def ConstantOfShape(input: Tensor, *, value: Tensor | None = None) -> Tensor:
    if value is None:
        return torch.zeros(ints(input), device=input.device)
    return value.reshape(()).to(input.device).expand(ints(input)).clone()


def ConstantFill(
    input: Tensor,
    *,
    dtype: int = 1,
    extra_shape: list[int] | None = None,
    input_as_shape: int = 0,
    value: float = 0.0,
) -> Tensor:
    """What torch wrote for ConstantOfShape before there was one."""
    shape = ints(input) if input_as_shape else list(input.shape)
    return torch.full([*shape, *(extra_shape or [])], value, dtype=DTYPES[dtype], device=input.device)


def Range(start: Tensor, limit: Tensor, delta: Tensor, *, stash_type: int = 1) -> Tensor:
    first, last, step = start.item(), limit.item(), delta.item()
    count = max(-int((first - last) // step), 0) if step else 0
    return start + torch.arange(count, device=start.device).to(start.dtype) * delta


def EyeLike(input: Tensor, *, dtype: int | None = None, k: int = 0) -> Tensor:
    kind = DTYPES[dtype] if dtype else input.dtype
    rows, columns = (torch.arange(size, device=input.device) for size in input.shape)
    return (columns[None, :] - rows[:, None] == k).to(kind)


def OneHot(indices: Tensor, depth: Real, values: Tensor, *, axis: int = -1) -> Tensor:
    count = int(real(depth))
    classes = torch.arange(count, device=indices.device)
    chosen = indices.to(torch.int64)
    chosen = torch.where(chosen < 0, chosen + count, chosen).unsqueeze(axis)
    shape = [1] * chosen.dim()
    shape[axis] = count
    return torch.where(chosen == classes.reshape(shape), values[1], values[0])


def RandomNormal(
    *, dtype: int = 1, mean: float = 0.0, scale: float = 1.0, seed: float | None = None, shape: list[int]
) -> Tensor:
    return mean + scale * torch.randn(shape, dtype=DTYPES[dtype])


def RandomUniform(
    *, dtype: int = 1, high: float = 1.0, low: float = 0.0, seed: float | None = None, shape: list[int]
) -> Tensor:
    return low + (high - low) * torch.rand(shape, dtype=DTYPES[dtype])


def RandomNormalLike(
    input: Tensor, *, dtype: int | None = None, mean: float = 0.0, scale: float = 1.0, seed: float | None = None
) -> Tensor:
    return mean + scale * torch.randn_like(input, dtype=DTYPES[dtype] if dtype else input.dtype)


def RandomUniformLike(
    input: Tensor, *, dtype: int | None = None, high: float = 1.0, low: float = 0.0, seed: float | None = None
) -> Tensor:
    return low + (high - low) * torch.rand_like(input, dtype=DTYPES[dtype] if dtype else input.dtype)
