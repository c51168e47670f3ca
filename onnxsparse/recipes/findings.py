"""What is found in a recipe, and what is known beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from onnxsparse.modifiers.modifier import Modifier
from onnxsparse.modifiers.scheduled import NEVER, Scheduled
from onnxsparse.recipes.recipe import Recipe
from onnxsparse.recipes.writing import tag_of

WRONG, REFUSED, WARNING = "wrong", "refused", "warning"
LEVELS = (WRONG, REFUSED, WARNING)


@dataclass(frozen=True)
class Finding:
    """One thing that is found, and in which modifier."""

    level: str
    tag: str
    text: str

    def __str__(self) -> str:
        return f"{self.level}: !{self.tag}: {self.text}" if self.tag else f"{self.level}: {self.text}"


@dataclass(frozen=True)
class Around:
    """What is known beside the recipe."""

    model: Any = None
    steps_per_epoch: int | None = None
    steps_of_data: int | None = None
    optimizer: str | None = None


def every(recipe: Recipe, kind: Any) -> list[Any]:
    return [one for one in recipe.modifiers if isinstance(one, kind)]


def warn(modifier: Modifier, text: str) -> Finding:
    return Finding(WARNING, tag_of(modifier), text)


def end_of(modifier: Scheduled) -> float:
    return math.inf if modifier.end_epoch == NEVER else modifier.end_epoch
