"""Convolutions as torch functions, of any rank that torch knows, with pads of any kind."""

from __future__ import annotations

import torch
from torch.nn import functional

from onnxsparse.engines.torch.operators.values import Ints, Tensor, along, ints
from onnxsparse.engines.torch.operators.windows import Window, padded, window

# by the number of spatial axes; torch.convolution takes any, but not the types of autocast
_FORWARD = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_BACKWARD = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}


def Conv(
    X: Tensor,
    W: Tensor,
    B: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    place = window(tuple(X.shape[2:]), tuple(W.shape[2:]), strides, dilations, pads, auto_pad)
    if not place.symmetric or min(place.before, default=0) < 0:
        X = padded(X, place.before, place.after)
        place = window((), place.kernel, strides, dilations, None, "NOTSET")
    return _FORWARD[len(place.kernel)](X, W, B, place.strides, place.before, place.dilations, group)


def ConvTranspose(
    X: Tensor,
    W: Tensor,
    B: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    output_padding: list[int] | None = None,
    output_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    """The whole product first; then what the pads take away is cut, and what `output_padding` adds is appended."""
    place = window((), tuple(W.shape[2:]), strides, dilations, pads, "NOTSET")
    more = output_padding or [0] * len(place.kernel)
    if auto_pad != "NOTSET" or output_shape:
        place = _fitted(place, tuple(X.shape[2:]), more, output_shape, auto_pad)
    turned = _BACKWARD[len(place.kernel)]
    simple = place.symmetric and min(place.before) >= 0
    if simple and all(size < stride for size, stride in zip(more, place.strides)):
        return turned(X, W, B, place.strides, place.before, more, group, place.dilations)
    whole = turned(X, W, None, place.strides, 0, 0, group, place.dilations)
    cut = tuple(extra - size for extra, size in zip(more, place.after))
    Y = padded(whole, tuple(-size for size in place.before), cut)
    return Y if B is None else Y + along(B, 1, Y.dim())


def _fitted(
    place: Window, spatial: tuple[int, ...], more: list[int], output_shape: list[int] | None, auto_pad: str
) -> Window:
    if auto_pad == "VALID" and not output_shape:
        return place
    wanted = output_shape[-len(spatial) :] if output_shape else [s * t for s, t in zip(spatial, place.strides)]
    whole = [
        stride * (size - 1) + extra + reach
        for size, stride, extra, reach in zip(spatial, place.strides, more, place.reach)
    ]
    totals = [have - want for have, want in zip(whole, wanted)]
    small, large = tuple(total // 2 for total in totals), tuple(total - total // 2 for total in totals)
    before, after = (small, large) if auto_pad == "SAME_UPPER" else (large, small)
    return Window(place.kernel, place.strides, place.dilations, before, after)


def DeformConv(
    X: Tensor,
    W: Tensor,
    offset: Tensor,
    B: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    offset_group: int = 1,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    """Samples at the shifted places, then one product with the weights; images only."""
    place = window(tuple(X.shape[2:]), tuple(W.shape[2:]), strides, dilations, pads, "NOTSET")
    N, C, height, width = X.shape
    taps, (rows, columns) = W.shape[2] * W.shape[3], offset.shape[2:]
    shift = offset.reshape(N * offset_group, taps, 2, rows, columns)
    y = (_positions(place, 0, rows, X).reshape(1, -1, 1, rows, 1) + _split(shift[:, :, 0], W)).flatten(1, 2)
    x = (_positions(place, 1, columns, X).reshape(1, 1, -1, 1, columns) + _split(shift[:, :, 1], W)).flatten(1, 2)
    grid = torch.stack([(2 * x + 1) / width - 1, (2 * y + 1) / height - 1], -1).flatten(1, 2)
    seen = functional.grid_sample(X.reshape(N * offset_group, -1, height, width), grid, align_corners=False)
    seen = seen.reshape(N, offset_group, -1, taps, rows, columns)
    if mask is not None:
        seen = seen * mask.reshape(N, offset_group, 1, taps, rows, columns)
    kernel = W.reshape(group, -1, W.shape[1], taps)
    Y = torch.einsum("ngcthw,goct->ngohw", seen.reshape(N, group, C // group, taps, rows, columns), kernel)
    Y = Y.reshape(N, -1, rows, columns)
    return Y if B is None else Y + along(B, 1, 4)


def _positions(place: Window, axis: int, count: int, like: Tensor) -> Tensor:
    """Where each tap of each window lies on an axis: (taps, windows)."""
    taps = torch.arange(place.kernel[axis], device=like.device, dtype=like.dtype) * place.dilations[axis]
    starts = torch.arange(count, device=like.device, dtype=like.dtype) * place.strides[axis] - place.before[axis]
    return taps[:, None] + starts


def _split(shift: Tensor, W: Tensor) -> Tensor:
    return shift.unflatten(1, (W.shape[2], W.shape[3]))


def Col2Im(
    input: Tensor,
    image_shape: Ints,
    block_shape: Ints,
    *,
    dilations: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    """Each tap of the blocks is added to the image at its places."""
    image, block = ints(image_shape), ints(block_shape)
    place = window(tuple(image), tuple(block), strides, dilations, pads, "NOTSET")
    N, channels = input.shape[0], input.shape[1]
    for size in block:
        channels //= size
    sizes = [size + before + after for size, before, after in zip(image, place.before, place.after)]
    flat = input.new_zeros((N, channels, *sizes)).flatten(2)
    where = _places(place, sizes, place.sizes(tuple(image)), input)
    flat = flat.index_add(2, where, input.reshape(N, channels, -1))
    whole = flat.reshape(N, channels, *sizes)
    return padded(whole, tuple(-size for size in place.before), tuple(-size for size in place.after))


def _places(place: Window, sizes: list[int], counts: list[int], like: Tensor) -> Tensor:
    """The flat place in the image of each tap (first) of each block."""
    rank = len(sizes)
    found = torch.zeros([1] * 2 * rank, dtype=torch.int64, device=like.device)
    stride = 1
    for axis in reversed(range(rank)):
        taps = torch.arange(place.kernel[axis], device=like.device) * place.dilations[axis]
        starts = torch.arange(counts[axis], device=like.device) * place.strides[axis]
        found = found + (along(taps, axis, 2 * rank) + along(starts, rank + axis, 2 * rank)) * stride
        stride *= sizes[axis]
    return found.flatten()
