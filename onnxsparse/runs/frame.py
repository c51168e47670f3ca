"""What a recipe leaves open of its run, in a sentence: who trained, in which batches, how long; and what was idle."""

from __future__ import annotations

from onnxsparse.data import Data, Samples
from onnxsparse.modifiers.objective import Objective
from onnxsparse.modifiers.training import OWN, Training
from onnxsparse.recipes import Recipe
from onnxsparse.recipes.flags import RATES

ENGINES = {"ort": "onnxruntime-training", "torch": "torch"}


def framed(training: Training, steps: int, per_epoch: int, engine: str) -> str:
    """The frame of a run as it was; `per_epoch` is 0 where nobody knows the steps of an epoch."""
    optimizer = "an optimizer of yours" if training.optimizer == OWN else training.optimizer
    several = f", {training.accumulate} for each update" if training.accumulate > 1 else ""
    epochs = f"{steps / per_epoch:.4g} epochs ({steps} steps)" if per_epoch else f"{steps} steps"
    where = ENGINES.get(engine, engine)
    return f"trained for {epochs} by {optimizer}, in batches of {training.batch}{several}, in {where}"


def idle_labels(recipe: Recipe, data: Data) -> list[str]:
    """Rates of a recipe are for a loss of labels, and without one the dense model teaches alone."""
    rated = any(isinstance(one, RATES) for one in recipe.modifiers)
    if not rated or recipe.only(Objective).task or not data.has_labels:
        return []
    loss = "mse" if isinstance(data, Samples) and data.numbers else "cross-entropy"
    return [f"the labels of the data are not used, the dense model teaches alone: --loss {loss} learns from them"]


__all__ = ["framed", "idle_labels"]
