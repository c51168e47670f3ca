"""Helpers of the operator functions: plain numbers from tensors, element types, shapes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

Tensor = Any  # torch.Tensor: torch is not there where types are checked
Ints = Any  # a list of integers, or a tensor that holds one
Real = Any  # a number, or a tensor that holds one
Outputs = tuple[Any, ...]

DTYPES: dict[int, Any] = {
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    4: torch.uint16,
    5: torch.int16,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
    12: torch.uint32,
    13: torch.uint64,
    14: torch.complex64,
    15: torch.complex128,
    16: torch.bfloat16,
    17: torch.float8_e4m3fn,
    18: torch.float8_e4m3fnuz,
    19: torch.float8_e5m2,
    20: torch.float8_e5m2fnuz,
}


def ints(values: Ints) -> list[int]:
    """The integers of a list, a number or a tensor."""
    if isinstance(values, torch.Tensor):
        values = values.tolist()
    if isinstance(values, (list, tuple)):
        return [int(value) for value in values]
    return [int(values)]


def integer(value: Ints) -> int:
    return ints(value)[0]


def reals(values: Any) -> list[float]:
    if isinstance(values, torch.Tensor):
        values = values.tolist()
    return [float(value) for value in (values if isinstance(values, (list, tuple)) else [values])]


def real(value: Real) -> float:
    return reals(value)[0]


def empty(values: Any) -> bool:
    """Whether an optional list is left out, in whichever way."""
    if values is None:
        return True
    return bool(values.numel() == 0) if isinstance(values, torch.Tensor) else not len(values)


def axes_of(axes: Ints, rank: int) -> list[int]:
    return [axis % rank if rank else 0 for axis in ints(axes)]


def product(sizes: Iterable[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def along(vector: Tensor, axis: int, rank: int) -> Tensor:
    """A vector, shaped to lie along one axis of a tensor."""
    shape = [1] * rank
    shape[axis] = -1
    return vector.reshape(shape)


def aligned(b: Tensor, a: Tensor, axis: int | None) -> Tensor:
    """The second operand of a sum or product, placed from `axis` on, as operators did before opset 7."""
    if axis is None or b.dim() == 0:
        return b
    return b.reshape(tuple(b.shape) + (1,) * (a.dim() - axis % a.dim() - b.dim()))


def lowest(dtype: Any) -> float | int:
    if dtype == torch.bool:
        return False
    return -float("inf") if dtype.is_floating_point else int(torch.iinfo(dtype).min)


def highest(dtype: Any) -> float | int:
    if dtype == torch.bool:
        return True
    return float("inf") if dtype.is_floating_point else int(torch.iinfo(dtype).max)
