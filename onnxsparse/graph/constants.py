"""Constants of the evaluator: where their numbers come from, and the numbers, read when they are asked for.

    Stored     a tensor of the file                     Applied    an operator element by element
    Literal    a small array made on the way            Joined     values side by side
                                                        Made       an operator on whole arrays

A `Constant` is a window on one of these. Movements change the window and cost nothing; behind an operator that works
element by element they are handed on to its inputs. bfloat16 is computed as the float32 it stands for and rounded.
Numbers come whole (`numbers`) or at flat positions (`at`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Optional, Union

import numpy as np

from onnxsparse.graph.storage import Array, StoredTensor
from onnxsparse.graph.strided_view import Sizes, Window

HELD = 1 << 18
"""Elements of a value that are kept once they were computed."""
MOST = 1 << 32
"""Elements of the largest value that is computed as a whole, each counted once for every operator behind it."""
MADE_UP = 1 << 25
"""The same of a value that has more elements than the tensors it is made of: a file of a few bytes may ask for any."""
MOST_STEPS, DEEPEST = 4096, 100
RUNS = 1 << 10
"""Runs that are read one by one; with more of them what lies between is read as well."""

_COMPUTED_IN = {"bfloat16": "float32", "int4": "int8", "uint4": "uint8"}

Move = Callable[[Window], Optional[Window]]
Compute = Callable[..., Array]
Tensors = frozenset[StoredTensor]
NOTHING: Tensors = frozenset()


def dtype_of(kind: str) -> np.dtype[Any]:
    """The numpy type that numbers of a kind are computed in."""
    return np.dtype(_COMPUTED_IN.get(kind, kind))


def rounded(array: Array, kind: str) -> Array:
    """An array in the type of a kind; what bfloat16 cannot hold is rounded to the nearest even."""
    array = np.asarray(array)
    with np.errstate(all="ignore"):
        array = array.astype(dtype_of(kind), copy=False)
    if kind != "bfloat16":
        return array
    bits = array.view(np.uint32) if array.ndim else array.reshape(1).view(np.uint32).reshape(())
    up = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    even = np.where(np.isnan(array), bits | np.uint32(0x0040_0000), up) & np.uint32(0xFFFF_0000)
    return np.ascontiguousarray(even).view(np.float32).reshape(array.shape)


class NoNumbersError(Exception):
    """Numbers that would fill the memory, or that numpy cannot compute."""


def computed(compute: Compute, arrays: Sequence[Array], kind: str) -> Array:
    """What an operator makes of arrays, in the type of a kind."""
    try:
        with np.errstate(all="ignore"):
            return rounded(compute(*arrays), kind)
    except (ValueError, IndexError, TypeError, OverflowError, ZeroDivisionError, MemoryError) as error:
        raise NoNumbersError(f"its numbers cannot be computed ({type(error).__name__})") from error


class Source:
    """Where numbers come from."""

    shape: Sizes
    kind: str
    tensors: Tensors = NOTHING
    steps = depth = 1
    """The operators behind it, counted once for each way to them, and those on the longest way."""

    def __init__(self, inputs: Sequence[Constant] = ()) -> None:
        self._held: Array | None = None
        if inputs:
            self.tensors = NOTHING.union(*(one.tensors for one in inputs))
            self.steps = 1 + sum(one.source.steps for one in inputs)
            self.depth = 1 + max(one.source.depth for one in inputs)

    def flat(self) -> Array:
        """All numbers, in C order."""
        if self._held is not None:
            return self._held
        self.demand_room(self.shape)
        found = self._flat()
        if found.size <= HELD:
            self._held = found
        return found

    def demand_room(self, shape: Sizes) -> None:
        """Refuse numbers that would take gigabytes or minutes, before any of them is computed."""
        size, stored = math.prod(shape), 2 * sum(tensor.size for tensor in self.tensors)
        if size > max(MADE_UP, stored) or size * self.steps > MOST:
            raise NoNumbersError(f"a value of shape {list(shape)} on its way is too large to be looked at")

    def hold(self) -> None:
        """Keep the numbers from now on: whoever changes the tensor changes them for others only."""
        self._held = self.flat()

    def _flat(self) -> Array:
        raise NotImplementedError

    def at(self, positions: Array) -> Array:
        """The numbers at flat positions."""
        return self.flat()[positions]


class Stored(Source):
    def __init__(self, tensor: StoredTensor) -> None:
        super().__init__()
        self.tensor, self.shape, self.kind = tensor, tensor.shape, tensor.kind
        self.tensors = frozenset({tensor})

    def _flat(self) -> Array:
        return widened(self.tensor.read(), self.kind)

    def part(self, window: Window) -> Array | None:
        """The numbers in a window that covers less than half of the tensor, reading no more than it needs."""
        start, stop = window.bounds
        if self._held is not None or self.tensor.size <= HELD or 2 * (stop - start) > self.tensor.size:
            return None
        return Window(window.offset - start, window.axes).of(widened(self.tensor.read(start, stop), self.kind))

    def at(self, positions: Array) -> Array:
        if self._held is not None or self.tensor.span is None or not positions.size:
            return super().at(positions)
        wanted, back = np.unique(positions, return_inverse=True)
        starts = np.flatnonzero(np.diff(wanted, prepend=wanted[0] - 2) != 1)
        if len(starts) > RUNS:
            first = int(wanted[0])
            found = self.tensor.read(first, int(wanted[-1]) + 1)[wanted - first]
        else:
            runs = zip(wanted[starts].tolist(), wanted[np.append(starts[1:], len(wanted)) - 1].tolist())
            found = np.concatenate([self.tensor.read(start, stop + 1) for start, stop in runs])
        return widened(found, self.kind)[back.reshape(positions.shape)]


def widened(stored: Array, kind: str) -> Array:
    """The numbers that a stored array stands for: bfloat16 is stored as bits."""
    if kind != "bfloat16":
        return stored
    wide: Array = stored.astype(np.uint32) << np.uint32(16)
    return wide.view(np.float32)


class Literal(Source):
    def __init__(self, array: Array, kind: str = "") -> None:
        super().__init__()
        self._held = np.ascontiguousarray(array).reshape(-1)
        self.shape, self.kind = tuple(array.shape), kind or array.dtype.name


class Applied(Source):
    """An operator that makes each number from those at the same place of its inputs."""

    def __init__(self, compute: Compute, inputs: Sequence[Constant], kind: str, shape: Sizes | None = None) -> None:
        super().__init__(inputs)
        self.compute, self.inputs, self.kind = compute, tuple(inputs), kind
        self.shape = np.broadcast_shapes(*(one.shape for one in inputs)) if shape is None else shape

    def on(self, arrays: Sequence[Array]) -> Array:
        return computed(self.compute, arrays, self.kind)

    def _flat(self) -> Array:
        return np.ascontiguousarray(self._whole()).reshape(-1)

    def _whole(self) -> Array:
        return np.broadcast_to(self.on([one.numbers() for one in self.inputs]), self.shape)

    def part(self, window: Window) -> Array | None:
        """All numbers of a large value in the order of its inputs' memory: to turn them costs more than to compute."""
        large = HELD // 4 < math.prod(self.shape) <= MOST
        return self._whole() if large and self._held is None and window == Window.whole(self.shape) else None

    def at(self, positions: Array) -> Array:
        if self._held is not None:
            return super().at(positions)
        return self.on([one.spread(self.shape).at(positions) for one in self.inputs])


class Joined(Source):
    """Concat."""

    def __init__(self, pieces: Sequence[Constant], axis: int) -> None:
        super().__init__(pieces)
        self.pieces, self.axis, self.kind = tuple(pieces), axis, pieces[0].kind
        first = pieces[0].shape
        self.bounds = np.cumsum([0, *(piece.shape[axis] for piece in pieces)])
        self.shape = (*first[:axis], int(self.bounds[-1]), *first[axis + 1 :])

    def _flat(self) -> Array:
        return np.concatenate([piece.numbers() for piece in self.pieces], self.axis).reshape(-1)

    def at(self, positions: Array) -> Array:
        if self._held is not None:
            return super().at(positions)
        found = np.empty(positions.shape, dtype_of(self.kind))
        for number, piece in enumerate(self.pieces):
            mine, here = self.inside(number, positions)
            if mine.any():
                found[mine] = piece.at(here)
        return found

    @property
    def _inner(self) -> int:
        return math.prod(self.shape[self.axis + 1 :])

    def owners(self, positions: Array) -> Array:
        """The number of the piece at each position."""
        index = positions // self._inner % self.shape[self.axis]
        return np.searchsorted(self.bounds, index, "right") - 1

    def inside(self, number: int, positions: Array) -> tuple[Array, Array]:
        """Which positions lie in a piece, and where in it they are."""
        mine = self.owners(positions) == number
        outer, rest = np.divmod(positions[mine], self.shape[self.axis] * self._inner)
        index, rest = np.divmod(rest, self._inner)
        length = int(self.bounds[number + 1] - self.bounds[number])
        return mine, (outer * length + index - self.bounds[number]) * self._inner + rest


class Made(Source):
    """An operator on whole arrays; `places` says which element of the first input stands at a position."""

    def __init__(
        self,
        compute: Compute,
        inputs: Sequence[Constant],
        shape: Sizes,
        kind: str,
        places: Callable[[Array], Array] | None = None,
    ) -> None:
        super().__init__(inputs)
        self.compute, self.inputs, self.shape, self.kind, self.places = compute, tuple(inputs), shape, kind, places

    def _flat(self) -> Array:
        found = computed(self.compute, [one.numbers() for one in self.inputs], self.kind)
        return np.ascontiguousarray(found).reshape(-1)

    def at(self, positions: Array) -> Array:
        if self.places is None or self._held is not None:
            return super().at(positions)
        return self.inputs[0].at(self.places(positions))


@dataclass(frozen=True, eq=False)
class Constant:
    """A value that is known without running the model."""

    source: Source
    window: Window

    @classmethod
    def of(cls, source: Source) -> Constant:
        return cls(source, Window.whole(source.shape))

    @classmethod
    def literal(cls, array: Array, kind: str = "") -> Constant:
        return cls.of(Literal(np.asarray(array), kind))

    @property
    def shape(self) -> Sizes:
        return self.window.shape

    @property
    def size(self) -> int:
        return self.window.size

    @property
    def kind(self) -> str:
        return self.source.kind

    @property
    def source_width(self) -> int:
        """Bytes of one number."""
        return dtype_of(self.kind).itemsize

    @property
    def tensors(self) -> Tensors:
        return self.source.tensors

    @property
    def matrix(self) -> bool:
        """Not a vector, as those are that scale what flows through a model."""
        return bool(self.tensors) and sum(size > 1 for size in self.shape) >= 2

    def numbers(self) -> Array:
        self.source.demand_room(self.shape)
        found = self.source.part(self.window) if isinstance(self.source, (Stored, Applied)) else None
        return self.window.of(self.source.flat()) if found is None else found

    def at(self, positions: Array) -> Array:
        return self.source.at(self.window.at(positions))

    def moved(self, move: Move) -> Constant:
        """The same numbers seen otherwise."""
        if isinstance(self.source, Applied):
            inputs = [one.spread(self.shape).moved(move) for one in self.source.inputs]
            return Constant.of(Applied(self.source.compute, inputs, self.kind, inputs[0].shape))
        window = move(self.window)
        if window is not None:
            return Constant(self.source, window)
        copied = Made(lambda array: array, [self], self.shape, self.kind, lambda positions: positions)
        return Constant.of(copied).moved(move)

    def spread(self, shape: Sizes) -> Constant:
        """Broadcast to a shape."""
        return self if self.shape == shape else self.moved(lambda window: window.spread(shape))

    def reshaped(self, shape: Sequence[int]) -> Constant:
        return self.moved(lambda window: window.reshaped(shape))


class Unknown:
    """A constant whose numbers cannot be told, or (`late`) one that has met a value known only at run time."""

    def __init__(self, reason: str, inputs: Sequence[Constant | Unknown], late: bool = False) -> None:
        self.reason, self.inputs, self.late = reason, tuple(inputs), late
        self.tensors: Tensors = NOTHING.union(*(one.tensors for one in inputs))
        self.matrix: bool = any(one.matrix for one in inputs)


Known = Optional[Union[Constant, Unknown]]


def sources(value: Constant) -> Iterator[tuple[StoredTensor, Window | None]]:
    """The stored tensors behind a value with the window they are seen through; None where it is not one window."""
    source = value.source
    if isinstance(source, Stored):
        yield source.tensor, value.window
    elif isinstance(source, Applied):
        for one in source.inputs:
            yield from sources(one.spread(value.shape))
    else:
        yield from ((tensor, None) for tensor in source.tensors)


def streamed(values: Sequence[Constant], multiple: int, elements: int) -> Iterator[list[Constant]]:
    """Values of one shape in pieces of about so many elements, cut along the axis that is slowest in memory.

    The last axis but one (a matrix's reduction) is cut at multiples of `multiple`. Values that cannot be cut without
    copying, and small ones, come whole.
    """
    shape, looks = values[0].shape, [window for one in values for _, window in sources(one)]
    known = [window for window in looks if window is not None]
    axis = max(range(len(shape)), key=lambda at: _stride(known[0], at), default=-1) if known else -1
    if values[0].size <= 2 * elements or axis < 0 or len(known) < len(looks):
        yield list(values)
        return
    if any(window.sliced(axis, 0, 1, 1) is None for window in known):
        yield list(values)
        return
    unit = multiple if axis == len(shape) - 2 else 1
    step = max(1, elements * shape[axis] // values[0].size // unit) * unit
    for start in range(0, shape[axis], step):
        count = min(step, shape[axis] - start)
        yield [one.moved(partial(Window.sliced, axis=axis, start=start, count=count, step=1)) for one in values]


def _stride(window: Window, axis: int) -> int:
    return max((abs(stride) for size, stride in window.axes[axis] if size > 1), default=0)


def image(value: Constant, tensor: StoredTensor, number: Array, limit: int = HELD) -> Array | None:
    """What a value is where a stored tensor holds `number` (broadcasts to the value), without reading the tensor.

    Axes along which nothing else differs have size 1. None where that cannot be told from small arrays alone.
    """
    source = value.source
    if isinstance(source, Stored) and source.tensor is tensor:
        return widened(number, source.kind)
    if isinstance(source, Applied):
        arrays = [image(one.spread(value.shape), tensor, number, limit) for one in source.inputs]
        known = [array for array in arrays if array is not None]
        return source.on(known) if len(known) == len(arrays) else None
    small = value.window.without_repeats()
    if small.size > limit or tensor in source.tensors:
        return None
    return small.of(source.flat())


def origins(value: Constant, tensor: StoredTensor) -> Array | None:
    """The flat element of `tensor` that each number of a value is made from, -1 where none; None where two are."""
    source = value.source
    if tensor not in source.tensors:
        return np.broadcast_to(np.int64(-1), value.shape)
    if isinstance(source, Stored):
        return value.window.of(np.arange(source.tensor.size))
    if isinstance(source, Joined):
        pieces = [origins(piece, tensor) for piece in source.pieces]
        found = [piece for piece in pieces if piece is not None]
        whole = np.concatenate(found, source.axis) if len(found) == len(pieces) else None
    elif isinstance(source, Applied):
        mine = [origins(one.spread(value.shape), tensor) for one in source.inputs if tensor in one.tensors]
        whole = None if not mine or any(one is None for one in mine) else mine[0]
        if whole is not None and any(not np.array_equal(whole, one) for one in mine[1:] if one is not None):
            whole = None
    elif isinstance(source, Made) and source.places is not None:
        inner = origins(source.inputs[0], tensor)
        at = source.places(np.arange(int(np.prod(source.shape, dtype=np.int64))))
        whole = None if inner is None else np.ascontiguousarray(inner).reshape(-1)[at]
    else:
        return None
    return None if whole is None else value.window.of(np.ascontiguousarray(whole).reshape(-1))
