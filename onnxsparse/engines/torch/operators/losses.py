"""Losses that are part of a graph."""

from __future__ import annotations

import torch
from torch.nn import functional

from onnxsparse.engines.torch.operators.values import Outputs, Tensor

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
