"""A stored tensor and how to read it: floats as bits, bfloat16 inside uint16, integers by scale and zero point.

Arrays are seen as (group, out, in, tap), usually a strided view of contiguous memory. *Stored order* is the order
of that memory, which is the C order of the tensor in the file: ties are broken in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Union

import numpy as np

from onnxsparse.errors import OptionError

Array = np.ndarray[tuple[Any, ...], np.dtype[Any]]
Index = Union[slice, tuple[slice, ...]]

BLOCK = 1 << 17
"""Elements worked on at a time, so that the scratch arrays stay in the cache."""

_FLOAT_BITS: dict[str, type[np.unsignedinteger[Any]]] = {
    "float64": np.uint64,
    "float32": np.uint32,
    "float16": np.uint16,
    "bfloat16": np.uint16,
}
_INFINITY = {"float64": 0x7FF << 52, "float32": 0x7F80_0000, "float16": 0x7C00, "bfloat16": 0x7F80}
_INTEGERS = ("int4", "uint4", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
_HELD_AS = {"bfloat16": "uint16", "int4": "int8", "uint4": "uint8"}


@dataclass(frozen=True)
class Reading:
    """What the stored numbers mean: their kind, and for integers scale and zero point (they broadcast to the view)."""

    kind: str
    scale: Array | None = None
    zero_point: Array | None = None

    def __post_init__(self) -> None:
        if self.kind not in _FLOAT_BITS and self.kind not in _INTEGERS:
            raise OptionError(f"numbers of kind {self.kind!r} cannot be ranked")

    @property
    def is_float(self) -> bool:
        return self.kind in _FLOAT_BITS

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        return np.dtype(_HELD_AS.get(self.kind, self.kind))

    @property
    def bits_dtype(self) -> np.dtype[Any]:
        """The unsigned integers as wide as the stored floats."""
        return np.dtype(_FLOAT_BITS[self.kind])

    @property
    def magnitude_bits(self) -> int:
        """Every bit of a stored float but the sign."""
        return (1 << (8 * self.bits_dtype.itemsize - 1)) - 1


def storage_axes(view: Array) -> tuple[int, ...]:
    """The axes of a view from the slowest to the fastest in memory."""
    return tuple(sorted(range(view.ndim), key=lambda axis: (view.shape[axis] > 1, -view.strides[axis])))


def stored_order(view: Array) -> Array:
    """The same elements with the axes in the order of the memory: C-contiguous for a view of a whole tensor."""
    return view.transpose(storage_axes(view))


def _sliced(array: Array | None, index: tuple[slice, ...], ndim: int) -> Array | None:
    if array is None:
        return None
    aligned = array.reshape((1,) * (ndim - array.ndim) + array.shape)
    return aligned[tuple(part if size != 1 else slice(None) for part, size in zip(index, aligned.shape))]


@dataclass(frozen=True, eq=False)
class Values:
    """Stored numbers together with their reading."""

    stored: Array
    reading: Reading

    def __post_init__(self) -> None:
        if self.stored.dtype != self.reading.stored_dtype:
            raise OptionError(f"{self.reading.kind} values cannot be stored as {self.stored.dtype}")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    def __getitem__(self, index: Index) -> Values:
        parts = index if isinstance(index, tuple) else (index,)
        full = parts + (slice(None),) * (self.stored.ndim - len(parts))
        scale = _sliced(self.reading.scale, full, self.stored.ndim)
        zero_point = _sliced(self.reading.zero_point, full, self.stored.ndim)
        return Values(self.stored[full], Reading(self.reading.kind, scale, zero_point))

    @property
    def bits(self) -> Array:
        """The stored floats as unsigned integers, without copying."""
        return self.stored.view(self.reading.bits_dtype)

    @property
    def zero(self) -> Array:
        """What a written zero is in stored form; it broadcasts to the view."""
        point = self.reading.zero_point
        return np.asarray(0 if point is None or self.reading.is_float else point).astype(self.stored.dtype)

    def real(self) -> Array:
        """The real numbers as float32 (float64 for float64 and for wide integers); may share memory with `stored`."""
        kind = self.reading.kind
        if kind == "bfloat16":
            return from_bfloat16(self.stored)
        if kind == "float64":
            return self.stored
        with np.errstate(invalid="ignore"):  # a signalling NaN is refused where it matters, not where it is cast
            return self.stored.astype(np.float32, copy=False) if self.reading.is_float else self._dequantised()

    def magnitude_keys(self) -> Array:
        """Unsigned integers in the order of the absolute real values."""
        if self.reading.is_float:
            keys: Array = self.bits & self.bits.dtype.type(self.reading.magnitude_bits)
            return keys
        # By what the reading has, never by its numbers: the keys of pieces of a weight must be comparable.
        magnitudes = np.abs(self._steps() if self.reading.scale is None else self._dequantised())
        return magnitudes.view(f"u{magnitudes.itemsize}")

    def is_zero(self) -> Array:
        """True where the real value is zero (-0.0 is zero)."""
        narrow = self.reading.kind in ("float16", "bfloat16")  # compared as bits: much faster
        zero: Array = self.magnitude_keys() == 0 if narrow else self.stored == self.zero
        return zero

    def all_finite(self) -> bool:
        """True when there is neither a NaN nor an infinity."""
        if not self.reading.is_float:
            scale = self.reading.scale
            return scale is None or bool(np.isfinite(scale).all())
        if self.reading.kind in ("float32", "float64") and self.stored.size:
            return bool(np.isfinite(self.stored.min()) and np.isfinite(self.stored.max()))  # NaN goes through both
        limit = _INFINITY[self.reading.kind]
        return all(int(part.magnitude_keys().max()) < limit for part in self.blocks())

    def blocks(self, elements: int = BLOCK) -> Iterator[Values]:
        """All values as pieces of about `elements` elements (more when the memory has few leading rows)."""
        for index in blocks_of(self.stored, elements):
            yield self[index]

    def _steps(self) -> Array:
        """The distance from the zero point in a type that holds it."""
        point = self.reading.zero_point
        if point is None:
            return self.stored
        wide = {1: np.int16, 2: np.int32}.get(self.stored.itemsize, np.float64)
        steps: Array = self.stored.astype(wide) - point.astype(wide)
        return steps

    def _dequantised(self) -> Array:
        wide = self.stored.dtype.itemsize >= 4
        steps: Array = self.stored.astype(np.float64 if wide else np.float32)
        if self.reading.zero_point is not None:
            steps = steps - self.reading.zero_point.astype(steps.dtype)
        if self.reading.scale is not None:
            with np.errstate(all="ignore"):  # a scale that is no number is refused where it matters
                steps = steps * self.reading.scale.astype(steps.dtype)
        return steps


def from_bfloat16(bits: Array) -> Array:
    """The numbers, as float32, that are stored as such bits."""
    wide: Array = bits.astype(np.uint32) << np.uint32(16)
    return wide.view(np.float32)


def to_bfloat16(numbers: Array) -> Array:
    """The bits of numbers, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    rounded: Array = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded


def blocks_of(view: Array, elements: int = BLOCK, cell: tuple[int, ...] | None = None) -> Iterator[tuple[slice, ...]]:
    """Indices that cut the whole cells of a view into pieces of about `elements`, in stored order (at least a cell)."""
    steps = cell or (1,) * view.ndim
    index = [slice(0, size - size % max(1, step)) for size, step in zip(view.shape, steps)]
    if all(part.stop for part in index):
        yield from _cut(index, storage_axes(view), steps, elements)


def _cut(
    index: list[slice], axes: tuple[int, ...], steps: tuple[int, ...], elements: int
) -> Iterator[tuple[slice, ...]]:
    if math.prod(index[axis].stop - index[axis].start for axis in axes) <= elements or not axes:
        yield tuple(index)
        return
    first, rest, whole = axes[0], axes[1:], index[axes[0]]
    row = math.prod(index[axis].stop for axis in rest) * steps[first]
    step = max(1, elements // row) * steps[first]
    for start in range(0, whole.stop, step):
        index[first] = slice(start, min(start + step, whole.stop))
        yield from _cut(index, rest, steps, elements // steps[first]) if row > elements else [tuple(index)]
    index[first] = whole


UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def erase(values: Values, keep: Array, out: Array) -> None:
    """Write the kept values, and zeros elsewhere, to `out`, which may be the stored array.

    By arithmetic on the stored bits, which is several times faster than a masked copy.
    """
    for index in blocks_of(values.stored):
        erase_block(values[index], keep[index], out[index])


def erase_block(values: Values, keep: Array, out: Array) -> None:
    """The same for a piece that fits the cache."""
    bits = values.stored.view(UNSIGNED[values.stored.itemsize])
    target = out.view(bits.dtype)
    kept = keep.astype(bits.dtype)
    if values.reading.is_float or values.reading.zero_point is None:
        np.multiply(bits, kept, out=target)
        return
    zero = values.zero.view(bits.dtype)  # unsigned arithmetic wraps, so adding it again gives the exact number back
    np.add(np.multiply(bits - zero, kept), zero, out=target)


def halved(array: Array, axis: int, operation: np.ufunc = np.add) -> Array:
    """Add (or the like) along an axis by halving it: the same order, so the same bits, on every machine."""
    parts: Array = np.moveaxis(array, axis, 0)
    while len(parts) > 1:
        half = len(parts) // 2
        both = operation(parts[:half], parts[half : 2 * half])
        parts = np.concatenate([both, parts[2 * half :]]) if len(parts) % 2 else both
    total: Array = parts[0]
    return total
