"""A tensor that may be pruned, as scores, patterns and allocations see it: its names, and its numbers in four axes.

1. A `Param` is the same for a tensor of an ONNX file (`planning/stored_params.py` reads it slab by slab) and for a
   parameter of a torch module. `tag` is its key while it trains, `name` what reports call it.
2. `matrix` gives the stored numbers, flat, as (group, out, in, tap), the reduction along `in` and `tap`; `restore` is
   its inverse. Without them it is a vector, such as a bias.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from onnxsparse.errors import ModelError
from onnxsparse.math.values import Array, Reading, Values

View = Callable[[Array], Array]


@dataclass(frozen=True, eq=False)
class Param:
    """One prunable tensor. Where its numbers are held in memory `numbers` gives them, as float32 in stored order."""

    tag: str
    name: str
    shape: tuple[int, ...]
    matrix: View | None
    restore: View | None
    numbers: Callable[[], Array] | None = field(repr=False)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def shape4(self) -> tuple[int, ...]:
        """As (group, out, in, tap)."""
        if self.matrix is None:
            return (1, 1, 1, self.size)
        return self.matrix(np.broadcast_to(np.float32(0), (self.size,))).shape

    def over(self, flat: Array, start: int, stop: int) -> Values:
        """Elements start to stop of the stored tensor as values."""
        return Values(flat.reshape(1, 1, 1, -1) if self.matrix is None else self.matrix(flat), Reading("float32"))

    def whole(self) -> Values:
        ((start, stop, flat),) = Param.slabs(self)
        return self.over(flat, start, stop)

    def slabs(self, multiple: int = 1, outputs: int = 1) -> Iterator[tuple[int, int, Array]]:
        """Pieces of the stored tensor that cut no group of `multiple` along the reduction, and none of so many outputs:
        where they are, and their numbers."""
        assert self.numbers is not None
        yield 0, self.size, self.numbers().reshape(-1)

    def sample(self) -> Values | None:
        """Numbers from all over the tensor, in proportion to its size; None where they are at hand anyway."""
        return None


def demand_finite(values: Values, name: str) -> None:
    """Numbers that are none can neither be ranked nor trusted."""
    if not values.all_finite():
        raise ModelError(
            f"weight '{name}' holds NaN or infinity; repair the model, such a weight can be neither ranked nor trusted"
        )
