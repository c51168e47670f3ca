"""Stored numbers as the real ones that they stand for, and back: floats, and integers with a scale.

1. Real numbers are flat, in stored order and in double precision; new ones go into the type of the tensor.
2. A scale of integers grows where new numbers do not fit, to the largest of them over the largest integer. With scales
   held, refitted numbers are cut off, and a net falls apart.
3. The scale of an integer bias is that of its weight times that of the input, so it grows along; the integers of the
   bias are made anew.
4. Where other nodes read the scale as well, or it is no tensor of its own, `held` says so: such numbers cannot be
   refitted, only taken away.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from onnxsparse.graph.elementwise import RANGES, Quantization
from onnxsparse.graph.storage import StoredTensor
from onnxsparse.math.values import Array, from_bfloat16, to_bfloat16

Numbers = Mapping[str, Array]
"""New numbers of stored tensors, in their types and shapes, by name."""
ROUNDING = 1e-3
"""Scales that differ by no more than such a part are the same."""


@dataclass(frozen=True, eq=False)
class StoredNumbers(ABC):
    tensor: StoredTensor

    @property
    def held(self) -> str:
        """Why they may be taken away but not refitted; nothing where they may."""
        return ""

    @abstractmethod
    def real(self, changed: Numbers) -> Array:
        """What they stand for, with the numbers that changed already."""

    @abstractmethod
    def written(self, real: Array, changed: Numbers) -> dict[str, Array]:
        """The tensors that store such numbers, by name."""

    def stored(self, changed: Numbers) -> Array:
        """As they are stored: flat."""
        known = changed.get(self.tensor.name)
        return self.tensor.read() if known is None else known.reshape(-1)


class Floats(StoredNumbers):
    def real(self, changed: Numbers) -> Array:
        flat = self.stored(changed)
        numbers = from_bfloat16(flat) if self.tensor.kind == "bfloat16" else flat
        return numbers.astype(np.float64)

    def written(self, real: Array, changed: Numbers) -> dict[str, Array]:
        return {self.tensor.name: in_kind(real.reshape(self.tensor.shape), self.tensor.kind)}


def in_kind(array: Array, kind: str) -> Array:
    """Numbers in the type that a tensor stores; those of bfloat16 as their bits."""
    return to_bfloat16(array) if kind == "bfloat16" else np.asarray(array, kind, order="C")


@dataclass(frozen=True, eq=False)
class Integers(StoredNumbers):
    """A weight: integers less their zero point, times a scale."""

    quantization: Quantization
    scale: StoredTensor | None
    """Where the scale is stored, if it may grow."""
    why_held: str = ""

    @property
    def held(self) -> str:
        return self.why_held

    def scales(self, changed: Numbers) -> Array:
        """One axis for each atom that the tensor is cut into."""
        shape = self.quantization.scale.shape
        if self.scale is None or self.scale.name not in changed:
            return self.quantization.scale.astype(np.float64)
        return changed[self.scale.name].astype(np.float64).reshape(shape)

    @property
    def _zero(self) -> Array:
        return self.quantization.zero_point.astype(np.float64)

    def real(self, changed: Numbers) -> Array:
        numbers = self.stored(changed).reshape(self.quantization.atoms).astype(np.float64)
        flat: Array = ((numbers - self._zero) * self.scales(changed)).reshape(-1)
        return flat

    def written(self, real: Array, changed: Numbers) -> dict[str, Array]:
        atoms = real.reshape(self.quantization.atoms)
        low, high = _range(self.tensor.kind, self.stored(changed))
        scales = self._grown(atoms, self.scales(changed), low, high)
        integers = np.clip(np.rint(atoms / scales) + self._zero, low, high)
        found = {self.tensor.name: integers.reshape(self.tensor.shape).astype(self.tensor.dtype)}
        if self.scale is not None:
            found[self.scale.name] = in_kind(scales.reshape(self.scale.shape), self.scale.kind)
        return found

    def _grown(self, atoms: Array, scales: Array, low: float, high: float) -> Array:
        if self.scale is None or self.held:
            return scales
        alike = tuple(axis for axis, size in enumerate(scales.shape) if size == 1)
        above, below = (atoms.max(axis=alike, keepdims=True), atoms.min(axis=alike, keepdims=True))
        with np.errstate(divide="ignore", invalid="ignore"):
            needed = [above / (high - self._zero), below / (low - self._zero)]
        found = scales
        for one in needed:
            found = np.maximum(found, np.where(np.isfinite(one), one, 0.0))
        return found.astype(np.float32).astype(np.float64)

    def growth(self, changed: Numbers) -> Array:
        """How many times as large the scale is as in the file, flat: one number, or one for each part."""
        found: Array = self.scales(changed).reshape(-1) / self.quantization.scale.astype(np.float64).reshape(-1)
        return found


def _range(kind: str, stored: Array) -> tuple[float, float]:
    """Integers of both signs are as large below zero as above it, unless the file has larger ones."""
    low, high = RANGES[kind]
    return (float(min(-high, stored.min(initial=0))) if low < 0 else float(low)), float(high)


@dataclass(frozen=True, eq=False)
class IntegerBias(StoredNumbers):
    """A bias: integers times a scale, which follows that of a weight where it is made of that."""

    scales: Array
    """Of each number, or one for all, in the file."""
    scale: StoredTensor | None
    """Where it is stored; nothing where the node makes it of the other two."""
    weight: Integers | None
    """Whose scale it follows."""

    def _scales(self, changed: Numbers) -> Array:
        if self.weight is None:
            return self.scales
        found: Array = self.scales * self.weight.growth(changed)
        return found

    def real(self, changed: Numbers) -> Array:
        """By the scale of the file: only its own weight moves that, together with it."""
        found: Array = self.stored(changed).astype(np.float64) * self.scales
        return found

    def written(self, real: Array, changed: Numbers) -> dict[str, Array]:
        scales, limits = self._scales(changed), np.iinfo(self.tensor.dtype)
        integers = np.clip(np.rint(real / scales), limits.min, limits.max)
        found = {self.tensor.name: integers.reshape(self.tensor.shape).astype(self.tensor.dtype)}
        if self.scale is not None:
            stored = np.broadcast_to(scales, (self.scale.size,)) if self.scale.size > 1 else scales
            found[self.scale.name] = in_kind(stored.reshape(self.scale.shape), self.scale.kind)
        return found


def follows(bias: Array, weight: Array) -> bool:
    """Whether the scale of a bias is that of a weight times one number."""
    if bias.size != weight.size and 1 not in (bias.size, weight.size):
        return False
    ratios = bias.reshape(-1).astype(np.float64) / weight.reshape(-1).astype(np.float64)
    return bool(np.ptp(ratios) <= ROUNDING * np.abs(ratios).max()) and bias.size >= weight.size


__all__ = ["Floats", "IntegerBias", "Integers", "Numbers", "StoredNumbers", "follows", "in_kind"]
