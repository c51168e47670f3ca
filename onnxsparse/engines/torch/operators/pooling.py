"""Pooling as torch functions, with pads of any kind, dilations and sizes that are rounded up."""

from __future__ import annotations

import torch
from torch.nn import functional

from onnxsparse.engines.torch.operators.values import Ints, Outputs, Tensor, ints, lowest, product
from onnxsparse.engines.torch.operators.windows import Window, padded, window

_MAXIMUM = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)
_AVERAGE = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)


def MaxPool(
    X: Tensor,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: list[int] | None = None,
    kernel_shape: list[int],
    pads: list[int] | None = None,
    storage_order: int = 0,
    strides: list[int] | None = None,
    outputs: int,
) -> Outputs:
    spatial = tuple(X.shape[2:])
    place = window(spatial, tuple(kernel_shape), strides, dilations, pads, auto_pad)
    after = place.missing(spatial, place.sizes(spatial, ceil_mode))
    x = X if X.is_floating_point() else X.double()
    x = padded(x, place.before, after, lowest(x.dtype))
    pool = _MAXIMUM[len(spatial) - 1]
    if outputs == 1:
        return (pool(x, place.kernel, place.strides, 0, place.dilations).to(X.dtype),)
    Y, where = pool(x, place.kernel, place.strides, 0, place.dilations, return_indices=True)
    return Y.to(X.dtype), _indices(where, tuple(x.shape[2:]), X, place.before, storage_order)


def _indices(where: Tensor, sizes: tuple[int, ...], X: Tensor, before: tuple[int, ...], column_major: int) -> Tensor:
    """Places in the padded plane, as places in the whole tensor."""
    axes: list[Tensor] = []
    for size, pad in zip(reversed(sizes), reversed(before)):
        axes.insert(0, where % size - pad)
        where = where // size
    spatial = X.shape[2:]
    order = range(len(spatial)) if not column_major else reversed(range(len(spatial)))
    flat = torch.zeros_like(where)
    for axis in order:
        flat = flat * spatial[axis] + axes[axis]
    plane = torch.arange(X.shape[0] * X.shape[1], device=X.device).reshape(X.shape[0], X.shape[1])
    return flat + plane.reshape(*plane.shape, *[1] * len(spatial)) * product(spatial)


def AveragePool(
    X: Tensor,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: list[int] | None = None,
    kernel_shape: list[int],
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    """Sums over windows, divided by how many elements count in each."""
    spatial = tuple(X.shape[2:])
    place = window(spatial, tuple(kernel_shape), strides, dilations, pads, auto_pad)
    after = place.missing(spatial, place.sizes(spatial, ceil_mode))
    if not any((*place.before, *(size for size in after if size > 0))):
        return _mean(X, place)
    counted = torch.ones((1, 1, *spatial), dtype=X.dtype, device=X.device)
    extra = tuple(size - pad for size, pad in zip(after, place.after))
    counted = padded(counted, place.before, place.after, float(count_include_pad))
    counted = padded(counted, (0,) * len(extra), extra)
    return _mean(padded(X, place.before, after), place) / _mean(counted, place)


def _mean(x: Tensor, place: Window) -> Tensor:
    if all(dilation == 1 for dilation in place.dilations) and len(place.kernel) <= len(_AVERAGE):
        return _AVERAGE[len(place.kernel) - 1](x, place.kernel, place.strides)
    return _windows(x, place).mean(tuple(range(-len(place.kernel), 0)))


def _windows(x: Tensor, place: Window) -> Tensor:
    """A view in which each place has its window, on as many axes more."""
    for axis, (reach, stride) in enumerate(zip(place.reach, place.strides), start=2):
        x = x.unfold(axis, reach, stride)
    steps = tuple(slice(None, None, dilation) for dilation in place.dilations)
    return x[(..., *steps)]


def LpPool(
    X: Tensor,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: list[int] | None = None,
    kernel_shape: list[int],
    p: int = 2,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    spatial = tuple(X.shape[2:])
    place = window(spatial, tuple(kernel_shape), strides, dilations, pads, auto_pad)
    x = padded(X, place.before, place.missing(spatial, place.sizes(spatial, ceil_mode)))
    sums = _windows(x.abs() ** p, place).sum(tuple(range(-len(place.kernel), 0)))
    return sums ** (1 / p)


def GlobalAveragePool(X: Tensor) -> Tensor:
    return X.mean(tuple(range(2, X.dim())), keepdim=True)


def GlobalMaxPool(X: Tensor) -> Tensor:
    return X.amax(tuple(range(2, X.dim())), keepdim=True)


def GlobalLpPool(X: Tensor, *, p: int = 2) -> Tensor:
    return (X.abs() ** p).sum(tuple(range(2, X.dim())), keepdim=True) ** (1 / p)


def MaxUnpool(
    X: Tensor,
    I: Tensor,  # noqa: E741 - the name of the schema
    output_shape: Ints | None = None,
    *,
    kernel_shape: list[int],
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    """Places count in the plane that the pooling saw, which may be smaller than the one asked for."""
    rank = len(kernel_shape)
    steps, edges = strides or [1] * rank, pads or [0] * 2 * rank
    seen = [
        (size - 1) * step + width - edges[axis] - edges[axis + rank]
        for axis, (size, step, width) in enumerate(zip(X.shape[2:], steps, kernel_shape))
    ]
    whole = [*X.shape[:2], *seen]
    flat = X.new_zeros(product(whole)).index_put((I.flatten(),), X.flatten())
    Y = flat.reshape(whole)
    if output_shape is None:
        return Y
    wanted = ints(output_shape)
    return padded(Y, (0,) * len(whole), tuple(want - have for want, have in zip(wanted, whole)))


def LRN(X: Tensor, *, alpha: float = 0.0001, beta: float = 0.75, bias: float = 1.0, size: int) -> Tensor:
    squares = (X * X).movedim(1, -1)
    sums = padded(squares, ((size - 1) // 2,), (size // 2,)).unfold(-1, size, 1).sum(-1).movedim(-1, 1)
    return X / (bias + alpha / size * sums) ** beta
