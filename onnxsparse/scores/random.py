"""The random score."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from onnxsparse.errors import OptionError
from onnxsparse.scores.score import Score
from onnxsparse.values import Array, Values, stored_order


@dataclass(frozen=True)
class Random(Score):
    """A random order that depends on the seed and the tensor's name alone; existing zeros still go first."""

    name: ClassVar[str] = "random"
    seed: int = 0
    tensor: str = field(default="", metadata={"option": False})

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 1 << 64:
            raise OptionError(f"a seed is a whole number from 0 to 2**64 - 1, not {self.seed}")

    @property
    def text(self) -> str:
        return f"{self.name}:seed={self.seed}"

    def bind(self, tensor: str) -> Random:
        return replace(self, tensor=tensor)

    def rank(self, values: Values) -> Array:
        keys = np.empty_like(values.stored, dtype=np.uint32)
        in_order = stored_order(keys)
        in_order[...] = self._numbers(keys.size).reshape(in_order.shape)
        keys[values.is_zero()] = 0
        return keys

    def value(self, values: Values) -> Array:
        return self.rank(values) / np.float64(1 << 32)

    def _numbers(self, count: int) -> Array:
        name = np.frombuffer(hashlib.sha256(self.tensor.encode()).digest()[:16], dtype="<u8")
        counter = [0, 0, int(name[0]), int(name[1])]
        raw = np.random.Philox(key=self.seed, counter=np.array(counter, np.uint64)).random_raw(count)
        # Never 0, which is left to the existing zeros.
        return (raw >> np.uint64(32)).astype(np.uint32) | np.uint32(1)
