"""Flags of a command become a recipe: one table says which option of which modifier each of them is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnxsparse.errors import OptionError
from onnxsparse.modifiers.keep_best import KeepBest
from onnxsparse.modifiers.modifier import Modifier
from onnxsparse.modifiers.objective import Objective
from onnxsparse.modifiers.pruning import Pruning
from onnxsparse.modifiers.training import Training
from onnxsparse.recipes.recipe import Recipe

FLAGS: dict[str, tuple[type[Modifier], str]] = {
    "pattern": (Pruning, "pattern"),
    "target": (Pruning, "target"),
    "sparsity": (Pruning, "sparsity"),
    "allocation": (Pruning, "allocation"),
    "score": (Pruning, "score"),
    "include": (Pruning, "include"),
    "exclude": (Pruning, "exclude"),
    "allow": (Pruning, "allow"),
    "schedule": (Pruning, "schedule"),
    "start_sparsity": (Pruning, "start_sparsity"),
    "prune_begin": (Pruning, "begin"),
    "prune_end": (Pruning, "end"),
    "updates": (Pruning, "updates"),
    "regrow": (Pruning, "regrow"),
    "sparser": (Pruning, "sparser"),
    "loss": (Objective, "loss"),
    "hardness": (Objective, "hardness"),
    "temperature": (Objective, "temperature"),
    "distillation": (Objective, "distillation"),
    "loss_output": (Objective, "output"),
    "epochs": (Training, "epochs"),
    "steps": (Training, "steps"),
    "steps_per_epoch": (Training, "steps_per_epoch"),
    "batch_size": (Training, "batch"),
    "accumulate": (Training, "accumulate"),
    "precision": (Training, "precision"),
    "optimizer": (Training, "optimizer"),
    "lr": (Training, "rate"),
    "lr_schedule": (Training, "rate_schedule"),
    "warm_up": (Training, "warm_up"),
    "weight_decay": (Training, "weight_decay"),
    "clip": (Training, "clip"),
    "train_bn": (Training, "train_bn"),
    "seed": (Training, "seed"),
    "checks": (KeepBest, "checks"),
    "retries": (KeepBest, "retries"),
}
DEFAULTS: tuple[type[Modifier], ...] = (Training, Objective, Pruning, KeepBest)


def recipe_of(flags: Mapping[str, Any], recipe: Recipe | None = None) -> Recipe:
    """The recipe that flags ask for, or the one that is given, with the default of whatever it does not mention."""
    given = {name: value for name, value in flags.items() if value is not None and value != [] and value != ()}
    if recipe is not None:
        if given:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise OptionError(f"the recipe says that already; leave {names} out, or change the recipe")
        return recipe.whole(DEFAULTS)
    options: dict[type[Modifier], dict[str, Any]] = {kind: {} for kind in DEFAULTS}
    for name, value in given.items():
        kind, option = FLAGS[name]
        options[kind][option] = _plain(value)
    return Recipe(tuple(kind(**options[kind]) for kind in DEFAULTS))


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
