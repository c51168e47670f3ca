"""What flags say beside a recipe that goes by epochs, and what is so where nobody says it."""

from __future__ import annotations

import pytest

from onnxsparse.modifiers.objective import Objective
from onnxsparse.recipes import Recipe
from onnxsparse.recipes.flags import recipe_of

HOLDING = """
modifiers:
- !ConstantPruningModifier {params: __ALL_PRUNABLE__, start_epoch: 0, end_epoch: 2}
"""
RATED = f"{HOLDING}- !SetLearningRateModifier {{learning_rate: 0.02, start_epoch: 0}}\n"
TEACHING = f"{HOLDING}- !DistillationModifier {{hardness: 0.5, start_epoch: 1}}\n"


def hardness(text: str, **flags: object) -> float | None:
    return recipe_of(flags, Recipe.from_yaml(text)).only(Objective).hardness


def test_the_dense_model_teaches_beside_labels_as_it_does_without_a_recipe() -> None:
    assert hardness(HOLDING, loss="cross-entropy") is None
    assert hardness(HOLDING, loss="cross-entropy", hardness=0.0) == 0.0


@pytest.mark.parametrize("text", [TEACHING, RATED])
def test_labels_count_alone_where_a_recipe_teaches_or_sets_rates_itself(text: str) -> None:
    assert hardness(text, loss="cross-entropy") == 0.0
    assert hardness(text, loss="mse") == 0.0
    assert hardness(text, loss="cross-entropy", hardness=0.4) == 0.4


def test_without_labels_the_dense_model_teaches() -> None:
    assert hardness(HOLDING) is None
    assert recipe_of({}, Recipe.from_yaml(HOLDING)).only(Objective).task == ""
