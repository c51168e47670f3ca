"""How important an element is. `parse` turns a word into a score, `available` lists them."""

from __future__ import annotations

from typing import cast

from onnxsparse import plugins
from onnxsparse.scores.score import Score

__all__ = ["Score", "available", "parse"]


def parse(text: str) -> Score:
    """Return the score that a text such as `magnitude` or `random:seed=3` stands for."""
    return cast(Score, plugins.parse("scores", text))


def available() -> list[plugins.Entry]:
    """Describe every score."""
    return plugins.available("scores")
