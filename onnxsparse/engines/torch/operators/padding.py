"""Pads of every mode and rank: an axis at a time, by the places the new elements are read from."""

from __future__ import annotations

import torch

from onnxsparse.engines.torch.operators.values import Ints, Real, Tensor, axes_of, ints, real
from onnxsparse.engines.torch.operators.windows import padded


def Pad(
    data: Tensor,
    pads: Ints,
    constant_value: Real | None = None,
    axes: Ints | None = None,
    *,
    mode: str = "constant",
    value: float = 0.0,
) -> Tensor:
    amounts, rank = ints(pads), data.dim()
    over = list(range(rank)) if axes is None else axes_of(axes, rank)
    before, after = [0] * rank, [0] * rank
    for place, axis in enumerate(over):
        before[axis], after[axis] = amounts[place], amounts[place + len(over)]
    if mode == "constant":
        filler = value if constant_value is None else real(constant_value)
        return padded(data, tuple(before), tuple(after), filler)
    for axis in range(rank):
        if before[axis] or after[axis]:
            data = data.index_select(axis, _places(data, axis, before[axis], after[axis], mode))
    return data


def _places(data: Tensor, axis: int, before: int, after: int, mode: str) -> Tensor:
    size = data.shape[axis]
    places = torch.arange(-before, size + after, device=data.device)
    if mode == "edge":
        return places.clamp(0, size - 1)
    if mode == "wrap":
        return places % size
    period = max(2 * (size - 1), 1)
    places = places % period
    return torch.where(places < size, places, period - places)


def CenterCropPad(input_data: Tensor, shape: Ints, *, axes: list[int] | None = None) -> Tensor:
    """What is too large loses, what is too small gains, evenly at both ends."""
    over = list(range(input_data.dim())) if axes is None else axes_of(axes, input_data.dim())
    for axis, wanted in zip(over, ints(shape)):
        more = wanted - input_data.shape[axis]
        if more < 0:
            input_data = input_data.narrow(axis, -more // 2, wanted)
        elif more > 0:
            sides = [0] * (2 * input_data.dim())
            sides[axis], sides[axis + input_data.dim()] = more // 2, more - more // 2
            input_data = Pad(input_data, sides)
    return input_data
