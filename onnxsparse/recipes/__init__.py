"""Recipes: what happens when in a run, as a list of modifiers that can be printed, saved, edited and read back.

The names are imported when they are first used: modifiers, which a recipe is made of, lie below.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnxsparse.recipes.recipe import NotApplied, Recipe, Stage, compose_staged

__all__ = ["NotApplied", "Recipe", "Stage", "compose_staged"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("onnxsparse.recipes.recipe"), name)
