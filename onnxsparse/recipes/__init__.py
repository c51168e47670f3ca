"""Recipes: what happens when in a run, as a list of modifiers that can be printed, saved, edited and read back."""

from __future__ import annotations

from onnxsparse.recipes.recipe import Recipe

__all__ = ["Recipe"]
