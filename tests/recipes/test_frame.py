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
TEACHING = f"{HOLDING}- !DistillationModifier {{hardness: 0.5, start_epoch: 1}}\n"


def hardness(text: str, **flags: object) -> float | None:
    return recipe_of(flags, Recipe.from_yaml(text)).only(Objective).hardness


@pytest.mark.parametrize("text", [HOLDING, TEACHING])
def test_beside_labels_nobody_teaches_unless_it_is_said(text: str) -> None:
    assert hardness(text, loss="cross-entropy") == 0.0
    assert hardness(text, loss="cross-entropy", hardness=0.4) == 0.4
    assert hardness(text, loss="mse") == 0.0


def test_without_labels_the_dense_model_teaches() -> None:
    assert hardness(HOLDING) is None
    assert recipe_of({}, Recipe.from_yaml(HOLDING)).only(Objective).task == ""
