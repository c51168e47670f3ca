"""Operators of `ai.onnx.ml` around networks and linear models, as torch functions, for numbers (not for words)."""

from __future__ import annotations

import math
from typing import Any

import torch

from onnxsparse.engines.torch.operators.values import Outputs, Tensor


def ArrayFeatureExtractor(X: Tensor, Y: Tensor) -> Tensor:
    found = X[..., Y.flatten().long()]
    return found.reshape(1, -1) if X.dim() == 1 else found


def Binarizer(X: Tensor, *, threshold: float = 0.0) -> Tensor:
    return (threshold < X).to(X.dtype)


def Scaler(X: Tensor, *, offset: list[float], scale: list[float]) -> Tensor:
    return (X.float() - X.new_tensor(offset, dtype=torch.float32)) * X.new_tensor(scale, dtype=torch.float32)


def Normalizer(X: Tensor, *, norm: str = "MAX") -> Tensor:
    x = X.float()
    if norm == "MAX":
        return x / x.amax(-1, keepdim=True)
    sizes = torch.linalg.vector_norm(x, 1 if norm == "L1" else 2, -1, keepdim=True)
    return torch.where(sizes > 0, x / sizes.clamp(min=1e-30), x)


def Imputer(
    X: Tensor,
    *,
    imputed_value_floats: list[float] | None = None,
    imputed_value_int64s: list[int] | None = None,
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
) -> Tensor:
    if imputed_value_floats is not None:
        gone = X.isnan() if math.isnan(replaced_value_float) else replaced_value_float == X
        return torch.where(gone, X.new_tensor(imputed_value_floats), X)
    return torch.where(replaced_value_int64 == X, X.new_tensor(imputed_value_int64s), X)


def FeatureVectorizer(*X: Tensor, inputdimensions: list[int] | None = None) -> Tensor:
    return torch.cat([one.float() for one in X], 1)


def LinearRegressor(
    X: Tensor,
    *,
    coefficients: list[float],
    intercepts: list[float] | None = None,
    post_transform: str = "NONE",
    targets: int = 1,
) -> Tensor:
    return _transformed(_linear(X, coefficients, intercepts, targets), post_transform)


def LinearClassifier(
    X: Tensor,
    *,
    classlabels_ints: list[int],
    coefficients: list[float],
    intercepts: list[float] | None = None,
    multi_class: int = 0,
    post_transform: str = "NONE",
) -> Outputs:
    """The labels and the scores of all classes."""
    rows = len(coefficients) // X.shape[-1]
    raw = _linear(X, coefficients, intercepts, rows)
    if rows == 1 and len(classlabels_ints) == 2:
        other = 1 - raw if post_transform == "PROBIT" else -raw
        place = (raw[:, 0] > 0).long()
        raw = torch.cat([other, raw], 1)
    else:
        place = raw.argmax(1)
    return X.new_tensor(classlabels_ints, dtype=torch.int64)[place], _transformed(raw, post_transform)


def _linear(X: Tensor, coefficients: list[float], intercepts: list[float] | None, rows: int) -> Tensor:
    x = X.float()
    y = x @ x.new_tensor(coefficients).reshape(rows, -1).T
    return y if not intercepts else y + x.new_tensor(intercepts)


def _transformed(scores: Tensor, how: str) -> Tensor:
    if how == "SOFTMAX":
        return torch.softmax(scores, -1)
    if how == "LOGISTIC":
        return torch.sigmoid(scores)
    if how != "NONE":
        raise ValueError(f"post_transform {how} is not supported")
    return scores


def ZipMap(
    X: Tensor, *, classlabels_int64s: list[int] | None = None, classlabels_strings: list[str] | None = None
) -> list[dict[Any, Tensor]]:
    """For each sample its scores by class."""
    names: list[Any] = list(classlabels_int64s or classlabels_strings or range(X.shape[-1]))
    return [dict(zip(names, row)) for row in X]
