"""State dicts of a module with masks or sparsers on it: the names, the order and the zeros of the plain module.

1. A weight is in a state under its own name, with the numbers that the plain module would have: +0.0 where nothing is
   kept. What a sparser trains beside it is in none: that, and the numbers under the zeros, travel beside the state.
2. Loaded under its own name, a weight is what is given. Two kinds of numbers bring back those under the zeros, too:
   the ones that the module's state says already, and the ones whose digest came with numbers from beside the state
   (`await_numbers`). So states come back exactly, in whichever order they are loaded.
3. The names of torch's parametrizations, which states had before, are taken as well.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterator
from typing import Any

from onnxsparse.engines.torch.library import torch

LISTS = "parametrizations"


class StateDictParametrization:
    """What stands in for a weight: the part of a parametrization that states have to do with."""

    order: tuple[str, ...]
    """Where the weight stood among the parameters of its module."""
    awaited: tuple[str, Any] | None = None

    def plain(self, weight: Any) -> Any:
        """The numbers that the plain module has for a weight."""
        raise NotImplementedError

    def await_numbers(self, original: Any, digest: str, numbers: Any) -> None:
        """Numbers for the weight, for when it is the one whose plain form has this digest: now, or once loaded."""
        self.awaited = digest, numbers
        with torch().no_grad():
            if digest in (digest_of(original), digest_of(self.plain(original))):
                original.copy_(numbers)
                self.awaited = None

    def taken(self, original: Any, given: Any) -> Any:
        """What the weight becomes where its plain form is loaded."""
        if sharded(original):
            return given if sharded(given) else _spread(given, original)
        if not torch().is_tensor(given) or given.shape != original.shape:
            return given
        if self.awaited is not None and digest_of(given) == self.awaited[0]:
            found, self.awaited = self.awaited[1], None
            return found
        with torch().no_grad():
            return original if torch().equal(self.plain(original).to(given), given) else given


def parametrized(owner: Any) -> Iterator[tuple[str, StateDictParametrization]]:
    """The weights of one module that something of ours stands in for."""
    lists = getattr(owner, LISTS, None)
    if isinstance(lists, torch().nn.ModuleDict):
        yield from ((name, one[0]) for name, one in lists.items() if isinstance(one[0], StateDictParametrization))


def keep_plain(owner: Any) -> None:
    """Have the states of a module say what those of the plain one do; copies of it do so as well."""
    if not _hooks(owner._state_dict_hooks):
        owner.register_state_dict_post_hook(_saved)
        owner.register_load_state_dict_pre_hook(_loaded)


def leave_plain(owner: Any) -> None:
    """Nothing of ours stands in any more."""
    if not any(True for _ in parametrized(owner)):
        for hooks in (owner._state_dict_hooks, owner._load_state_dict_pre_hooks):
            for key in _hooks(hooks):
                del hooks[key]


def _hooks(known: Any) -> list[Any]:
    """Those that are ours; torch wraps one that is told its module."""
    return [key for key, hook in known.items() if getattr(hook, "hook", hook) in (_saved, _loaded)]


def _saved(owner: Any, state: Any, prefix: str, _: Any) -> None:
    order: tuple[str, ...] = ()
    for name, one in parametrized(owner):
        inside = f"{prefix}{LISTS}.{name}."
        if f"{inside}original" in state:
            state[prefix + name] = _plain(one, state.pop(f"{inside}original"))
            order = one.order
        for role, _ in _beside(owner, name):
            state.pop(inside + role, None)
    if order:
        _put_in_order(state, prefix, order)


def _plain(one: StateDictParametrization, original: Any) -> Any:
    """Numbers that are plain already are the parameter's own, as in any state."""
    if original.is_meta:
        return original
    with torch().no_grad():
        made = one.plain(original)
    alike = made._local_tensor.equal(original._local_tensor) if sharded(original) else torch().equal(made, original)
    return original if alike else made


def _put_in_order(state: Any, prefix: str, order: tuple[str, ...]) -> None:
    """What a module and its children said stands at the end of the state; parameters come first, each in its place."""
    mine = []
    for key in reversed(state):
        if not key.startswith(prefix):
            break
        mine.append(key)
    first = [prefix + name for name in order if prefix + name in state]
    for key in [*first, *(key for key in reversed(mine) if key not in first)]:
        state[key] = state.pop(key)


def _loaded(owner: Any, state: Any, prefix: str, _: Any, __: bool, missing: list[str], *___: Any) -> None:
    for name, one in parametrized(owner):
        inside, original = f"{prefix}{LISTS}.{name}.", getattr(owner, LISTS)[name].original
        given = state.pop(prefix + name, None)
        if given is not None:
            state[f"{inside}original"] = one.taken(original, given)
        elif f"{inside}original" not in state:
            missing.append(prefix + name)
            state[f"{inside}original"] = original  # under this name nobody misses it
        for role, parameter in _beside(owner, name):
            state.setdefault(inside + role, parameter)


def _beside(owner: Any, name: str) -> Iterator[tuple[str, Any]]:
    """What trains beside a weight, by its name in the list of all that stands in for it."""
    for place, part in enumerate(getattr(owner, LISTS)[name]):
        yield from ((f"{place}.{role}", parameter) for role, parameter in part._parameters.items())


def digest_of(tensor: Any) -> str:
    """A digest of a tensor's numbers, wherever it is."""
    host = tensor.detach().cpu().contiguous().reshape(-1)
    kind = f"{host.dtype}{list(tensor.shape)}".encode()
    return hashlib.sha256(kind + host.view(torch().uint8).numpy().tobytes()).hexdigest()[:32]


def sharded(tensor: Any) -> bool:
    """Whether only a part of a tensor is on this machine."""
    return hasattr(tensor, "placements")


def _spread(given: Any, like: Any) -> Any:
    """Every process is given the whole of it."""
    spread = importlib.import_module("torch.distributed.tensor").distribute_tensor
    return spread(given.to(like.device), like.device_mesh, like.placements)


def share_of(keep: Any, like: Any) -> Any:
    """The part of a mask that belongs to the part of a tensor that is here; nothing is sent for it."""
    spread = importlib.import_module("torch.distributed.tensor").distribute_tensor
    return spread(keep.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
