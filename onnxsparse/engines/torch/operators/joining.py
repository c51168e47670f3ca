"""Cutting tensors in pieces and putting pieces together."""

from __future__ import annotations

import torch

from onnxsparse.engines.torch.operators.values import Ints, Outputs, Tensor, empty, ints


def Concat(*inputs: Tensor, axis: int = 1) -> Tensor:
    return torch.cat(inputs, axis)


def Split(
    input: Tensor, split: Ints | None = None, *, axis: int = 0, num_outputs: int | None = None, outputs: int
) -> Outputs:
    if not empty(split):
        return tuple(torch.split(input, ints(split), axis))
    size, count = input.shape[axis], num_outputs or outputs
    width = -(-size // count)
    widths = [max(min(width, size - width * index), 0) for index in range(count)]
    return tuple(torch.split(input, widths, axis))


def Slice(data: Tensor, starts: Ints, ends: Ints, axes: Ints | None = None, steps: Ints | None = None) -> Tensor:
    firsts, lasts = ints(starts), ints(ends)
    over = list(range(len(firsts))) if axes is None else ints(axes)
    by = [1] * len(firsts) if steps is None else ints(steps)
    cuts = [slice(None)] * data.dim()
    turned = []
    for first, last, axis, step in zip(firsts, lasts, over, by):
        first, last = _clamped(first, last, step, data.shape[axis])
        if step > 0:
            cuts[axis] = slice(first, max(last, first), step)
        else:
            turned.append((axis, torch.arange(first, min(last, first), step, device=data.device)))
    data = data[tuple(cuts)]
    for axis, order in turned:
        data = data.index_select(axis, order)
    return data


def _clamped(first: int, last: int, step: int, size: int) -> tuple[int, int]:
    first, last = (first + size if first < 0 else first), (last + size if last < 0 else last)
    if step > 0:
        return min(max(first, 0), size), min(max(last, 0), size)
    return min(max(first, 0), size - 1), min(max(last, -1), size - 1)


def Compress(input: Tensor, condition: Tensor, *, axis: int | None = None) -> Tensor:
    kept = torch.nonzero(condition).flatten()
    return input.flatten()[kept] if axis is None else input.index_select(axis, kept)


def ReverseSequence(input: Tensor, sequence_lens: Tensor, *, batch_axis: int = 1, time_axis: int = 0) -> Tensor:
    """The first steps of each sample, as many as its length says, in reverse."""
    x = input.movedim((batch_axis, time_axis), (0, 1))
    steps = torch.arange(x.shape[1], device=x.device)
    lengths = sequence_lens.to(x.device).reshape(-1, 1)
    order = torch.where(steps < lengths, lengths - 1 - steps, steps)
    batch = torch.arange(x.shape[0], device=x.device).reshape(-1, 1)
    return x[batch, order].movedim((0, 1), (batch_axis, time_axis))
