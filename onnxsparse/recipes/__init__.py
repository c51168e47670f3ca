"""Recipes: what happens when in a run, as a list of modifiers that can be printed, saved, edited and read back."""

from __future__ import annotations

from onnxsparse.recipes.composing import compose_staged
from onnxsparse.recipes.recipe import NotApplied, Recipe, Stage

__all__ = ["NotApplied", "Recipe", "Stage", "compose_staged"]
