"""What an optimizer remembers of every tensor: the part of a run that has to be saved beside the weights.

1. Moments are made when a tensor takes its first step, in the tensor's shape, as zeros.
2. `arrays` and `counts` are all there is: a store that loads them goes on bit for bit.
3. Now and then moments that nothing feeds any more (a mask stops the gradient) are set to 0: they would end as numbers
   too small for float32's full precision, which some processors add a hundred times slower than others.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from onnxsparse.errors import OptionError
from onnxsparse.optimizers.blocks import blocks
from onnxsparse.optimizers.optimizer import Optimizer
from onnxsparse.values import Array

SETTLE_EVERY, NOTHING = 64, 1e-36


class Moments:
    """The moments and step counts of named tensors."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.counts: dict[str, int] = {}
        self._kept: dict[str, dict[str, Array]] = {}

    def step(
        self, name: str, weight: Array, gradient: Array, rate: float, decay: float = 0.0, scale: float = 1.0
    ) -> None:
        """Change a weight in place by one gradient, times `scale`."""
        kept = self._moments(name, weight.shape)
        count = self.counts[name] = self.counts.get(name, 0) + 1
        flat = {moment: _flat(array) for moment, array in kept.items()}
        self.optimizer.step(_flat(weight), gradient.reshape(-1), flat, count, rate, decay, scale)
        if count % SETTLE_EVERY == 0:
            _settle(flat)

    def clear(self, name: str, where: Array | None = None) -> None:
        """Forget a tensor, or what is known of it at the True places of a mask of its shape."""
        if where is None:
            self._kept.pop(name, None)
            self.counts.pop(name, None)
            return
        for array in self._kept.get(name, {}).values():
            array[where] = 0

    def arrays(self) -> dict[str, Array]:
        """All moments as `moment/tensor`: the arrays themselves, which change with the next step."""
        return {f"{moment}/{name}": array for name, kept in self._kept.items() for moment, array in kept.items()}

    def load(self, arrays: Mapping[str, Array], counts: Mapping[str, int]) -> None:
        """Take over copies of what `arrays` and `counts` of another store were, in place of everything here."""
        kept: dict[str, dict[str, Array]] = {name: {} for name in counts}
        for key, array in arrays.items():
            moment, _, name = key.partition("/")
            kept.setdefault(name, {})[moment] = np.array(array, np.float32, order="C")
        for name, found in kept.items():
            self._check(name, found, counts.get(name, 0))
        self.counts = {name: int(count) for name, count in counts.items()}
        self._kept = {
            name: {moment: found[moment] for moment in self.optimizer.moments} for name, found in kept.items()
        }

    def _moments(self, name: str, shape: tuple[int, ...]) -> dict[str, Array]:
        if name not in self._kept:
            self._kept[name] = {moment: np.zeros(shape, np.float32) for moment in self.optimizer.moments}
        kept = self._kept[name]
        for array in kept.values():
            if array.shape != shape:
                raise OptionError(f"the moments of {name} have the shape {array.shape}, the tensor has {shape}")
        return kept

    def _check(self, name: str, found: Mapping[str, Array], count: int) -> None:
        if set(found) != set(self.optimizer.moments) or count < 1:
            wanted = " and ".join(self.optimizer.moments)
            raise OptionError(
                f"the saved moments of {name} ({' and '.join(sorted(found)) or 'none'}, after {count} steps) are not "
                f"those of {self.optimizer.text}: it keeps {wanted}"
            )


def _flat(array: Array) -> Array:
    """The same memory as one row."""
    if array.dtype != np.float32 or not array.flags.c_contiguous:
        raise ValueError(f"an optimizer changes contiguous float32 arrays in place, not {array.dtype}")
    return array.reshape(-1)


def _settle(moments: Mapping[str, Array]) -> None:
    for array in moments.values():
        for piece, size in blocks(array, scratch=1):
            piece[np.abs(piece, size) < NOTHING] = 0
