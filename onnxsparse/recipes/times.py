"""Times and learning rates of a recipe that its writer may not mean."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations
from typing import Any, Union

from onnxsparse.modifiers.scheduled import NEVER, Scheduled
from onnxsparse.modifiers.training import Training
from onnxsparse.recipes.findings import NOTE, WARNING, Around, Finding, end_of, every, found, warn
from onnxsparse.recipes.modifiers.acdc import ACDCPruningModifier
from onnxsparse.recipes.modifiers.epochs import EpochRangeModifier
from onnxsparse.recipes.modifiers.rates import (
    LearningRateFunctionModifier,
    LearningRateModifier,
    SetLearningRateModifier,
)
from onnxsparse.recipes.recipe import Recipe
from onnxsparse.recipes.writing import tag_of

ADAM = ("adam", "adamw", "ort-adamw")
NEAR = 1e-6
LITTLE = 0.05
"""Of an epoch: drifting by less is worth a note, and no warning."""
Rate = Union[LearningRateModifier, LearningRateFunctionModifier, SetLearningRateModifier]
RATES = (LearningRateModifier, LearningRateFunctionModifier, SetLearningRateModifier)


# -- the learning rate


def adam(recipe: Recipe, around: Around) -> Iterator[Finding]:
    if around.optimizer is None or around.optimizer.partition(":")[0].lower() not in ADAM:
        return
    for one in every(recipe, RATES):
        yield warn(one, f"{around.optimizer} finds its own steps; a learning rate is rarely worth moving for it")


def rates(recipe: Recipe) -> Iterator[Finding]:
    for first, second in combinations(every(recipe, RATES), 2):
        if _apart(first, second):
            continue
        start, end = max(first.start_epoch, second.start_epoch), min(_until(first), _until(second))
        if start < end or (start == end == first.start_epoch == second.start_epoch):
            yield warn(second, f"it moves the learning rate at epoch {max(start, 0):g}, as !{tag_of(first)} does")


def late(recipe: Recipe) -> Iterator[Finding]:
    """What begins when the run is over."""
    lasts = [frame for frame in every(recipe, Training) if frame.epochs is not None or frame.steps is not None]
    for one in [] if lasts else every(recipe, RATES):
        if one.start_epoch >= recipe.max_epochs > 0:
            yield warn(one, f"it begins at {one.start_epoch:g}, where the run ends: nothing comes after it")


def _until(modifier: Rate) -> float:
    """One that sets the rate once is over at once."""
    return modifier.start_epoch + NEAR if isinstance(modifier, SetLearningRateModifier) else end_of(modifier)


def _apart(first: Rate, second: Rate) -> bool:
    groups = [set(getattr(one, "param_groups", None) or ()) for one in (first, second)]
    return all(groups) and not groups[0] & groups[1]


# -- times


def length(recipe: Recipe) -> Iterator[Finding]:
    last, training = recipe.max_epochs, every(recipe, Training)
    if every(recipe, Scheduled) and last < 0 and not any(one.epochs or one.steps for one in training):
        yield Finding(WARNING, "", "nothing says how long the run is: add !EpochRangeModifier, or say --epochs")
    for one in sorted(every(recipe, EpochRangeModifier), key=end_of)[-1:]:
        if math.ceil(min(end_of(one), last)) < last:
            yield warn(one, f"it ends at {one.end_epoch:g}, but other modifiers make the run last {last} epochs")
    for frame in training:
        if frame.epochs is not None and frame.epochs < last:
            yield warn(frame, f"it lasts {frame.epochs:g} epochs, and modifiers go on to {last}: their end never comes")


def frequency(recipe: Recipe) -> Iterator[Finding]:
    for one in _timed(recipe):
        lasts = one.end_epoch - max(one.start_epoch, 0)
        if isinstance(one, ACDCPruningModifier) and lasts < 3 * one.update_frequency:
            yield warn(one, "there is time for no more than two phases, dense and pruned")
        elif one.end_epoch != NEVER and one.update_frequency > lasts > 0:
            yield warn(
                one, f"the next update after the first comes at its end: update_frequency {one.update_frequency:g}"
            )


def _timed(recipe: Recipe) -> list[Any]:
    """Those whose frequency means something."""
    return [one for one in every(recipe, Scheduled) if "update_frequency" not in one.unwritten]


def misfit(recipe: Recipe, around: Around) -> Iterator[Finding]:
    """Steps that are said, and others that the data make: then every epoch of the recipe is another one."""
    said, made = around.steps_per_epoch, around.steps_of_data
    if said is not None and made is not None and said != made:
        tag = "training" if any(frame.steps_per_epoch == said for frame in every(recipe, Training)) else ""
        yield Finding(WARNING, tag, f"{said} steps per epoch are said, and the data make {made}: all epochs are off")


def steps(recipe: Recipe, around: Around) -> Iterator[Finding]:
    """Times that fall between two steps."""
    count = around.steps_per_epoch
    if count is None:
        return
    for one in _timed(recipe):
        exact = one.update_frequency * count
        if 0 <= exact < 1 - NEAR:
            yield warn(one, f"update_frequency {one.update_frequency:g} is less than a step of {count} per epoch")
        elif exact > 0 and _off(exact):
            met = math.ceil(exact) / count
            level = NOTE if met - one.update_frequency < LITTLE else WARNING
            text = f"update_frequency {one.update_frequency:g} is {exact:g} steps: it acts every {met:g} epochs"
            yield found(level, one, text)
    for one in every(recipe, Scheduled):
        for option in ("start_epoch", "end_epoch"):
            epoch = getattr(one, option)
            if epoch > 0 and _off(epoch * count):
                met = math.ceil(epoch * count) / count
                text = f"{option} {epoch:g} lies between two of {count} steps per epoch: it acts at {met:g}"
                yield found(NOTE, one, text)


def _off(steps: float) -> bool:
    return abs(steps - round(steps)) > NEAR * max(1.0, steps)
