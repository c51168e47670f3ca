"""Pruning at once, layer by layer, so that each gives what it gave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from onnxsparse.modifiers.scheduled import Scheduled, WrongOptionError, demand_between
from onnxsparse.recipes.modifiers.masked import GROUPS


@dataclass(frozen=True)
class SparseGPTModifier(Scheduled):
    """Prune at once, with the rest moved so that each layer gives what it gave.

    - !SparseGPTModifier
      sparsity: 0.5
      mask_structure: 2:4
    """

    name: ClassVar[str] = "SparseGPTModifier"
    missing: ClassVar[str] = "what comes into each layer, on samples"

    sparsity: float = 0.0
    mask_structure: str = "0:0"
    block_size: int = 128
    dampening_frac: float = 0.01
    sequential_update: bool = False
    percdamp: float | None = None
    quantize: bool | dict[str, Any] | None = None
    targets: str | tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()

    def check(self) -> None:
        demand_between("sparsity", self.sparsity, 0, 1)
        if self.mask_structure != "0:0" and GROUPS.fullmatch(self.mask_structure) is None:
            raise WrongOptionError(
                "mask_structure", f"it is N:M, or 0:0 for any zeros, not {self.mask_structure!r:.40}"
            )
