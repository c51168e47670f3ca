"""Softmax and its kin; before opset 13 everything from an axis on is one distribution."""

from __future__ import annotations

from collections.abc import Callable

import torch

from onnxsparse.engines.torch.operators.values import Tensor, product


def Softmax(input: Tensor, *, axis: int = -1) -> Tensor:
    return torch.softmax(input, axis)


def LogSoftmax(input: Tensor, *, axis: int = -1) -> Tensor:
    return torch.log_softmax(input, axis)


def Hardmax(input: Tensor, *, axis: int = -1) -> Tensor:
    first = input.argmax(axis, keepdim=True)
    return torch.zeros_like(input).scatter(axis, first, 1)


def Softmax_1(input: Tensor, *, axis: int = 1) -> Tensor:
    return _flat(Softmax, input, axis)


def LogSoftmax_1(input: Tensor, *, axis: int = 1) -> Tensor:
    return _flat(LogSoftmax, input, axis)


def Hardmax_1(input: Tensor, *, axis: int = 1) -> Tensor:
    return _flat(Hardmax, input, axis)


def _flat(function: Callable[..., Tensor], x: Tensor, axis: int) -> Tensor:
    rows = product(x.shape[: axis % x.dim() if axis != x.dim() else axis])
    return function(x.reshape(rows, -1)).reshape(x.shape)
