"""State dicts of a module with masks have the names that they have without: checkpoints fit the plain module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def keep_plain(owner: Any, name: str) -> Callable[[], None]:
    """Two hooks on a module one of whose parameters is masked; returns what takes them off.

    They are functions and hold no module: copies of the module do as it does.
    """
    inner = f"parametrizations.{name}.original"

    def saved(_: Any, state: Any, prefix: str, __: Any) -> None:
        if prefix + inner in state:
            state[prefix + name] = state.pop(prefix + inner)

    def loaded(_: Any, state: Any, prefix: str, *__: Any) -> None:
        if prefix + name in state:
            state[prefix + inner] = state.pop(prefix + name)

    hooks = owner.register_state_dict_post_hook(saved), owner.register_load_state_dict_pre_hook(loaded)

    def remove() -> None:
        for hook in hooks:
            hook.remove()

    return remove
