"""What a manager says of its recipe: the modifiers by kind, the epochs, the text."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Union

from onnxsparse.dialects.sparseml import kinds
from onnxsparse.errors import OptionError
from onnxsparse.modifiers.scheduled import Scheduled
from onnxsparse.recipes import Recipe, Stage

Given = Union[Recipe, Sequence[Scheduled], Mapping[str, Sequence[Scheduled]]]


class Contents:
    """A recipe, as SparseML's users ask for what is in it."""

    def __init__(self, modifiers: Given, metadata: Mapping[str, Any] | None = None) -> None:
        self.recipe = _recipe(modifiers, metadata)

    @property
    def modifiers(self) -> list[Scheduled] | dict[str, list[Scheduled]]:
        """In the order in which they act; of a staged recipe by stage."""
        if self.recipe.stages:
            return {stage.name: timed(stage.modifiers) for stage in self.recipe.stages}
        return timed(self.recipe.modifiers)

    def iter_modifiers(self) -> Iterator[Scheduled]:
        """All of them, whatever their stage."""
        return iter(timed(self.recipe.modifiers))

    @property
    def max_epochs(self) -> int:
        return self.recipe.max_epochs

    @property
    def min_epochs(self) -> int:
        return self.recipe.min_epochs

    @property
    def metadata(self) -> Mapping[str, Any] | None:
        return self.recipe.metadata

    @property
    def epoch_modifiers(self) -> list[Scheduled]:
        return kinds.those(kinds.EPOCH, self.iter_modifiers())

    @property
    def learning_rate_modifiers(self) -> list[Scheduled]:
        return kinds.those(kinds.LEARNING_RATE, self.iter_modifiers())

    @property
    def pruning_modifiers(self) -> list[Scheduled]:
        return kinds.those(kinds.PRUNING, self.iter_modifiers())

    @property
    def quantization_modifiers(self) -> list[Scheduled]:
        return kinds.those(kinds.QUANTIZATION, self.iter_modifiers())

    @property
    def distillation_modifiers(self) -> list[Scheduled]:
        return kinds.those(kinds.DISTILLATION, self.iter_modifiers())

    @property
    def structured_modifiers(self) -> list[Scheduled]:
        return kinds.those(kinds.STRUCTURED, self.iter_modifiers())

    def qat_active(self, epoch: float) -> bool:
        """Whether quantization has begun by the end of an epoch."""
        return kinds.is_quantizing(self.quantization_modifiers, epoch)

    def phase(self, epoch: float) -> str | None:
        """What the model is at an epoch: dense, pruned, ..._quantized; None while it becomes something."""
        return kinds.phase(self.pruning_modifiers, self.quantization_modifiers, epoch)

    # -- its texts

    def __str__(self) -> str:
        return str(self.recipe)

    def to_string_lines(self, include_metadata: bool = True) -> list[str]:
        """The lines of the recipe."""
        return str(self._saved(include_metadata)).splitlines()

    def num_stages(self) -> int:
        """How many stages the recipe has; one where it has none."""
        return max(1, len(self.recipe.stages))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Contents) and str(self) == str(other)

    __hash__ = object.__hash__

    def save(self, file_path: Any, include_metadata: bool = True) -> None:
        """Write the recipe, over an earlier one."""
        self._saved(include_metadata).save(file_path, overwrite=True)

    def _saved(self, include_metadata: bool) -> Recipe:
        return self.recipe if include_metadata else self.recipe.holding(self.recipe.modifiers)


def _recipe(given: Any, metadata: Mapping[str, Any] | None) -> Recipe:
    if isinstance(given, Mapping):
        stages = tuple(Stage(str(name), tuple(some), metadata) for name, some in given.items())
        return Recipe((), stages)
    if isinstance(given, Recipe):
        return given
    if isinstance(given, (str, os.PathLike)):
        raise OptionError("a manager is made of modifiers; from_yaml makes it of a recipe or its path")
    return Recipe(tuple(given), (), metadata)


def recipe_of(given: Any, variables: Any, metadata: Mapping[str, Any] | None, strict: bool) -> Recipe:
    """The recipe of a file or a text; one that was read already is as strict as it was read."""
    if not isinstance(given, Recipe):
        return Recipe.load(given, variables=variables, strict=strict, metadata=metadata)
    if variables:
        raise OptionError("a recipe that was read has its variables; give them to Recipe.load")
    made = given if strict else replace(given, strict=False)
    return made if metadata is None else made.described(metadata)


def timed(modifiers: Sequence[Any]) -> list[Scheduled]:
    """Those of our own frame a run that is not the user's loop."""
    return [one for one in modifiers if isinstance(one, Scheduled)]
