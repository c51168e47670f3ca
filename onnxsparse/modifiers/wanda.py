"""Pruning at once, by magnitude and by how large inputs are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.modifiers.scheduled import Scheduled, WrongOptionError, demand_between
from onnxsparse.recipes.modifiers.masked import GROUPS


@dataclass(frozen=True)
class WandaPruningModifier(Scheduled):
    """Prune at once, by magnitude times what comes in.

    - !WandaPruningModifier
      sparsity: 0.5
      mask_structure: 2:4
    """

    name: ClassVar[str] = "WandaPruningModifier"
    missing: ClassVar[str] = "what comes into each layer, on samples"

    sparsity: float = 0.0
    mask_structure: str = "0:0"
    targets: str | tuple[str, ...] | None = None

    def check(self) -> None:
        demand_between("sparsity", self.sparsity, 0, 1)
        if self.mask_structure != "0:0" and GROUPS.fullmatch(self.mask_structure) is None:
            raise WrongOptionError(
                "mask_structure", f"it is N:M, or 0:0 for any zeros, not {self.mask_structure!r:.40}"
            )
