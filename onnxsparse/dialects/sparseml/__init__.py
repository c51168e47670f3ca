"""SparseML's interface: recipes around a training loop in torch, by the names that its users know."""

from __future__ import annotations

from onnxsparse.dialects.sparseml.recipe_manager import ScheduledModifierManager
from onnxsparse.dialects.sparseml.wrapper import RecipeManagerStepWrapper

__all__ = ["RecipeManagerStepWrapper", "ScheduledModifierManager"]
