"""Activation functions, softmax and losses as torch functions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from onnxsparse.engines.torch.operators.values import Outputs, Real, Tensor, along, product


def Relu(X: Tensor) -> Tensor:
    return torch.relu(X)


def LeakyRelu(X: Tensor, *, alpha: float = 0.01) -> Tensor:
    return functional.leaky_relu(X, alpha)


def ThresholdedRelu(X: Tensor, *, alpha: float = 1.0) -> Tensor:
    return torch.where(alpha < X, X, torch.zeros_like(X))


def PRelu(X: Tensor, slope: Tensor) -> Tensor:
    return torch.where(X < 0, slope * X, X)


def PRelu_6(X: Tensor, slope: Tensor) -> Tensor:
    """A slope of one axis belongs to the channels."""
    per_channel = slope.dim() == 1 and slope.numel() > 1 and X.dim() > 1
    return PRelu(X, along(slope, 1, X.dim()) if per_channel else slope)


def Elu(X: Tensor, *, alpha: float = 1.0) -> Tensor:
    return functional.elu(X, alpha)


def Celu(X: Tensor, *, alpha: float = 1.0) -> Tensor:
    return functional.celu(X, alpha)


def Selu(X: Tensor, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> Tensor:
    return gamma * functional.elu(X, alpha)


def Sigmoid(X: Tensor) -> Tensor:
    return torch.sigmoid(X)


def HardSigmoid(X: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    return torch.clamp(alpha * X + beta, 0, 1)


def HardSwish(X: Tensor) -> Tensor:
    return X * torch.clamp(X / 6 + 0.5, 0, 1)


def Swish(X: Tensor, *, alpha: float = 1.0) -> Tensor:
    return X * torch.sigmoid(X if alpha == 1 else alpha * X)


def SwiGLU(A: Tensor, B: Tensor, *, alpha: float = 1.0) -> Tensor:
    return Swish(A, alpha=alpha) * B


def Mish(X: Tensor) -> Tensor:
    return functional.mish(X)


def Tanh(input: Tensor) -> Tensor:
    return torch.tanh(input)


def Softplus(X: Tensor) -> Tensor:
    return functional.softplus(X)


def Softsign(input: Tensor) -> Tensor:
    return functional.softsign(input)


def Shrink(input: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    outside = torch.where(input < -lambd, input + bias, torch.zeros_like(input))
    return torch.where(input > lambd, input - bias, outside)


def Gelu(X: Tensor, *, approximate: str = "none") -> Tensor:
    return functional.gelu(X, approximate=approximate)


def Clip(input: Tensor, min: Real | None = None, max: Real | None = None) -> Tensor:
    if min is None and max is None:
        return input
    if isinstance(min, torch.Tensor) != isinstance(max, torch.Tensor) and min is not None and max is not None:
        return torch.clamp(torch.clamp(input, min=min), max=max)
    return torch.clamp(input, min=min, max=max)


def Dropout(
    data: Tensor,
    ratio: Real | None = None,
    training_mode: Tensor | None = None,
    *,
    seed: int | None = None,
    is_test: int = 1,
    outputs: int,
) -> Outputs:
    """Identity: pruning and fine-tuning look at the network as it will run."""
    return (data, torch.ones_like(data, dtype=torch.bool)) if outputs > 1 else (data,)


# -- Softmax and its kin; before opset 13 everything from an axis on is one distribution.


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


# -- Losses that are part of a graph.


NO_CLASS = -(2**31)


def NegativeLogLikelihoodLoss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    left_out = NO_CLASS if ignore_index is None else ignore_index
    return functional.nll_loss(input, target.long(), weight, ignore_index=left_out, reduction=reduction)


def SoftmaxCrossEntropyLoss(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Outputs:
    likely = torch.log_softmax(scores, 1)
    return (
        NegativeLogLikelihoodLoss(likely, labels, weights, ignore_index=ignore_index, reduction=reduction),
        likely,
    )
