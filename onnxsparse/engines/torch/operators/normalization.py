"""Normalization layers as torch functions."""

from __future__ import annotations

import torch

from onnxsparse.engines.torch.operators.values import DTYPES, Outputs, Tensor, along


def BatchNormalization(
    X: Tensor,
    scale: Tensor,
    B: Tensor,
    input_mean: Tensor,
    input_var: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> Outputs:
    """A fixed affine map, unless the file itself asks for the statistics of the batch."""
    if not training_mode:
        return (_affine(X, scale, B, input_mean, input_var, epsilon),)
    axes = [axis for axis in range(X.dim()) if axis != 1]
    mean, variance = X.mean(axes), X.var(axes, unbiased=False)
    running_mean = input_mean * momentum + mean.to(input_mean.dtype) * (1 - momentum)
    running_var = input_var * momentum + variance.to(input_var.dtype) * (1 - momentum)
    return _affine(X, scale, B, mean, variance, epsilon), running_mean, running_var


def BatchNormalization_6(
    X: Tensor,
    scale: Tensor,
    B: Tensor,
    mean: Tensor,
    var: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    spatial: int = 1,
    is_test: int = 1,
    outputs: int,
) -> Outputs:
    """Without `spatial` each element has statistics of its own; who names more outputs wants those of the batch."""
    if not spatial:
        return ((X - mean) * torch.rsqrt(var + epsilon) * scale + B,)
    found = BatchNormalization(
        X, scale, B, mean, var, epsilon=epsilon, momentum=momentum, training_mode=int(outputs > 1)
    )
    return (*found, *found[1:])


def _affine(x: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, variance: Tensor, epsilon: float) -> Tensor:
    if x.dtype == scale.dtype == mean.dtype and not mean.requires_grad:
        return torch.batch_norm(x, scale, shift, mean, variance, False, 0.0, epsilon, False)
    factor = scale * torch.rsqrt(variance + epsilon)
    y = x * along(factor, 1, x.dim()) + along(shift - mean * factor, 1, x.dim())
    return y.to(x.dtype)


def InstanceNormalization(input: Tensor, scale: Tensor, B: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    return torch.group_norm(input, input.shape[1], scale, B, epsilon)


def GroupNormalization(
    X: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5, num_groups: int, stash_type: int = 1
) -> Tensor:
    return torch.group_norm(X, num_groups, scale.to(X.dtype), bias.to(X.dtype), epsilon)


def GroupNormalization_18(X: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5, num_groups: int) -> Tensor:
    """One scale and one shift for each group."""
    width = X.shape[1] // num_groups
    return torch.group_norm(X, num_groups, scale.repeat_interleave(width), bias.repeat_interleave(width), epsilon)


def LayerNormalization(
    X: Tensor,
    Scale: Tensor,
    B: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    outputs: int = 1,
) -> Outputs:
    """With the mean and the inverse deviation, where they are asked for."""
    shape = X.shape[axis % X.dim() :]
    shift = None if B is None else B.expand(shape)
    if outputs == 1:
        return (torch.layer_norm(X, shape, Scale.expand(shape), shift, epsilon),)
    Y, mean, inverse = torch.native_layer_norm(X, shape, Scale.expand(shape), shift, epsilon)
    return Y, mean, inverse


def RMSNormalization(X: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Tensor:
    axes = tuple(range(axis % X.dim(), X.dim()))
    x = X.to(DTYPES[stash_type])
    return (x * torch.rsqrt((x * x).mean(axes, keepdim=True) + epsilon)).to(X.dtype) * scale


def LpNormalization(input: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    norm = torch.linalg.vector_norm(input, p, axis, keepdim=True)
    return torch.where(norm == 0, torch.zeros_like(input), input / torch.where(norm == 0, torch.ones_like(norm), norm))


def MeanVarianceNormalization(X: Tensor, *, axes: list[int] | None = None) -> Tensor:
    over = tuple(axes or (0, 2, 3))
    centered = X - X.mean(over, keepdim=True)
    return centered / ((centered * centered).mean(over, keepdim=True).sqrt() + 1e-9)
