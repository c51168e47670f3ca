"""Shapes, element types and order of axes."""

from __future__ import annotations

import torch

from onnxsparse.engines.torch.operators.values import DTYPES, Ints, Tensor, axes_of, empty, ints, product


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
