"""What flags say beside a recipe that goes by epochs, and what is so where nobody says it."""

from __future__ import annotations

import re

import pytest

from onnxsparse.errors import OptionError
from onnxsparse.recipes import Recipe
from onnxsparse.recipes.flags import recipe_of
from onnxsparse.recipes.modifiers.training import Objective, Training

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


LATER = RATED.replace("start_epoch: 0}\n", "start_epoch: 1}\n")
OPEN = HOLDING + "- !LearningRateModifier {start_epoch: 0, lr_class: ExponentialLR, lr_kwargs: {gamma: 0.5}%s}\n"


@pytest.mark.parametrize("flag", [{"lr": 0.1}, {"lr_schedule": "cosine"}, {"warm_up": 0.1}])
@pytest.mark.parametrize("text", [RATED, OPEN % ", init_lr: 0.1"])
def test_rates_that_the_recipe_says_from_the_start_are_not_said_twice(text: str, flag: dict[str, object]) -> None:
    word = f"{next(iter(flag))}="
    with pytest.raises(OptionError, match=re.escape(f"the recipe says that already; leave {word} out")):
        recipe_of(flag, Recipe.from_yaml(text))


@pytest.mark.parametrize("text", [HOLDING, LATER, OPEN % ""])
def test_a_rate_counts_where_the_recipe_begins_with_it(text: str) -> None:
    assert recipe_of({"lr": 0.1}, Recipe.from_yaml(text)).only(Training).rate == 0.1


def test_the_optimizer_is_a_flag_beside_rates() -> None:
    assert recipe_of({"optimizer": "adam"}, Recipe.from_yaml(RATED)).only(Training).optimizer == "adam"
