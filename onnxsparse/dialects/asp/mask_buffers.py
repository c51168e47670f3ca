"""The buffers that ASP keeps beside a weight: its mask, and the numbers under it; how states that hold them are loaded.

1. Beside `weight` they are `__weight_mma_mask` and, where masks may be computed again, `__weight_mma_pruned_p`, as apex
   has them: so its checkpoints are read, and ours by it. Of a parameter of a layer inside, `out_proj.weight`, the last
   part is what counts.
2. A state without masks is loaded, too: the mask stays as it is. What a state has under its mask, or under the one that
   stays, becomes zero, and is put away where there is a place for it.
3. Numbers under a mask that nobody keeps here are passed over.
4. The first versions of apex called the mask by the layer: `fc1.__fc1_mma_mask`.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import partial
from typing import Any

from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.state_dicts import sharded
from onnxsparse.errors import OptionError

STASH, NOT_SENT = "_mma_pruned_p", "_ddp_params_and_buffers_to_ignore"


@dataclass(frozen=True, eq=False)
class MaskBuffers:
    """The buffers of one parameter in one module, which is not kept alive for them."""

    owner: weakref.ref[Any]
    name: str
    mask: str
    hook: Any

    @classmethod
    def beside(cls, owner: Any, name: str, mask: str, stash: bool) -> MaskBuffers:
        """Register them, open; those that a copy of a module brought with it stay as they are."""
        parameter = owner.get_parameter(name)
        if owner._buffers.get(mask) is None:
            owner.register_buffer(mask, torch().ones_like(parameter, dtype=torch().bool))
        if not stash:
            owner._buffers.pop(_stash_name(mask), None)
        elif owner._buffers.get(_stash_name(mask)) is None:
            owner.register_buffer(_stash_name(mask), torch().zeros_like(parameter, device="cpu"))
        hook = owner.register_load_state_dict_pre_hook(partial(_loaded, name, mask))
        return cls(weakref.ref(owner), name, mask, hook)

    @property
    def parameter(self) -> Any:
        try:
            return self._owner.get_parameter(self.name)
        except AttributeError:
            raise OptionError(
                f"the {self.name} of a {type(self._owner).__name__} is no parameter any more; take masks and "
                "parametrizations that were put on it after ASP off again"
            ) from None

    @property
    def keep(self) -> Any:
        return self._owner._buffers[self.mask]

    @property
    def stash(self) -> Any:
        return self._owner._buffers.get(_stash_name(self.mask))

    @property
    def _owner(self) -> Any:
        owner = self.owner()
        assert owner is not None
        return owner

    def put(self, keep: Any, dense: Any) -> None:
        with torch().no_grad():
            self.keep.copy_(keep)
            if self.stash is not None:
                self.stash.copy_(torch().where(self.keep, 0, dense))

    def remove(self) -> None:
        self.hook.remove()
        for name in (self.mask, _stash_name(self.mask)):
            self._owner._buffers.pop(name, None)


def mask_name(name: str) -> str:
    """Names of buffers have no dots; apex takes the last part."""
    return f"__{name.rpartition('.')[2]}_mma_mask"


def long_mask_name(name: str) -> str:
    """For the second of two parameters that end alike, where apex refuses."""
    return f"__{name.replace('.', '_')}_mma_mask"


def keep_from_wrappers(model: Any) -> None:
    """DistributedDataParallel sends buffers in every forward pass, and fails where one is not on its device."""
    names = [name for name, _ in model.named_buffers() if name.endswith(STASH)]
    if names:
        setattr(model, NOT_SENT, sorted({*getattr(model, NOT_SENT, ()), *names}))


def _stash_name(mask: str) -> str:
    return mask[: -len("_mma_mask")] + STASH


def _loaded(name: str, mask: str, owner: Any, state: Any, prefix: str, *_: Any) -> None:
    """Before a state is loaded: give it what is missing for these buffers, and zeros under its mask."""
    keep, stash = owner._buffers.get(mask), owner._buffers.get(_stash_name(mask))
    if keep is None:
        return
    weight, beside = prefix + name, prefix + _stash_name(mask)
    own_name = f"{prefix}__{prefix.rstrip('.').rpartition('.')[2]}_mma_mask"
    if name == "weight" and prefix + mask not in state and own_name in state:
        state[prefix + mask] = state.pop(own_name)
    kept = state.setdefault(prefix + mask, keep)
    if torch().is_tensor(kept) and kept.dtype != torch().bool:  # what is assigned, not copied, stays what it is
        kept = state[prefix + mask] = kept != 0
    given = state.get(weight)
    if stash is None:
        state.pop(beside, None)
    elif beside not in state:
        state[beside] = stash if given is None else _under(kept, given, stash)
    if _fits(given, kept):
        state[weight] = torch().where(kept.to(given.device), given, 0)


def _under(keep: Any, given: Any, stash: Any) -> Any:
    """What a mask leaves out of the numbers that are loaded."""
    return torch().where(keep.to(given.device), 0, given) if _fits(given, keep) else stash


def _fits(given: Any, keep: Any) -> bool:
    """What does not is left for torch to refuse."""
    plain = torch().is_tensor(given) and torch().is_tensor(keep) and not sharded(given) and not sharded(keep)
    return plain and given.shape == keep.shape
