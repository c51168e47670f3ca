"""The channel pattern."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.patterns.cells import CellPattern
from onnxsparse.patterns.pattern import Shape4


@dataclass(frozen=True)
class Channel(CellPattern):
    """All weights that read an input channel are zero; never those of all channels."""

    name: ClassVar[str] = "channel"

    @property
    def text(self) -> str:
        return "channel"

    def cell(self, shape: Shape4) -> Shape4:
        return (1, shape[1], 1, shape[3])

    def drop_count(self, shape: Shape4, sparsity: float | None) -> int:
        return min(super().drop_count(shape, sparsity), max(0, self.units(shape) - 1))
