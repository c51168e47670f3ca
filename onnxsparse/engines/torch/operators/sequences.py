"""Sequence operators as torch functions; a sequence of tensors is a list."""

from __future__ import annotations

from typing import Any

import torch

from onnxsparse.engines.torch.operators.values import DTYPES, Ints, Tensor, integer, ints

Tensors = Any  # a list of tensors


def SequenceConstruct(*inputs: Tensor) -> Tensors:
    return list(inputs)


def SequenceEmpty(*, dtype: int = 1) -> Tensors:
    return []


def SequenceAt(input_sequence: Tensors, position: Ints) -> Tensor:
    return input_sequence[integer(position)]


def SequenceLength(input_sequence: Tensors) -> Tensor:
    return torch.tensor(len(input_sequence))


def SequenceInsert(input_sequence: Tensors, tensor: Tensor, position: Ints | None = None) -> Tensors:
    found = list(input_sequence)
    found.insert(len(found) if position is None else integer(position), tensor)
    return found


def SequenceErase(input_sequence: Tensors, position: Ints | None = None) -> Tensors:
    found = list(input_sequence)
    del found[-1 if position is None else integer(position)]
    return found


def ConcatFromSequence(input_sequence: Tensors, *, axis: int, new_axis: int = 0) -> Tensor:
    return torch.stack(input_sequence, axis) if new_axis else torch.cat(input_sequence, axis)


def SplitToSequence(input: Tensor, split: Tensor | None = None, *, axis: int = 0, keepdims: int = 1) -> Tensors:
    if split is None:
        parts = torch.split(input, 1, axis)
        return [part if keepdims else part.squeeze(axis) for part in parts]
    return list(torch.split(input, integer(split) if split.dim() == 0 else ints(split), axis))


def Optional(input: Any = None, *, type: Any = None) -> Any:
    return input


def OptionalGetElement(input: Any) -> Any:
    return input


def OptionalHasElement(input: Any = None) -> Tensor:
    return torch.tensor(input is not None)


def Bernoulli(input: Tensor, *, dtype: int | None = None, seed: float | None = None) -> Tensor:
    return torch.bernoulli(input).to(DTYPES[dtype] if dtype else input.dtype)
