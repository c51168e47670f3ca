"""Sums, products, powers, and functions of one number."""

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
