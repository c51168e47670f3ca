"""What modifiers have in common that put zeros into weights: which weights, in which pattern, how many in the end.

1. `params` is a list of names and of `re:` patterns, or one of the two words for all; an empty list means all that can
   be pruned.
2. `mask_type` is `unstructured`, `block4`, a block `[outputs, inputs]`, `N:M`, or `tensorrt`, which is 2:4.
3. N:M says by itself how many zeros there are: a final sparsity that says something else is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.errors import nearest
from onnxsparse.modifiers.scheduled import REQUIRED, Scheduled, WrongOptionError, demand_inside, demand_params

UNSTRUCTURED, BLOCK4, TENSORRT, FILTER, CHANNEL = "unstructured", "block4", "tensorrt", "filter", "channel"
GROUPS = re.compile(r"([1-9]\d{0,5}):([1-9]\d{0,5})")
NEAR = 0.01
"""How far a final sparsity may lie from what N:M means."""


@dataclass(frozen=True)
class Masked(Scheduled):
    """A modifier that prunes."""

    unwritten: ClassVar[tuple[str, ...]] = ()
    mask_types: ClassVar[tuple[str, ...]] = (UNSTRUCTURED, BLOCK4, TENSORRT)

    start_epoch: float = REQUIRED
    end_epoch: float = REQUIRED
    update_frequency: float = REQUIRED
    params: str | tuple[str, ...] | None = REQUIRED
    mask_type: str | tuple[int, ...] = UNSTRUCTURED

    def check(self) -> None:
        if self.params is None:
            object.__setattr__(self, "params", ())
        demand_params("params", self.params or ())
        self._check_mask()

    @property
    def n_of_m(self) -> tuple[int, int] | None:
        """N and M, where the mask is of that kind."""
        if self.mask_type == TENSORRT:
            return 2, 4
        found = GROUPS.fullmatch(self.mask_type) if isinstance(self.mask_type, str) else None
        return None if found is None else (int(found[1]), int(found[2]))

    def demand_fit(self, option: str, sparsity: float) -> None:
        """The zeros asked for are those that N:M means."""
        if self.n_of_m is None:
            return
        kept, of = self.n_of_m
        if abs(sparsity - (1 - kept / of)) > NEAR:
            raise WrongOptionError(option, f"mask_type {self.mask_type} means {1 - kept / of:g}, not {sparsity:g}")

    def _check_mask(self) -> None:
        if isinstance(self.mask_type, tuple):
            return self._check_block(self.mask_type)
        if self.mask_type in self.mask_types:
            return None
        if self.n_of_m is not None and TENSORRT in self.mask_types:
            kept, of = self.n_of_m
            if kept >= of:
                raise WrongOptionError("mask_type", f"{kept}:{of} keeps all; N:M keeps N of every M")
            return None
        if self.mask_type in (FILTER, CHANNEL):
            raise WrongOptionError("mask_type", f"{self.mask_type} is for !StructuredPruningModifier")
        hint = nearest(self.mask_type, self.mask_types) or f" (known: {', '.join(self.mask_types)}{self._more()})"
        raise WrongOptionError("mask_type", f"{self.mask_type!r:.40} is not known{hint}")

    def _more(self) -> str:
        return ", N:M, [outputs, inputs]" if TENSORRT in self.mask_types else ""

    def _check_block(self, sides: tuple[int, ...]) -> None:
        trimmed = sides[:2] if all(side == 1 for side in sides[2:]) else sides
        if TENSORRT not in self.mask_types:
            raise WrongOptionError("mask_type", f"it is one of {', '.join(self.mask_types)}, not a block")
        if len(trimmed) != 2 or not all(side == -1 or side >= 1 for side in trimmed):
            raise WrongOptionError(
                "mask_type", f"a block is [outputs, inputs], from 1 or -1 for all, not {list(sides)}"
            )


def demand_levels(modifier: Masked, option: str, levels: float | Mapping[float, tuple[str, ...]]) -> None:
    """One level for all that `params` names, or names by level: then `params` is empty."""
    if isinstance(levels, Mapping):
        if modifier.params != ():
            raise WrongOptionError(option, "it names its own weights for each level, so params has to be []")
        for names in levels.values():
            demand_params(option, names)
    for level in levels if isinstance(levels, Mapping) else (levels,):
        demand_inside(option, level, 0, 1)
        modifier.demand_fit(option, level)
