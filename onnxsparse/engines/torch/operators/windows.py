"""Padding and window sizes: pads that are given or follow from `auto_pad`, and the output sizes that result."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from onnxsparse.engines.torch.operators.values import Ints, Real, Tensor, axes_of, ints, real


@dataclass(frozen=True)
class Window:
    """A kernel on each spatial axis; `before` and `after` are the pads."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def reach(self) -> list[int]:
        return [(size - 1) * dilation + 1 for size, dilation in zip(self.kernel, self.dilations)]

    @property
    def symmetric(self) -> bool:
        return self.before == self.after

    def sizes(self, spatial: tuple[int, ...], ceil: int = 0) -> list[int]:
        """The output's sizes; with `ceil` a last window may start inside the input or the pads before it."""
        found = []
        for size, reach, stride, before, after in zip(spatial, self.reach, self.strides, self.before, self.after):
            room = size + before + after - reach
            count = (-(-room // stride) if ceil else room // stride) + 1
            found.append(count - 1 if ceil and (count - 1) * stride >= size + before else count)
        return found

    def missing(self, spatial: tuple[int, ...], sizes: list[int]) -> tuple[int, ...]:
        """The pads after the input that make windows of exactly these sizes."""
        parts = zip(spatial, self.reach, self.strides, self.before, sizes)
        return tuple((count - 1) * stride + reach - before - size for size, reach, stride, before, count in parts)


def window(
    spatial: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: list[int] | None,
    dilations: list[int] | None,
    pads: list[int] | None,
    auto_pad: str,
) -> Window:
    rank = len(kernel)
    steps, spread = tuple(strides or [1] * rank), tuple(dilations or [1] * rank)
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        before, after = _same(spatial, kernel, steps, spread, auto_pad == "SAME_UPPER")
    else:
        given = list(pads or [0] * 2 * rank) if auto_pad != "VALID" else [0] * 2 * rank
        before, after = tuple(given[:rank]), tuple(given[rank:])
    return Window(tuple(kernel), steps, spread, before, after)


def _same(
    spatial: tuple[int, ...], kernel: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...], upper: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    totals = [
        max((-(-size // stride) - 1) * stride + (width - 1) * dilation + 1 - size, 0)
        for size, width, stride, dilation in zip(spatial, kernel, strides, dilations)
    ]
    small, large = tuple(total // 2 for total in totals), tuple(total - total // 2 for total in totals)
    return (small, large) if upper else (large, small)


def padded(x: Tensor, before: tuple[int, ...], after: tuple[int, ...], value: float = 0.0) -> Tensor:
    """Constant pads on the last axes; negative ones cut."""
    pairs = [size for pair in reversed(list(zip(before, after))) for size in pair]
    return functional.pad(x, pairs, value=value) if any(pairs) else x


# -- Pads of every mode and rank: an axis at a time, by the places the new elements are read from.


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
