"""Two recipes become one, a stage each: what was done to a model, and what is done to it next.

1. The second begins where the first ends: its epochs are moved by the first one's last epoch. What never ends in the
   first ends there, but for what is set once and for quantization, which does not end.
2. With `keep_original_epochs` no epoch moves.
3. A recipe without stages becomes one: `stage_0` before and `stage_1` after, `pre_<first>` before a staged one, and
   `stage_<n + 1>` after one with n stages. No two stages have one name.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from typing import Union

from onnxsparse.errors import PlanError
from onnxsparse.modifiers.modifier import Modifier
from onnxsparse.modifiers.scheduled import NEVER, Scheduled, changed
from onnxsparse.recipes.recipe import Recipe, Stage

Given = Union[Recipe, str, "os.PathLike[str]"]


def compose_staged(base: Given, additional: Given, keep_original_epochs: bool = False) -> Recipe:
    """The stages of one recipe, and those of another after them."""
    first, second = _recipe(base), _recipe(additional)
    stages = [*_stages(first, _name_before(second)), *_stages(second, _name_after(first))]
    names = [stage.name for stage in stages]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise PlanError(f"both recipes have a stage {twice:.60}; rename one of the two")
    if not keep_original_epochs:
        end, count = float(max(first.max_epochs, 0)), len(first.stages) or 1
        stages = [_ended(stage, end) for stage in stages[:count]] + [_moved(stage, end) for stage in stages[count:]]
    if any(stage.metadata is not None for stage in stages):
        stages = [dataclasses.replace(stage, metadata=stage.metadata or {}) for stage in stages]
    return Recipe((), tuple(stages), None, first.strict and second.strict, (*first.notes, *second.notes))


def _recipe(given: Given) -> Recipe:
    return given if isinstance(given, Recipe) else Recipe.load(given)


def _name_before(second: Recipe) -> str:
    return f"pre_{second.stages[0].name}" if second.stages else "stage_0"


def _name_after(first: Recipe) -> str:
    return f"stage_{len(first.stages) + 1}" if first.stages else "stage_1"


def _stages(recipe: Recipe, name: str) -> Iterable[Stage]:
    return recipe.stages or (Stage(name, recipe.modifiers, recipe.metadata),)


def _ended(stage: Stage, end: float) -> Stage:
    return dataclasses.replace(stage, modifiers=tuple(_until(one, end) for one in stage.modifiers))


def _until(modifier: Modifier, end: float) -> Modifier:
    if not isinstance(modifier, Scheduled) or modifier.end_epoch != NEVER or "end_epoch" in modifier.unwritten:
        return modifier
    return changed(modifier, end_epoch=max(end, modifier.start_epoch))


def _moved(stage: Stage, by: float) -> Stage:
    moved = (one.advanced(by) if isinstance(one, Scheduled) else one for one in stage.modifiers)
    return dataclasses.replace(stage, modifiers=tuple(moved))
