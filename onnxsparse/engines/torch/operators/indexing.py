"""Gather, scatter and other indexing by data as torch functions."""

from __future__ import annotations

import torch

from onnxsparse.engines.torch.operators.values import Ints, Outputs, Tensor, ints, product

_REDUCTIONS = {"mul": "prod", "max": "amax", "min": "amin", "add": "sum"}


def _counted(indices: Tensor, size: int) -> Tensor:
    """Negative places count from the end."""
    indices = indices.to(torch.int64)
    return torch.where(indices < 0, indices + size, indices)


def Gather(data: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    axis = axis % data.dim()
    places = _counted(indices, data.shape[axis])
    if places.dim() == 0:
        return data.index_select(axis, places.reshape(1)).squeeze(axis)
    taken = data.index_select(axis, places.flatten())
    return taken.reshape(*data.shape[:axis], *places.shape, *data.shape[axis + 1 :])


def GatherElements(data: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    return torch.gather(data, axis, _counted(indices, data.shape[axis]))


def GatherND(data: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    return data[_places(data, indices, batch_dims)]


def _places(data: Tensor, indices: Tensor, batch_dims: int = 0) -> tuple[Tensor, ...]:
    """One tensor of places for each axis that is indexed, the batch axes in front."""
    depth = indices.shape[-1]
    found = []
    for axis in range(batch_dims):
        shape = [1] * (indices.dim() - 1)
        shape[axis] = -1
        found.append(torch.arange(data.shape[axis], device=data.device).reshape(shape))
    found += [_counted(indices[..., one], data.shape[batch_dims + one]) for one in range(depth)]
    return tuple(found)


def Scatter(data: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0) -> Tensor:
    return ScatterElements(data, indices, updates, axis=axis)


def ScatterElements(
    data: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none"
) -> Tensor:
    places = _counted(indices, data.shape[axis])
    if reduction == "none":
        return data.scatter(axis, places, updates)
    return data.scatter_reduce(axis, places, updates, _REDUCTIONS[reduction])


def ScatterND(data: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    places = _places(data, indices)
    if reduction in ("none", "add"):
        return data.index_put(places, updates, accumulate=reduction == "add")
    depth = indices.shape[-1]
    sizes, rest = data.shape[:depth], data.shape[depth:]
    flat = torch.zeros_like(places[0])
    for place, size in zip(places, sizes):
        flat = flat * size + place
    rows = flat.reshape(-1, 1).expand(-1, product(rest))
    parts = data.reshape(product(sizes), -1).scatter_reduce(
        0, rows, updates.reshape(rows.shape), _REDUCTIONS[reduction]
    )
    return parts.reshape(data.shape)


def TensorScatter(
    past_cache: Tensor, update: Tensor, write_indices: Tensor | None = None, *, axis: int = -2, mode: str = "linear"
) -> Tensor:
    """Each sample's update is written from its own place on along an axis."""
    axis = axis % past_cache.dim()
    cache, new = past_cache.movedim(axis, 1), update.movedim(axis, 1)
    batch = torch.arange(cache.shape[0], device=cache.device).reshape(-1, 1)
    first = torch.zeros_like(batch) if write_indices is None else write_indices.reshape(-1, 1)
    places = first + torch.arange(new.shape[1], device=cache.device)
    places = places % cache.shape[1] if mode == "circular" else places
    return cache.index_put((batch, places), new).movedim(1, axis)


def TopK(X: Tensor, K: Ints | None = None, *, axis: int = -1, k: int = 0, largest: int = 1, sorted: int = 1) -> Outputs:
    """Among equals the earlier one comes first."""
    count = k if K is None else ints(K)[0]
    values, places = torch.sort(X, dim=axis, descending=bool(largest), stable=True)
    return values.narrow(axis, 0, count), places.narrow(axis, 0, count)


def ArgMax(data: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    if not select_last_index:
        return data.argmax(axis, keepdim=bool(keepdims))
    return data.shape[axis] - 1 - data.flip(axis).argmax(axis, keepdim=bool(keepdims))


def ArgMin(data: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    if not select_last_index:
        return data.argmin(axis, keepdim=bool(keepdims))
    return data.shape[axis] - 1 - data.flip(axis).argmin(axis, keepdim=bool(keepdims))


def NonZero(X: Tensor) -> Tensor:
    return torch.nonzero(X).T


def Unique(X: Tensor, *, axis: int | None = None, sorted: int = 1) -> Outputs:
    """The values, where each comes first, which one each element is, and how often each comes."""
    x = X.flatten() if axis is None else X
    over = 0 if axis is None else axis % X.dim()
    values, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True, dim=over)
    places = torch.arange(inverse.numel(), device=X.device)
    first = torch.full_like(counts, inverse.numel()).scatter_reduce(0, inverse, places, "amin")
    if not sorted:
        order = first.argsort()
        rank = torch.empty_like(order).scatter(0, order, torch.arange(order.numel(), device=X.device))
        values, inverse, counts, first = values.index_select(over, order), rank[inverse], counts[order], first[order]
    return values, first, inverse, counts
