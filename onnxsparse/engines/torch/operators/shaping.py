"""Shape, type and layout operators as torch functions: reshape, cast, transpose, split, concatenate, constants."""

from __future__ import annotations

import torch

from onnxsparse.engines.torch.operators.values import (
    DTYPES,
    Ints,
    Outputs,
    Real,
    Tensor,
    axes_of,
    empty,
    ints,
    product,
    real,
)


def Identity(input: Tensor) -> Tensor:
    return input


def Reshape(data: Tensor, shape: Ints, *, allowzero: int = 0) -> Tensor:
    wanted = ints(shape)
    if not allowzero:
        wanted = [data.shape[axis] if size == 0 else size for axis, size in enumerate(wanted)]
    return data.reshape(wanted)


def Flatten(input: Tensor, *, axis: int = 1) -> Tensor:
    axis = axis + input.dim() if axis < 0 else axis
    return input.reshape(product(input.shape[:axis]), product(input.shape[axis:]))


def Squeeze(data: Tensor, axes: Ints | None = None) -> Tensor:
    if axes is None:
        return data.squeeze()
    gone = axes_of(axes, data.dim())
    return data.reshape([size for axis, size in enumerate(data.shape) if axis not in gone])


def Unsqueeze(data: Tensor, axes: Ints) -> Tensor:
    new = axes_of(axes, data.dim() + len(ints(axes)))
    for axis in sorted(new):
        data = data.unsqueeze(axis)
    return data


def Transpose(data: Tensor, *, perm: list[int] | None = None) -> Tensor:
    return data.permute(perm if perm is not None else list(reversed(range(data.dim()))))


def Expand(input: Tensor, shape: Ints) -> Tensor:
    return input.expand(torch.broadcast_shapes(input.shape, tuple(ints(shape))))


def Tile(input: Tensor, repeats: Ints) -> Tensor:
    return input.repeat(ints(repeats))


def Shape(data: Tensor, *, start: int = 0, end: int | None = None) -> Tensor:
    return torch.tensor(list(data.shape)[start:end], dtype=torch.int64, device=data.device)


def Size(data: Tensor) -> Tensor:
    return torch.tensor(data.numel(), dtype=torch.int64, device=data.device)


def Cast(input: Tensor, *, to: int, saturate: int = 1, round_mode: str = "up") -> Tensor:
    return input.to(DTYPES[to])


def CastLike(input: Tensor, target_type: Tensor, *, saturate: int = 1, round_mode: str = "up") -> Tensor:
    return input.to(target_type.dtype)


def DepthToSpace(input: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = input.shape
    deep = c // blocksize**2
    if mode == "DCR":
        parts = input.reshape(n, blocksize, blocksize, deep, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        parts = input.reshape(n, deep, blocksize, blocksize, h, w).permute(0, 1, 4, 2, 5, 3)
    return parts.reshape(n, deep, h * blocksize, w * blocksize)


def SpaceToDepth(input: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = input.shape
    parts = input.reshape(n, c, h // blocksize, blocksize, w // blocksize, blocksize)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return parts.permute(order).reshape(n, c * blocksize**2, h // blocksize, w // blocksize)


def Trilu(input: Tensor, k: Ints | None = None, *, upper: int = 1) -> Tensor:
    diagonal = 0 if empty_number(k) else ints(k)[0]
    return torch.triu(input, diagonal) if upper else torch.tril(input, diagonal)


def empty_number(value: Ints | None) -> bool:
    return value is None or (not isinstance(value, int) and empty(value))


# -- Cutting tensors in pieces and putting pieces together.


def Concat(*inputs: Tensor, axis: int = 1) -> Tensor:
    return torch.cat(inputs, axis)


def Split(
    input: Tensor, split: Ints | None = None, *, axis: int = 0, num_outputs: int | None = None, outputs: int
) -> Outputs:
    if not empty(split):
        return tuple(torch.split(input, ints(split), axis))
    size, count = input.shape[axis], num_outputs or outputs
    width = -(-size // count)
    widths = [max(min(width, size - width * index), 0) for index in range(count)]
    return tuple(torch.split(input, widths, axis))


def Slice(data: Tensor, starts: Ints, ends: Ints, axes: Ints | None = None, steps: Ints | None = None) -> Tensor:
    firsts, lasts = ints(starts), ints(ends)
    over = list(range(len(firsts))) if axes is None else ints(axes)
    by = [1] * len(firsts) if steps is None else ints(steps)
    cuts = [slice(None)] * data.dim()
    turned = []
    for first, last, axis, step in zip(firsts, lasts, over, by):
        first, last = _clamped(first, last, step, data.shape[axis])
        if step > 0:
            cuts[axis] = slice(first, max(last, first), step)
        else:
            turned.append((axis, torch.arange(first, min(last, first), step, device=data.device)))
    data = data[tuple(cuts)]
    for axis, order in turned:
        data = data.index_select(axis, order)
    return data


def _clamped(first: int, last: int, step: int, size: int) -> tuple[int, int]:
    first, last = (first + size if first < 0 else first), (last + size if last < 0 else last)
    if step > 0:
        return min(max(first, 0), size), min(max(last, 0), size)
    return min(max(first, 0), size - 1), min(max(last, -1), size - 1)


def Compress(input: Tensor, condition: Tensor, *, axis: int | None = None) -> Tensor:
    kept = torch.nonzero(condition).flatten()
    return input.flatten()[kept] if axis is None else input.index_select(axis, kept)


def ReverseSequence(input: Tensor, sequence_lens: Tensor, *, batch_axis: int = 1, time_axis: int = 0) -> Tensor:
    """The first steps of each sample, as many as its length says, in reverse."""
    x = input.movedim((batch_axis, time_axis), (0, 1))
    steps = torch.arange(x.shape[1], device=x.device)
    lengths = sequence_lens.to(x.device).reshape(-1, 1)
    order = torch.where(steps < lengths, lengths - 1 - steps, steps)
    batch = torch.arange(x.shape[0], device=x.device).reshape(-1, 1)
    return x[batch, order].movedim((0, 1), (batch_axis, time_axis))


# -- Tensors that are made, not computed: constants, ranges, random numbers.


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
