"""Comparisons, logic, bits, and choices by them."""

from __future__ import annotations

import torch

from onnxsparse.engines.torch.operators.values import Tensor, aligned


def Equal(A: Tensor, B: Tensor, *, axis: int | None = None, broadcast: int = 0) -> Tensor:
    return torch.eq(A, aligned(B, A, axis))


def Greater(A: Tensor, B: Tensor, *, axis: int | None = None, broadcast: int = 0) -> Tensor:
    return torch.gt(A, aligned(B, A, axis))


def Less(A: Tensor, B: Tensor, *, axis: int | None = None, broadcast: int = 0) -> Tensor:
    return torch.lt(A, aligned(B, A, axis))


def GreaterOrEqual(A: Tensor, B: Tensor) -> Tensor:
    return torch.ge(A, B)


def LessOrEqual(A: Tensor, B: Tensor) -> Tensor:
    return torch.le(A, B)


def And(A: Tensor, B: Tensor, *, axis: int | None = None, broadcast: int = 0) -> Tensor:
    return torch.logical_and(A, aligned(B, A, axis))


def Or(A: Tensor, B: Tensor, *, axis: int | None = None, broadcast: int = 0) -> Tensor:
    return torch.logical_or(A, aligned(B, A, axis))


def Xor(A: Tensor, B: Tensor, *, axis: int | None = None, broadcast: int = 0) -> Tensor:
    return torch.logical_xor(A, aligned(B, A, axis))


def Not(X: Tensor) -> Tensor:
    return torch.logical_not(X)


def BitwiseAnd(A: Tensor, B: Tensor) -> Tensor:
    return torch.bitwise_and(A, B)


def BitwiseOr(A: Tensor, B: Tensor) -> Tensor:
    return torch.bitwise_or(A, B)


def BitwiseXor(A: Tensor, B: Tensor) -> Tensor:
    return torch.bitwise_xor(A, B)


def BitwiseNot(X: Tensor) -> Tensor:
    return torch.bitwise_not(X)


def BitShift(X: Tensor, Y: Tensor, *, direction: str) -> Tensor:
    return torch.bitwise_left_shift(X, Y) if direction == "LEFT" else torch.bitwise_right_shift(X, Y)


def IsNaN(X: Tensor) -> Tensor:
    return torch.isnan(X)


def IsInf(X: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    found = torch.isposinf(X) if detect_positive else torch.zeros_like(X, dtype=torch.bool)
    return found | torch.isneginf(X) if detect_negative else found


def Where(condition: Tensor, X: Tensor, Y: Tensor) -> Tensor:
    return torch.where(condition, X, Y)
