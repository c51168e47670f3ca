"""Fused operators of `com.microsoft` as torch functions: those that exporters and the runtime's optimizer write."""

from __future__ import annotations

import torch
from torch.nn import functional

from onnxsparse.engines.torch.operators.activations import HardSigmoid, LeakyRelu
from onnxsparse.engines.torch.operators.arithmetic import Gemm
from onnxsparse.engines.torch.operators.convolution import Conv
from onnxsparse.engines.torch.operators.normalization import LayerNormalization, RMSNormalization
from onnxsparse.engines.torch.operators.values import Outputs, Tensor, along


def FastGelu(X: Tensor, bias: Tensor | None = None) -> Tensor:
    return functional.gelu(X if bias is None else X + bias, approximate="tanh")


def QuickGelu(X: Tensor, *, alpha: float = 1.702) -> Tensor:
    return X * torch.sigmoid(alpha * X)


def BiasGelu(A: Tensor, B: Tensor) -> Tensor:
    return functional.gelu(A + B)


def BiasSplitGelu(X: Tensor, bias: Tensor) -> Tensor:
    one, other = (X + bias).chunk(2, -1)
    return one * functional.gelu(other)


def BiasAdd(X: Tensor, bias: Tensor, skip: Tensor) -> Tensor:
    return X + bias + skip


def BiasDropout(
    data: Tensor,
    bias: Tensor,
    residual: Tensor | None = None,
    ratio: Tensor | None = None,
    training_mode: Tensor | None = None,
    *,
    seed: int | None = None,
    outputs: int,
) -> Outputs:
    y = data + bias if residual is None else data + bias + residual
    return (y, torch.ones_like(data, dtype=torch.bool)) if outputs > 1 else (y,)


def BiasSoftmax(data: Tensor, bias: Tensor, *, axis: int = 1, is_inner_broadcast: int = 1) -> Tensor:
    """Everything from the axis on is one distribution."""
    axis = axis % data.dim()
    if not is_inner_broadcast and bias.dim() < data.dim():
        bias = bias.reshape(*bias.shape, *[1] * (data.dim() - bias.dim()))
    return torch.softmax((data + bias).flatten(axis), axis).reshape(data.shape)


def FusedMatMul(
    A: Tensor,
    B: Tensor,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Tensor:
    product = torch.matmul(_turned(A, transA, transBatchA), _turned(B, transB, transBatchB))
    return product if alpha == 1 else product * alpha


def _turned(x: Tensor, transposed: int, batch: int) -> Tensor:
    x = x.movedim(0, -2) if batch and x.dim() > 1 else x
    return x.transpose(-1, -2) if transposed and x.dim() > 1 else x


def TransposeMatMul(A: Tensor, B: Tensor, *, alpha: float = 1.0, transA: int = 0, transB: int = 0) -> Tensor:
    return FusedMatMul(A, B, alpha=alpha, transA=transA, transB=transB)


def FusedMatMulActivation(
    A: Tensor,
    B: Tensor,
    *,
    activation: str,
    activation_alpha: float = 0.0,
    activation_axis: int = -1,
    activation_beta: float = 0.0,
    activation_gamma: float = 0.0,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Tensor:
    y = FusedMatMul(A, B, alpha=alpha, transA=transA, transB=transB, transBatchA=transBatchA, transBatchB=transBatchB)
    return _activated(y, activation, [activation_alpha, activation_beta], activation_axis)


def GemmFastGelu(X: Tensor, W: Tensor, bias: Tensor | None = None) -> Tensor:
    return FastGelu(torch.matmul(X, W), bias)


def FusedGemm(
    A: Tensor,
    B: Tensor,
    C: Tensor | None = None,
    *,
    activation: str = "",
    activation_alpha: float = 0.0,
    activation_beta: float = 0.0,
    activation_gamma: float = 0.0,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    y = Gemm(A, B, C, alpha=alpha, beta=beta, transA=transA, transB=transB)
    return _activated(y, activation, [activation_alpha, activation_beta])


def FusedConv(
    X: Tensor,
    W: Tensor,
    B: Tensor | None = None,
    Z: Tensor | None = None,
    *,
    activation: str = "",
    activation_params: list[float] | None = None,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    y = Conv(X, W, B, auto_pad=auto_pad, dilations=dilations, group=group, pads=pads, strides=strides)
    return _activated(y if Z is None else y + Z, activation, activation_params or [])


def _activated(x: Tensor, name: str, numbers: list[float], axis: int = -1) -> Tensor:
    if name == "LeakyRelu":
        return LeakyRelu(x, alpha=numbers[0])
    if name == "HardSigmoid":
        return HardSigmoid(x, alpha=numbers[0], beta=numbers[1])
    if name == "Clip":
        return torch.clamp(x, numbers[0], numbers[1])
    if name == "Softmax":
        return torch.softmax(x, axis)
    plain = {"": lambda y: y, "Relu": torch.relu, "Tanh": torch.tanh, "Sigmoid": torch.sigmoid, "Gelu": functional.gelu}
    return plain[name](x)


def SkipLayerNormalization(
    input: Tensor,
    skip: Tensor,
    gamma: Tensor,
    beta: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
) -> Outputs:
    """The result, its mean and inverse deviation, and the sum that went in."""
    total = input + skip if bias is None else input + skip + bias
    return (*LayerNormalization(total, gamma, beta, epsilon=epsilon, outputs=3), total)


def SimplifiedLayerNormalization(
    X: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Outputs:
    axes = tuple(range(axis % X.dim(), X.dim()))
    inverse = torch.rsqrt((X * X).mean(axes, keepdim=True) + epsilon)
    return RMSNormalization(X, scale, axis=axis, epsilon=epsilon, stash_type=stash_type), inverse


def SkipSimplifiedLayerNormalization(
    input: Tensor, skip: Tensor, gamma: Tensor, bias: Tensor | None = None, *, epsilon: float = 1e-5
) -> Outputs:
    total = input + skip if bias is None else input + skip + bias
    result, inverse = SimplifiedLayerNormalization(total, gamma, epsilon=epsilon)
    return result, inverse, inverse, total


def EmbedLayerNormalization(
    input_ids: Tensor,
    segment_ids: Tensor | None,
    word_embedding: Tensor,
    position_embedding: Tensor,
    segment_embedding: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 1,
) -> Outputs:
    """The result, how long each sample is, and the sum that went in."""
    steps = torch.arange(input_ids.shape[1], device=input_ids.device)
    total = word_embedding[input_ids] + position_embedding[steps if position_ids is None else position_ids]
    if segment_ids is not None and segment_embedding is not None:
        total = total + segment_embedding[segment_ids]
    lengths = input_ids.new_zeros(input_ids.shape[0]) if mask is None else mask.sum(1)
    return LayerNormalization(total, gamma, beta, epsilon=epsilon)[0], lengths.to(torch.int32), total


def GroupNorm(
    X: Tensor,
    gamma: Tensor,
    beta: Tensor,
    *,
    activation: int,
    channels_last: int = 1,
    epsilon: float = 1e-5,
    groups: int,
) -> Tensor:
    x = X.movedim(-1, 1) if channels_last else X
    y = torch.group_norm(x.contiguous(), groups, gamma.to(X.dtype), beta.to(X.dtype), epsilon)
    y = functional.silu(y) if activation else y
    return y.movedim(1, -1) if channels_last else y


def SkipGroupNorm(
    X: Tensor,
    gamma: Tensor,
    beta: Tensor,
    skip: Tensor,
    bias: Tensor | None = None,
    *,
    activation: int,
    channels_last: int = 1,
    epsilon: float = 1e-5,
    groups: int,
) -> Outputs:
    total = X + (skip.reshape(skip.shape[0], 1, 1, -1) if skip.dim() == 2 else skip)
    if bias is not None:
        total = total + along(bias, -1 if channels_last else 1, total.dim())
    return (
        GroupNorm(
            total, gamma, beta, activation=activation, channels_last=channels_last, epsilon=epsilon, groups=groups
        ),
        total,
    )


def Inverse(X: Tensor) -> Tensor:
    return torch.linalg.inv(X)
