"""What is wrong with a recipe is said in one line, with the line it stands in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onnxsparse import plugins
from onnxsparse.errors import OptionError, PlanError
from onnxsparse.recipes import Recipe
from onnxsparse.recipes.checking import check
from onnxsparse.recipes.outline import outline, table
from tests.epochs.arrays import Arrays
from tests.epochs.test_acts import weights

HOLDING = """# a comment
modifiers:
- !EpochRangeModifier {start_epoch: 0, end_epoch: 1}
- !ConstantPruningModifier {params: [nope]}
"""


def test_names_that_a_model_has_not_are_found_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(HOLDING)
    recipe = Recipe.load(path)
    with pytest.raises(OptionError, match=r"r\.yaml, line 4: !ConstantPruningModifier: params: 'nope'"):
        recipe.modifiers[-1].act().bind(Arrays(weights(a=(2, 2))).params)  # type: ignore[attr-defined]
    assert recipe == Recipe.from_yaml("\n\n" + HOLDING)
    assert Recipe.from_yaml(str(recipe)) == recipe


def test_an_expression_over_two_lines_is_said_in_one() -> None:
    with pytest.raises(PlanError) as error:
        Recipe.from_yaml('modifiers:\n- !ConstantPruningModifier {params: ["re:a\\n(b"]}\n')
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("variables", ["a: eval(b)\nb: eval(a)\n", "a: eval(nobody)\n"])
def test_variables_that_nobody_uses_make_sense(variables: str) -> None:
    with pytest.raises(PlanError, match=r"line [12]: "):
        Recipe.from_yaml(variables + HOLDING)


def test_a_rate_where_the_run_ends() -> None:
    text = "modifiers:\n- !SetLearningRateModifier {start_epoch: 5, learning_rate: 0.1}\n"
    assert any("nothing comes after it" in one.text for one in check(Recipe.from_yaml(text)))
    text += "- !EpochRangeModifier {start_epoch: 0, end_epoch: 6}\n"
    assert check(Recipe.from_yaml(text)) == []


def test_a_rate_that_grows_beyond_all_numbers() -> None:
    text = """
modifiers:
- !EpochRangeModifier {start_epoch: 0, end_epoch: 6}
- !LearningRateModifier
    {start_epoch: 0, end_epoch: 6, lr_class: StepLR, lr_kwargs: {gamma: 1e200, step_size: 1e-300}, init_lr: 0.1}
"""
    with pytest.raises(OptionError, match=r"a gamma of 1e\+200 makes the learning rate larger than any number"):
        outline(Recipe.from_yaml(text))


def test_options_inside_options_are_named() -> None:
    options: dict[str, Any] = {"start_epoch": 0, "lr_class": "StepLR", "lr_kwargs": {"step_size": 0.0}}
    with pytest.raises(OptionError, match="lr_kwargs: step_size is a number above 0, not 0"):
        plugins.every("modifiers")["LearningRateModifier"](**options)


@pytest.mark.parametrize("epochs", ["1e7", "1e300"])
def test_very_many_epochs_are_told_in_a_page(epochs: str) -> None:
    text = table(
        outline(Recipe.from_yaml(f"modifiers:\n- !EpochRangeModifier {{start_epoch: 0, end_epoch: {epochs}}}\n"))
    )
    assert len(text.splitlines()) < 60
    assert max(map(len, text.splitlines())) < 80
