"""What is found in a recipe, and what is known beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from onnxsparse.modifiers.modifier import Modifier
from onnxsparse.modifiers.scheduled import NEVER, PLACE, Scheduled
from onnxsparse.recipes.recipe import Recipe
from onnxsparse.recipes.writing import tag_of

WRONG, REFUSED, WARNING, NOTE = "wrong", "refused", "warning", "note"
LEVELS = (WRONG, REFUSED, WARNING, NOTE)
"""What is a note is worth knowing, and nothing is wrong with it."""
LINE = ", line "


@dataclass(frozen=True)
class Finding:
    """One thing that is found, and in which modifier."""

    level: str
    tag: str
    text: str
    line: int | None = None

    def __str__(self) -> str:
        place = [f"line {self.line}"] if self.line is not None else []
        return ": ".join([self.level, *place, *([f"!{self.tag}"] if self.tag else []), self.text])


@dataclass(frozen=True)
class Around:
    """What is known beside the recipe."""

    model: Any = None
    steps_per_epoch: int | None = None
    steps_of_data: int | None = None
    optimizer: str | None = None

    @cached_property
    def opened(self) -> Any:
        from onnxsparse.graph.model import Model

        return Model.open(self.model)

    @cached_property
    def params(self) -> list[Any]:
        """All parameters of the model."""
        from onnxsparse.epochs.stored import params_of

        return params_of(self.opened)


def every(recipe: Recipe, kind: Any) -> list[Any]:
    return [one for one in recipe.modifiers if isinstance(one, kind)]


def found(level: str, modifier: Modifier | None, text: str) -> Finding:
    """What is found in a modifier, or in the whole recipe."""
    return Finding(level, "", text) if modifier is None else Finding(level, tag_of(modifier), text, line_of(modifier))


def warn(modifier: Modifier | None, text: str) -> Finding:
    return found(WARNING, modifier, text)


def line_of(modifier: Modifier) -> int | None:
    """Where it stands in its file."""
    _, _, line = str(getattr(modifier, PLACE, "")).rpartition(LINE)
    return int(line) if line.isdigit() else None


def end_of(modifier: Scheduled) -> float:
    return math.inf if modifier.end_epoch == NEVER else modifier.end_epoch
