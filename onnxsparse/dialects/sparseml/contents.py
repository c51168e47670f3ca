"""Queries on a manager's recipe: its modifiers by kind, its epochs, its text."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Union

from onnxsparse.errors import OptionError
from onnxsparse.recipes import Recipe, Stage
from onnxsparse.recipes.modifiers.constant import ConstantPruningModifier
from onnxsparse.recipes.modifiers.distillation import DistillationModifier
from onnxsparse.recipes.modifiers.layer_distillation import PerLayerDistillationModifier
from onnxsparse.recipes.modifiers.layer_pruning import LayerPruningModifier
from onnxsparse.recipes.modifiers.layer_thinning import LayerThinningModifier
from onnxsparse.recipes.modifiers.masked import Masked
from onnxsparse.recipes.modifiers.modifier import Scheduled
from onnxsparse.recipes.modifiers.parameters import EpochRangeModifier
from onnxsparse.recipes.modifiers.quantization import Quantizing
from onnxsparse.recipes.modifiers.rates import (
    LearningRateFunctionModifier,
    LearningRateModifier,
    SetLearningRateModifier,
)
from onnxsparse.recipes.modifiers.structured import StructuredPruningModifier

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
        return those(EPOCH, self.iter_modifiers())

    @property
    def learning_rate_modifiers(self) -> list[Scheduled]:
        return those(LEARNING_RATE, self.iter_modifiers())

    @property
    def pruning_modifiers(self) -> list[Scheduled]:
        return those(PRUNING, self.iter_modifiers())

    @property
    def quantization_modifiers(self) -> list[Scheduled]:
        return those(QUANTIZATION, self.iter_modifiers())

    @property
    def distillation_modifiers(self) -> list[Scheduled]:
        return those(DISTILLATION, self.iter_modifiers())

    @property
    def structured_modifiers(self) -> list[Scheduled]:
        return those(STRUCTURED, self.iter_modifiers())

    def qat_active(self, epoch: float) -> bool:
        """Whether quantization has begun by the end of an epoch."""
        return is_quantizing(self.quantization_modifiers, epoch)

    def phase(self, epoch: float) -> str | None:
        """What the model is at an epoch: dense, pruned, ..._quantized; None while it becomes something."""
        return phase(self.pruning_modifiers, self.quantization_modifiers, epoch)

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


# -- Kinds of modifiers by what they are for, and what a model is by them at an epoch.


Kinds = tuple[type[Scheduled], ...]
EPOCH: Kinds = (EpochRangeModifier,)
LEARNING_RATE: Kinds = (SetLearningRateModifier, LearningRateModifier, LearningRateFunctionModifier)
PRUNING: Kinds = (Masked, ConstantPruningModifier, LayerPruningModifier)
QUANTIZATION: Kinds = (Quantizing,)
DISTILLATION: Kinds = (DistillationModifier, PerLayerDistillationModifier)
STRUCTURED: Kinds = (Quantizing, LayerPruningModifier, StructuredPruningModifier, LayerThinningModifier)


def those(kinds: Kinds, modifiers: Iterable[Scheduled]) -> list[Scheduled]:
    return [one for one in modifiers if isinstance(one, kinds)]


def is_quantizing(quantization: Sequence[Scheduled], epoch: float) -> bool:
    """Whether the first quantization has begun before the next epoch."""
    return any(one.start_epoch < epoch + 1 for one in quantization)


def phase(pruning: Sequence[Scheduled], quantization: Sequence[Scheduled], epoch: float) -> str | None:
    """None while masks move, or quantization begins."""
    if any(one.start_epoch <= epoch <= one.end_epoch for one in pruning):
        return None
    if any(one.start_epoch == epoch for one in quantization):
        return None
    pruned = [one for one in pruning if one.start_epoch < epoch]
    quantized = [one for one in quantization if one.start_epoch < epoch]
    if pruned and quantized:
        first = min(one.start_epoch for one in quantized)
        return "quantized_pruned" if first < min(one.start_epoch for one in pruned) else "pruned_quantized"
    return ("pruned" if pruned else "dense") if not quantized else "dense_quantized"
