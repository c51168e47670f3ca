"""Modifiers that are read, checked and written, but that nothing runs yet: pruning at once by what comes into layers.

Each says in `missing` what a run of it would need. A recipe with one is refused before a run begins, unless it is read
leniently. One that learns to run gets a module of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from onnxsparse.recipes.modifiers.masked import GROUPS
from onnxsparse.recipes.modifiers.modifier import Scheduled, WrongOptionError, demand_between


@dataclass(frozen=True)
class WandaPruningModifier(Scheduled):
    """Prune at once, by magnitude times what comes in.

    - !WandaPruningModifier
      sparsity: 0.5
      mask_structure: 2:4
    """

    name: ClassVar[str] = "WandaPruningModifier"
    missing: ClassVar[str] = "what comes into each layer, on samples"

    sparsity: float | tuple[float, ...] | None = 0.0
    sparsity_profile: str | None = None
    owl_m: float | None = None
    owl_lmbda: float | None = None
    mask_structure: str = "0:0"
    sequential_targets: str | tuple[str, ...] | None = None
    prunen: int | None = None
    prunem: int | None = None
    sequential_update: bool = False
    targets: str | tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()

    def check(self) -> None:
        _demand_structure(self.sparsity, self.mask_structure)


def _demand_structure(sparsity: float | tuple[float, ...] | None, mask_structure: str) -> None:
    for level in sparsity if isinstance(sparsity, tuple) else (sparsity or 0.0,):
        demand_between("sparsity", level, 0, 1)
    if mask_structure != "0:0" and GROUPS.fullmatch(mask_structure) is None:
        raise WrongOptionError("mask_structure", f"it is N:M, or 0:0 for any zeros, not {mask_structure!r:.40}")


@dataclass(frozen=True)
class SparseGPTModifier(Scheduled):
    """Prune at once, with the rest moved so that each layer gives what it gave.

    - !SparseGPTModifier
      sparsity: 0.5
      mask_structure: 2:4
    """

    name: ClassVar[str] = "SparseGPTModifier"
    missing: ClassVar[str] = "what comes into each layer, on samples"

    sparsity: float | tuple[float, ...] | None = 0.0
    sparsity_profile: str | None = None
    owl_m: float | None = None
    owl_lmbda: float | None = None
    mask_structure: str = "0:0"
    sequential_targets: str | tuple[str, ...] | None = None
    prunen: int | None = None
    prunem: int | None = None
    block_size: int = 128
    dampening_frac: float | None = 0.01
    sequential_update: bool = False
    percdamp: float | None = None
    quantize: bool | dict[str, Any] | None = None
    preserve_sparsity_mask: bool = False
    offload_hessians: bool = False
    target_ids: tuple[str, ...] | None = None
    layer_prefix: str | None = None
    targets: str | tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()

    def check(self) -> None:
        _demand_structure(self.sparsity, self.mask_structure)
