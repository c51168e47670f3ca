"""The sum that a layer takes of its inputs, as a matrix product: rows of inputs, and the weight in the same order.

    outputs[g] = rows[g] @ matrix[g].T        rows (groups, positions, K), matrix (groups, outputs of a group, K)

K is in the order of the hardware: place after place of a kernel, and in each the input channels side by side.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from onnx import NodeProto

from onnxsparse.graph.attributes import Attributes
from onnxsparse.math.values import Array


class Reduction(ABC):
    """What one layer sums up."""

    @abstractmethod
    def rows(self, inputs: Array, most: int | None = None) -> Array:
        """What is multiplied with the weight; of each sample at most so many positions, evenly spread."""

    @abstractmethod
    def matrix(self, weight: Array) -> Array:
        """Stored numbers, one for each weight, in the order of the rows."""

    @abstractmethod
    def restored(self, matrix: Array) -> Array:
        """A matrix as it is stored."""


def reduction_of(node: NodeProto, slot: int, dims: Sequence[int]) -> Reduction | None:
    """The reduction of a layer whose weight is input `slot`; None where that is not one of a Conv, Gemm or MatMul."""
    own = Attributes(node, {})
    if node.op_type == "Conv" and slot == 1:
        return _Convolution.of(node, tuple(dims))
    if node.op_type == "Gemm" and len(dims) == 2:
        turned = [own.integer("transA"), own.integer("transB")]
        by_rows = bool(turned[slot]) if slot == 1 else not turned[0]
        return _Linear(by_rows, turned[1 - slot] == (1 if slot == 1 else 0))
    if node.op_type == "MatMul" and len(dims) == 2:
        return _Linear(by_rows=slot == 0, turned=slot == 0)
    return None


@dataclass(frozen=True)
class _Linear(Reduction):
    """The last axis of the inputs, or where they are `turned` the last but one."""

    by_rows: bool
    """Whether the weight is stored with its outputs first."""
    turned: bool

    def rows(self, inputs: Array, most: int | None = None) -> Array:
        arranged = np.swapaxes(inputs, -1, -2) if self.turned else inputs
        if arranged.ndim > 2:
            arranged = arranged.reshape(arranged.shape[0], -1, arranged.shape[-1])
            arranged = arranged[:, _spread(arranged.shape[1], most)]
        return arranged.reshape(1, -1, arranged.shape[-1])

    def matrix(self, weight: Array) -> Array:
        return (weight if self.by_rows else weight.T)[None]

    def restored(self, matrix: Array) -> Array:
        return np.ascontiguousarray(matrix[0] if self.by_rows else matrix[0].T)


@dataclass(frozen=True)
class _Convolution(Reduction):
    """The windows of an image (im2col)."""

    dims: tuple[int, ...]
    groups: int
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    auto_pad: str

    @classmethod
    def of(cls, node: NodeProto, dims: tuple[int, ...]) -> _Convolution:
        own, ones = Attributes(node, {}), [1] * (len(dims) - 2)
        given = {"strides": ones, "dilations": ones, "pads": [0] * 2 * len(ones)}
        strides, dilations, pads = (tuple(own.integers(name, usual) or ()) for name, usual in given.items())
        return cls(dims, own.integer("group", 1), strides, dilations, pads, own.text("auto_pad", "NOTSET"))

    def rows(self, inputs: Array, most: int | None = None) -> Array:
        spatial = inputs.ndim - 2
        padded = np.pad(inputs, [(0, 0), (0, 0), *self._padding(inputs.shape[2:])])
        spans = [dilation * (size - 1) + 1 for dilation, size in zip(self.dilations, self.dims[2:])]
        windows = sliding_window_view(padded, spans, tuple(range(2, 2 + spatial)))
        steps = [slice(None, None, step) for step in (*self.strides, *self.dilations)]
        windows = windows[(slice(None), slice(None), *steps)]  # N, C, positions, taps
        sizes = windows.shape[2 : 2 + spatial]
        places = np.unravel_index(_spread(int(np.prod(sizes)), most), sizes)
        every: tuple[Any, ...] = (slice(None), slice(None))
        taken = windows[(*every, *places)]  # N, C, position, taps
        count, channels = inputs.shape[0], inputs.shape[1] // self.groups
        taken = taken.reshape(count, self.groups, channels, taken.shape[2], -1)
        found: Array = taken.transpose(1, 0, 3, 4, 2).reshape(self.groups, count * taken.shape[3], -1)
        return found

    def _padding(self, sizes: Sequence[int]) -> list[tuple[int, int]]:
        half = len(self.pads) // 2
        if self.auto_pad in ("NOTSET", "VALID", ""):
            return [(0, 0)] * half if self.auto_pad == "VALID" else list(zip(self.pads[:half], self.pads[half:]))
        found = []
        for size, step, dilation, taps in zip(sizes, self.strides, self.dilations, self.dims[2:]):
            total = max((-(-size // step) - 1) * step + dilation * (taps - 1) + 1 - size, 0)
            small, large = total // 2, total - total // 2
            found.append((small, large) if self.auto_pad == "SAME_UPPER" else (large, small))
        return found

    def matrix(self, weight: Array) -> Array:
        shaped = weight.reshape(self.groups, self.dims[0] // self.groups, self.dims[1], -1)
        return shaped.transpose(0, 1, 3, 2).reshape(self.groups, self.dims[0] // self.groups, -1)

    def restored(self, matrix: Array) -> Array:
        shaped = matrix.reshape(self.groups, self.dims[0] // self.groups, -1, self.dims[1])
        return np.ascontiguousarray(shaped.transpose(0, 1, 3, 2).reshape(self.dims))


def _spread(count: int, most: int | None) -> Array:
    """At most so many of the first whole numbers, evenly spread."""
    if not most or count <= most:
        return np.arange(count)
    return np.arange(most) * count // most


__all__ = ["Reduction", "reduction_of"]
