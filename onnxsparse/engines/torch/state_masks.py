"""Masks that other tools left in a state dict, by the names of parameters; and masks as plain arrays.

mask_dict            an entry of that name holds the masks, each called as its parameter
__weight_mma_mask    beside `weight`: those of the ASP of NVIDIA's apex
weight_mask          beside `weight_orig`: those of torch.nn.utils.prune
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from onnxsparse.errors import PlanError
from onnxsparse.math.values import Array

DICT = "mask_dict"
_MMA = re.compile(r"(.*\.|)__(.+)_mma_mask")
_SUFFIXES = ("", "_mask", ".mask", "_fake_sparse.mask")
_PREFIXES = ("module.", "_orig_mod.")


def masks_of_state(state: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Array] | None:
    """Masks by parameter; None where a mapping is no state dict with masks in it."""
    inner = state.get(DICT)
    if isinstance(inner, Mapping):
        return {_called(str(name), parameters): array_of(mask, str(name)) for name, mask in inner.items()}
    found = {}
    for key in map(str, state):
        name = _beside(key, state)
        if name is not None:
            found[bare(name)] = array_of(state[key], key)
    return found or None


def _beside(key: str, state: Mapping[str, Any]) -> str | None:
    """The parameter whose mask an entry is."""
    mma = _MMA.fullmatch(key)
    if mma:
        return mma[1] + mma[2]
    name = key[: -len("_mask")] if key.endswith("_mask") else ""
    return name if name and f"{name}_orig" in state else None


def _called(name: str, parameters: Mapping[str, Any]) -> str:
    """The parameter that an entry of a `mask_dict` means; its own name where it means none."""
    plain = bare(name)
    for suffix in _SUFFIXES:
        if plain.endswith(suffix):
            stem = plain[: len(plain) - len(suffix)]
            for one in (stem, f"{stem}.weight"):
                if one in parameters:
                    return one
    return plain


def bare(name: str) -> str:
    """A parameter's name without what DistributedDataParallel and torch.compile put before it."""
    while name.startswith(_PREFIXES):
        name = name.partition(".")[2]
    return name


def array_of(mask: Any, name: str) -> Array:
    """A mask of zeros and ones as an array, True = keep."""
    array: Array = np.asarray(mask.detach().cpu().numpy() if hasattr(mask, "detach") else mask)
    if array.dtype.kind not in "biuf":
        raise PlanError(f"the mask of '{name}' is no array of zeros and ones")
    if array.dtype.kind != "b" and not np.isin(array, (0, 1)).all():
        raise PlanError(f"the mask of '{name}' holds other numbers than 0 and 1; pass masks, not weights")
    return np.asarray(array != 0)
