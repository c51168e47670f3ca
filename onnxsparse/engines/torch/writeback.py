"""`write_back`: writes the trained values of a module's parameters into the user's own file.

1. The table of the module says which stored tensor each parameter is; tensors are found by scope and name.
2. What the module computes with goes back: a parametrization or a mask of `torch.nn.utils.prune` is read through.
3. A tensor whose numbers did not change is not touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.parameters import PRESERVED, TABLE, as_tensor
from onnxsparse.errors import ModelError, OptionError
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import Array, StoredTensor
from onnxsparse.graph.stores import keys

_WRAPPERS = ("_orig_mod", "module")


def write_back(module: Any, model: Model) -> list[str]:
    """Make the module's numbers the edits of the model's stored tensors; return the names of those that changed."""
    bare = unwrapped(module)
    by_key = {key: tensor for tensor, key in keys(model.flow.stores).items()}
    changed: list[tuple[str, StoredTensor, Any]] = []
    with torch().no_grad():
        for path, (scope, name) in names_of(bare)["tensors"].items():
            numbers = _numbers(bare, path)
            stored = _demand_alike(path, name, numbers, by_key.get((scope, name)))
            if not torch().equal(numbers, as_tensor(stored)):
                _demand_finite(path, numbers, as_tensor(stored))
                changed.append((name, stored, numbers))
    for _, stored, numbers in changed:
        stored.edit = _Sent(numbers)
    return [name for name, _, _ in changed]


def _demand_alike(path: str, name: str, numbers: Any, stored: StoredTensor | None) -> StoredTensor:
    mine, found = list(numbers.shape), None if stored is None else list(stored.shape)
    if stored is None or mine != found:
        other = f"this one has no tensor '{name}'" if stored is None else f"tensor '{name}' of this one has {found}"
        raise ModelError(
            f"the module was made from another model: its parameter '{path}' has shape {mine}, {other}; write back "
            "into the file that to_module took, or one pruned from it"
        )
    return stored


def _demand_finite(path: str, numbers: Any, before: Any) -> None:
    """Infinities that the file has on purpose, as in masks of attention, may stay."""
    if numbers.is_floating_point():
        found = ~torch().isfinite(numbers)
        if bool((found & torch().isfinite(before)).any()):
            raise ModelError(f"parameter '{path}' holds numbers that are not finite; the training diverged")


def unwrapped(module: Any) -> Any:
    """The module itself, without DistributedDataParallel, torch.compile and their like around it."""
    while _table(module) is None:
        inner = next((getattr(module, name) for name in _WRAPPERS if hasattr(module, name)), None)
        if inner is None:
            raise OptionError("write_back takes a module that to_module made; this one has no table of its tensors")
        module = inner
    return module


def names_of(module: Any) -> Mapping[str, Any]:
    """The table of a module that `to_module` made."""
    found = _table(module)
    assert found is not None
    return found


def _table(module: Any) -> Mapping[str, Any] | None:
    """A copy that an older torch made has it in `meta` only."""
    found: Mapping[str, Any] | None = getattr(module, TABLE, None)
    return found or getattr(module, "meta", {}).get(PRESERVED, {}).get(TABLE)


def _numbers(module: Any, path: str) -> Any:
    found = module
    for step in path.split("."):
        found = getattr(found, step, None)
    if not torch().is_tensor(found):
        raise OptionError(
            f"the module has no parameter '{path}' any more, which to_module gave it; put its numbers back, or write "
            "back before layers are replaced"
        )
    return found.detach().cpu()


class _Sent:
    """Numbers in the type they are stored in; bfloat16 as its bits."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor.contiguous()

    def __call__(self) -> Iterator[Array]:
        if self._tensor.dtype == torch().bfloat16:
            yield self._tensor.view(torch().int16).numpy().view(np.uint16).reshape(-1)
        else:
            yield self._tensor.numpy().reshape(-1)
