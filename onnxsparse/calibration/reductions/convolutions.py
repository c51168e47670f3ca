"""What convolutions sum up: for each place of the result the inputs under its taps (im2col).

    Conv             the inputs at  place * stride + tap * dilation - pad
    ConvTranspose    the input i where  i * stride + tap * dilation - pad = place; zero where there is none

Both are windows over a canvas: the inputs among zeros. A ConvTranspose has them `stride` apart there, and its windows
move one by one, with the taps in reverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from onnxsparse.calibration.reductions.placing import Placed
from onnxsparse.calibration.reductions.reduction import Operand, Reduction, Values, spread
from onnxsparse.graph.attributes import Attributes
from onnxsparse.graph.weights import Use
from onnxsparse.math.values import Array


@dataclass(frozen=True)
class Axis:
    """One axis of an image: what a convolution does along it."""

    taps: int
    stride: int
    dilation: int
    pads: tuple[int, int]
    auto_pad: str
    more: int = 0
    """What `output_padding` adds to the result of a ConvTranspose."""
    length: int | None = None
    """The length that `output_shape` gives it."""

    @property
    def span(self) -> int:
        """From the first tap to the last."""
        return self.dilation * (self.taps - 1)

    def padded(self, size: int) -> tuple[int, int]:
        """Where the canvas of a convolution starts, as a place of its inputs, and how long it is."""
        first, last = self.pads
        if self.auto_pad.startswith("SAME"):
            total = (-(-size // self.stride) - 1) * self.stride + self.span + 1 - size
            first, last = self._shared(total)  # below zero, too: onnxruntime leaves out inputs at the ends
        return -first, first + size + last

    def turned(self, size: int) -> tuple[int, int]:
        """The same for a transposed convolution, whose inputs lie `stride` apart."""
        (first, last), length = self.pads, self.length
        whole = (size - 1) * self.stride + self.more + self.span + 1
        if length is None and self.auto_pad.startswith("SAME"):
            length = min(size * self.stride, whole)  # as onnxruntime does; the standard says the first
        if length is not None:
            first, _ = self._shared(max(whole - length, 0))
        else:
            length = whole - first - last
        return first - self.span, length + self.span

    def _shared(self, total: int) -> tuple[int, int]:
        half = int((total if self.auto_pad == "SAME_UPPER" else total + 1) / 2)
        return half, total - half


@dataclass(frozen=True, eq=False)
class Convolution(Reduction):
    """Conv and its quantized and fused forms: a block for each group."""

    source: Operand
    axes: tuple[Axis, ...]
    channels_last: bool
    placed: Placed

    def rows(self, values: Values, dense: Values | None = None, most: int | None = None) -> Sequence[Array]:
        windows = self._windows(self._by_group(self.source.read(values)))
        return [group.reshape(-1, self.width) for group in spread(windows, range(2, 2 + len(self.axes)), most)]

    def _by_group(self, images: Array) -> Array:
        """(group, sample, place..., channel of the group)"""
        last = images if self.channels_last else np.moveaxis(images, 1, -1)
        return np.moveaxis(last.reshape(*last.shape[:-1], len(self.outputs), -1), -2, 0)

    def _windows(self, images: Array) -> Array:
        """(group, sample, place..., tap..., channel of the group)"""
        canvas = _canvas(images, [axis.padded(size) for axis, size in zip(self.axes, images.shape[2:])])
        return _under_taps(canvas, self.axes, [axis.stride for axis in self.axes])

    def by_output(self, value: Array) -> Sequence[Array]:
        value = self.placed.own(value, -1 if self.channels_last else 1)
        return [group.reshape(-1, group.shape[-1]) for group in self._by_group(value)]


@dataclass(frozen=True, eq=False)
class TransposedConvolution(Convolution):
    """ConvTranspose: a block for each group."""

    def _windows(self, images: Array) -> Array:
        apart = [axis.stride for axis in self.axes]
        canvas = _canvas(images, [axis.turned(size) for axis, size in zip(self.axes, images.shape[2:])], apart)
        windows = _under_taps(canvas, self.axes, [1] * len(self.axes))
        return np.flip(windows, tuple(range(2 + len(self.axes), windows.ndim - 1)))


def _canvas(images: Array, frames: Sequence[tuple[int, int]], apart: Sequence[int] = ()) -> Array:
    """Images on zeros: axis 2 and on from a start and of a length, the inputs so far apart."""
    lengths = [length for _, length in frames]
    if not any(start for start, _ in frames) and (*lengths,) == images.shape[2:-1]:
        return images
    canvas = np.zeros((*images.shape[:2], *lengths, images.shape[-1]), np.float32)
    here: list[slice] = []
    there: list[slice] = []
    for (start, length), size, step in zip(frames, images.shape[2:], apart or [1] * len(frames)):
        first = max(-(-start // step), 0)
        stop = max(min((start + length - 1) // step + 1, size), first)
        here.append(slice(first, stop))
        at = first * step - start
        there.append(slice(at, at + (stop - first - 1) * step + 1 if stop > first else at, step))
    canvas[(slice(None), slice(None), *there)] = images[(slice(None), slice(None), *here)]
    return canvas


def _under_taps(canvas: Array, axes: Sequence[Axis], strides: Sequence[int]) -> Array:
    """Windows over axis 2 and on, with the channels behind the taps; where there is one tap, the places themselves."""
    steps = [slice(None)] * 2 + [slice(None, None, stride) for stride in strides]
    if all(axis.taps == 1 for axis in axes):
        found: Array = canvas[(*steps,)]
        return found
    images = tuple(range(2, 2 + len(axes)))
    windows = sliding_window_view(canvas, [axis.span + 1 for axis in axes], images)
    taps = [slice(None, None, axis.dilation) for axis in axes]
    return np.moveaxis(windows[(*steps, slice(None), *taps)], 2 + len(axes), -1)


# -- from nodes


def convolution(
    use: Use, placed: Placed, source: Operand, result: str, channels_last: bool = False, pads: Array | None = None
) -> Reduction:
    """`pads`: what stands in place of the attribute."""
    form = TransposedConvolution if use.family == "ConvTranspose" else Convolution
    axes = _axes(Attributes(use.source, {}), placed.shape[3:], pads)
    return form((use,), source.names, result, placed.outputs, source, axes, channels_last, placed)


def _axes(own: Attributes, taps: Sequence[int], pads: Array | None) -> tuple[Axis, ...]:
    rank, auto_pad = len(taps), own.text("auto_pad", "NOTSET")
    given = own.integers("pads") if pads is None else pads.tolist()
    around = (None if auto_pad == "VALID" else given) or [0] * 2 * rank
    usual = {"strides": 1, "dilations": 1, "output_padding": 0}
    strides, dilations, more = (own.integers(name) or [one] * rank for name, one in usual.items())
    lengths: Sequence[int | None] = (own.integers("output_shape") or [])[-rank:] or [None] * rank
    return tuple(
        Axis(taps[at], strides[at], dilations[at], (around[at], around[at + rank]), auto_pad, more[at], lengths[at])
        for at in range(rank)
    )
