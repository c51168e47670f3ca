"""Resizing and grid sampling as torch functions; interpolation is separable: weighted sums, an axis at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn import functional

from onnxsparse.engines.torch.operators.values import Ints, Tensor, along, axes_of, empty, ints, reals


@dataclass(frozen=True)
class Sampling:
    """The attributes of a Resize that all its axes share."""

    mode: str = "nearest"
    coordinates: str = "half_pixel"
    nearest: str = "round_prefer_floor"
    cubic: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    outside: float = 0.0


def Resize(
    X: Tensor,
    roi: Tensor | None = None,
    scales: Ints | None = None,
    sizes: Ints | None = None,
    *,
    antialias: int = 0,
    axes: list[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Tensor:
    how = Sampling(
        mode,
        coordinate_transformation_mode,
        nearest_mode,
        cubic_coeff_a,
        bool(exclude_outside),
        bool(antialias),
        extrapolation_value,
    )
    over = axes_of(axes, X.dim()) if axes is not None else list(range(X.dim()))
    region = reals(roi) if coordinate_transformation_mode == "tf_crop_and_resize" else []
    factors, wanted = _targets(X, over, scales, sizes, keep_aspect_ratio_policy)
    for place, axis in enumerate(over):
        part = (region[place], region[place + len(over)]) if region else (0.0, 1.0)
        if wanted[place] != X.shape[axis] or not math.isclose(factors[place], 1) or part != (0.0, 1.0):
            X = _resized(X, axis, factors[place], wanted[place], part, how)
    return X


def Resize_10(X: Tensor, scales: Ints, *, mode: str = "nearest") -> Tensor:
    return Upsample(X, scales, mode=mode)


def Upsample(X: Tensor, scales: Ints | None = None, *, mode: str = "nearest") -> Tensor:
    interpolation = "nearest" if mode == "nearest" else "linear"
    asymmetric, floor = "asymmetric", "floor"
    return Resize(X, None, scales, mode=interpolation, coordinate_transformation_mode=asymmetric, nearest_mode=floor)


def _targets(
    X: Tensor, over: list[int], scales: Ints | None, sizes: Ints | None, policy: str
) -> tuple[list[float], list[int]]:
    """The factor and the new size of each axis."""
    if empty(sizes):
        assert scales is not None
        factors = reals(scales)
        return factors, [int(X.shape[axis] * factor) for axis, factor in zip(over, factors)]
    assert sizes is not None
    wanted = ints(sizes)
    factors = [size / X.shape[axis] for axis, size in zip(over, wanted)]
    if policy != "stretch":
        factors = [min(factors) if policy == "not_larger" else max(factors)] * len(over)
        wanted = [int(factors[0] * X.shape[axis] + 0.5) for axis in over]
    return factors, wanted


def _resized(x: Tensor, axis: int, factor: float, size: int, part: tuple[float, float], how: Sampling) -> Tensor:
    places = _source(x, axis, factor, size, part, how.coordinates)
    if how.mode == "nearest":
        y = x.index_select(axis, _nearest(places, how.nearest).clamp(0, x.shape[axis] - 1))
    else:
        y = _weighted(x, axis, places, factor, how)
    if how.coordinates != "tf_crop_and_resize":
        return y
    outside = along((places < 0) | (places > x.shape[axis] - 1), axis, x.dim())
    return torch.where(outside, torch.full_like(y, how.outside), y)


def _source(x: Tensor, axis: int, factor: float, size: int, part: tuple[float, float], mode: str) -> Tensor:
    """Where each new place lies on the old axis."""
    old = x.shape[axis]
    new = torch.arange(size, device=x.device, dtype=torch.float64)
    if mode == "align_corners":
        return new * ((old - 1) / (size - 1) if size != 1 else 0.0)
    if mode == "asymmetric":
        return new / factor
    if mode == "tf_crop_and_resize":
        first, last = (edge * (old - 1) for edge in part)
        return first + (new * (last - first) / (size - 1) if size != 1 else new + (last - first) / 2)
    if mode == "pytorch_half_pixel" and size == 1:
        return new - 0.5
    shift = old / 2 * (1 - size / (factor * old)) if mode == "half_pixel_symmetric" else 0.0
    return shift + (new + 0.5) / factor - 0.5


def _nearest(places: Tensor, mode: str) -> Tensor:
    if mode == "floor":
        return places.floor().long()
    if mode == "ceil":
        return places.ceil().long()
    if mode == "round_prefer_ceil":
        return (places + 0.5).floor().long()
    return (places - 0.5).ceil().long()


def _weighted(x: Tensor, axis: int, places: Tensor, factor: float, how: Sampling) -> Tensor:
    shrink = min(factor, 1.0) if how.antialias else 1.0
    radius = math.ceil((1 if how.mode == "linear" else 2) / shrink)
    near = places.floor()[:, None] + torch.arange(1 - radius, radius + 1, device=x.device)
    distance = (near - places[:, None]).abs() * shrink
    weights = (1 - distance).clamp(min=0) if how.mode == "linear" else _cubic(distance, how.cubic)
    if how.exclude_outside:
        weights = weights * ((near >= 0) & (near < x.shape[axis]))
    if how.exclude_outside or how.antialias:
        weights = weights / weights.sum(1, keepdim=True)
    taken = x.index_select(axis, near.long().clamp(0, x.shape[axis] - 1).flatten()).unflatten(axis, near.shape)
    shape = [1] * taken.dim()
    shape[axis : axis + 2] = near.shape
    return (taken * weights.to(x.dtype).reshape(shape)).sum(axis + 1)


def _cubic(distance: Tensor, a: float) -> Tensor:
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return torch.where(distance <= 1, near, torch.where(distance < 2, far, torch.zeros_like(far)))


_GRID_MODES = {"linear": "bilinear", "cubic": "bicubic"}


def GridSample(
    X: Tensor, grid: Tensor, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Tensor:
    return functional.grid_sample(
        X, grid.to(X.dtype), _GRID_MODES.get(mode, mode), padding_mode, align_corners=bool(align_corners)
    )


def AffineGrid(theta: Tensor, size: Ints, *, align_corners: int = 0) -> Tensor:
    return functional.affine_grid(theta, ints(size), align_corners=bool(align_corners))
