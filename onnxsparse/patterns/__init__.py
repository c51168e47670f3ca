"""Sparsity patterns: which zeros are legal. `parse` turns a text into a pattern, `available` lists them."""

from __future__ import annotations

from typing import cast

from onnxsparse import plugins
from onnxsparse.patterns.pattern import Pattern, Shape4, Violations

__all__ = ["Pattern", "Shape4", "Violations", "available", "parse"]


def parse(text: str) -> Pattern:
    """Return the pattern that a text such as `2:4`, `block:4x1` or `unstructured` stands for."""
    return cast(Pattern, plugins.parse("patterns", text))


def available() -> list[plugins.Entry]:
    """Describe every pattern."""
    return plugins.available("patterns")
