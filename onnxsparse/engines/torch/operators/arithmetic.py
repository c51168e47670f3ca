"""Elementwise arithmetic, comparisons, logic and bit operations as torch functions."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from onnxsparse.engines.torch.operators.values import Ints, Tensor, aligned, integer


def Add(A: Tensor, B: Tensor, *, axis: int | None = None, broadcast: int = 0) -> Tensor:
    return A + aligned(B, A, axis)


def Sub(A: Tensor, B: Tensor, *, axis: int | None = None, broadcast: int = 0) -> Tensor:
    return A - aligned(B, A, axis)


def Mul(A: Tensor, B: Tensor, *, axis: int | None = None, broadcast: int = 0) -> Tensor:
    return A * aligned(B, A, axis)


def Div(A: Tensor, B: Tensor, *, axis: int | None = None, broadcast: int = 0) -> Tensor:
    B = aligned(B, A, axis)
    return A / B if A.is_floating_point() else torch.div(A, B, rounding_mode="trunc")


def Pow(X: Tensor, Y: Tensor, *, axis: int | None = None, broadcast: int = 0) -> Tensor:
    Y = aligned(Y, X, axis)
    return torch.pow(X, Y if X.is_floating_point() else Y.to(torch.promote_types(X.dtype, Y.dtype))).to(X.dtype)


def Mod(A: Tensor, B: Tensor, *, fmod: int = 0) -> Tensor:
    return torch.fmod(A, B) if fmod else torch.remainder(A, B)


def MatMul(A: Tensor, B: Tensor) -> Tensor:
    return torch.matmul(A, B)


def Gemm(
    A: Tensor,
    B: Tensor,
    C: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    broadcast: int = 0,
) -> Tensor:
    Y = torch.matmul(A.T if transA else A, B.T if transB else B)
    Y = Y if alpha == 1 else Y * alpha
    if C is None:
        return Y
    return Y + (C if beta == 1 else C * beta)


def Einsum(*Inputs: Tensor, equation: str) -> Tensor:
    return torch.einsum(equation, *Inputs)


def Det(X: Tensor) -> Tensor:
    return torch.linalg.det(X)


def CumSum(x: Tensor, axis: Ints, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    return _running(torch.cumsum, x, integer(axis), exclusive, reverse, 0)


def CumProd(x: Tensor, axis: Ints, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    return _running(torch.cumprod, x, integer(axis), exclusive, reverse, 1)


def _running(function: Callable[..., Tensor], x: Tensor, axis: int, exclusive: int, reverse: int, start: int) -> Tensor:
    x = x.flip(axis) if reverse else x
    if exclusive:
        first = torch.full_like(x.narrow(axis, 0, 1), start)
        x = torch.cat([first, x.narrow(axis, 0, x.shape[axis] - 1)], axis)
    y = function(x, axis, dtype=x.dtype)
    return y.flip(axis) if reverse else y


def Sum(*data_0: Tensor) -> Tensor:
    return functools.reduce(torch.add, data_0)


def Mean(*data_0: Tensor) -> Tensor:
    return functools.reduce(torch.add, data_0) / len(data_0)


def Max(*data_0: Tensor) -> Tensor:
    return functools.reduce(torch.maximum, data_0)


def Min(*data_0: Tensor) -> Tensor:
    return functools.reduce(torch.minimum, data_0)


def Abs(X: Tensor) -> Tensor:
    return torch.abs(X)


def Neg(X: Tensor) -> Tensor:
    return torch.neg(X)


def Sign(input: Tensor) -> Tensor:
    return torch.sign(input)


def Floor(X: Tensor) -> Tensor:
    return torch.floor(X)


def Ceil(X: Tensor) -> Tensor:
    return torch.ceil(X)


def Round(X: Tensor) -> Tensor:
    return torch.round(X)


def Reciprocal(X: Tensor) -> Tensor:
    return torch.reciprocal(X)


def Sqrt(X: Tensor) -> Tensor:
    return torch.sqrt(X)


def Exp(input: Tensor) -> Tensor:
    return torch.exp(input)


def Log(input: Tensor) -> Tensor:
    return torch.log(input)


def Erf(input: Tensor) -> Tensor:
    return torch.erf(input)


def Sin(input: Tensor) -> Tensor:
    return torch.sin(input)


def Cos(input: Tensor) -> Tensor:
    return torch.cos(input)


def Tan(input: Tensor) -> Tensor:
    return torch.tan(input)


def Asin(input: Tensor) -> Tensor:
    return torch.asin(input)


def Acos(input: Tensor) -> Tensor:
    return torch.acos(input)


def Atan(input: Tensor) -> Tensor:
    return torch.atan(input)


def Sinh(input: Tensor) -> Tensor:
    return torch.sinh(input)


def Cosh(input: Tensor) -> Tensor:
    return torch.cosh(input)


def Asinh(input: Tensor) -> Tensor:
    return torch.asinh(input)


def Acosh(input: Tensor) -> Tensor:
    return torch.acosh(input)


def Atanh(input: Tensor) -> Tensor:
    return torch.atanh(input)


# -- Comparisons, logic, bits, and choices by them.


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
