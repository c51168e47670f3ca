"""What is wrong with a recipe is said in one line, with the line it stands in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onnxsparse import plugins
from onnxsparse.errors import OptionError, PlanError
from onnxsparse.rates import drops
from onnxsparse.recipes import Recipe, compose_staged
from onnxsparse.recipes.checking import check
from onnxsparse.recipes.outline import outline, table
from tests.epochs.arrays import Arrays
from tests.epochs.test_acts import weights
from tests.messages import refusing

HOLDING = """# a comment
modifiers:
- !EpochRangeModifier {start_epoch: 0, end_epoch: 1}
- !ConstantPruningModifier {params: [nope]}
"""


def test_names_that_a_model_has_not_are_found_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(HOLDING)
    recipe = Recipe.load(path)
    with refusing(OptionError):
        recipe.modifiers[-1].act().bind(Arrays(weights(a=(2, 2))).params)  # type: ignore[attr-defined]
    assert recipe == Recipe.from_yaml("\n\n" + HOLDING)
    assert Recipe.from_yaml(str(recipe)) == recipe


def test_an_expression_over_two_lines_is_said_in_one() -> None:
    recipe = Recipe.from_yaml('modifiers:\n- !ConstantPruningModifier {params: ["re:a\\n(b"]}\n')
    with pytest.raises(OptionError) as error:
        recipe.modifiers[0].act().bind([])  # type: ignore[attr-defined]
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("variables", ["a: eval(b)\nb: eval(a)\n", "a: eval(nobody)\n"])
def test_variables_that_nobody_uses_make_sense(variables: str) -> None:
    with refusing(PlanError):
        Recipe.from_yaml(variables + HOLDING)


def test_a_rate_where_the_run_ends() -> None:
    text = "modifiers:\n- !SetLearningRateModifier {start_epoch: 5, learning_rate: 0.1}\n"
    assert any("nothing comes after it" in one.text for one in check(Recipe.from_yaml(text)))
    text += "- !EpochRangeModifier {start_epoch: 0, end_epoch: 6}\n"
    assert check(Recipe.from_yaml(text)) == []


RATE = """# a comment
modifiers:
- !EpochRangeModifier {{start_epoch: 0, end_epoch: 2000}}
- !LearningRateModifier
    start_epoch: 0
    end_epoch: {0}
    lr_class: {1}
    lr_kwargs: {{{2}}}
    init_lr: {3}
"""


@pytest.mark.parametrize(
    ("line", "options"),
    [
        (8, ("500", "ExponentialLR", "gamma: 2", "0.1")),
        (8, ("5000", "ExponentialLR", "gamma: 2", "None")),
        (8, ("6", "StepLR", "gamma: 1e200, step_size: 1e-300", "0.1")),
        (8, ("6", "MultiStepLR", "gamma: 1e20, milestones: [1, 2]", "0.1")),
        (8, ("6", "CosineAnnealingWarmRestarts", "cycle_epochs: 1, lr_min: 1e39", "0.1")),
        (9, ("6", "StepLR", "step_size: 1", "1e39")),
        (4, ("-1", "ExponentialLR", "gamma: 2", "0.1")),
    ],
)
def test_a_rate_that_grows_beyond_all_numbers(tmp_path: Path, line: int, options: tuple[str, ...]) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(RATE.format(*options))
    with pytest.raises(PlanError, match=rf"r\.yaml, line {line}: !LearningRateModifier: .* larger than any number"):
        Recipe.load(path)


@pytest.mark.parametrize("options", [("100", "0.1"), ("500", "None")])
def test_a_rate_that_grows_and_is_still_a_number(options: tuple[str, str]) -> None:
    text = RATE.format(options[0], "ExponentialLR", "gamma: 2", options[1])
    assert Recipe.from_yaml(str(Recipe.from_yaml(text))) == Recipe.from_yaml(text)


def test_a_step_that_makes_a_rate_too_large_is_said_as_well() -> None:
    with refusing(OptionError):
        drops("StepLR", {"gamma": 1e38, "step_size": 1}, 0).rate(1.0, 6, 3)


def test_what_a_second_recipe_moves_keeps_its_place(tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text(HOLDING)
    second.write_text(HOLDING.replace("[nope]", "[neither]"))
    both = compose_staged(Recipe.load(first), second)
    acts = [one.act() for one in both.modifiers if one.name == "ConstantPruningModifier"]  # type: ignore[attr-defined]
    for act, file, name in zip(acts, ("first", "second"), ("nope", "neither")):
        with pytest.raises(OptionError, match=rf"{file}\.yaml, line 4: !ConstantPruningModifier: params: '{name}'"):
            act.bind(Arrays(weights(a=(2, 2))).params)
    assert [act.span.start for act in acts] == [-1, 1]


def test_what_cannot_be_moved_is_said_where_it_stands(tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text(HOLDING.replace("end_epoch: 1", "end_epoch: 8e8"))
    second.write_text(HOLDING.replace("start_epoch: 0, end_epoch: 1", "start_epoch: 3e8, end_epoch: 3e8"))
    with refusing(OptionError):
        compose_staged(first, second)


def test_options_inside_options_are_named() -> None:
    options: dict[str, Any] = {"start_epoch": 0, "lr_class": "StepLR", "lr_kwargs": {"step_size": 0.0}}
    with refusing(OptionError):
        plugins.every("modifiers")["LearningRateModifier"](**options)


MOVING = "!LearningRateFunctionModifier {start_epoch: 0, end_epoch: 1, lr_func: linear, init_lr: 1, final_lr: 0, "


@pytest.mark.parametrize(
    "line",
    [
        "!EpochRangeModifier {start_epoch: 0, end_epoch: 1e10}",
        "!SetWeightDecayModifier {weight_decay: 0, start_epoch: 1e300}",
        "!LearningRateModifier {start_epoch: 0, lr_class: StepLR, lr_kwargs: {step_size: 1e300}}",
        "!LearningRateModifier {start_epoch: 0, lr_class: MultiStepLR, lr_kwargs: {milestones: [1, 1e300]}}",
        "!LearningRateModifier {start_epoch: 0, lr_class: ExponentialLR, lr_kwargs: {gamma: %s}}" % ("9" * 400),
        "!LearningRateModifier {start_epoch: 0, lr_class: CosineAnnealingWarmRestarts, lr_kwargs: {cycle_epochs: 2e9}}",
        MOVING + "cycle_epochs: 2e9}",
    ],
    ids=["epochs", "decay", "step", "milestones", "gamma", "cycles", "function"],  # long ones are cut by newer pytest
)
def test_times_whose_steps_nobody_could_count(line: str) -> None:
    with refusing(PlanError):
        Recipe.from_yaml(f"modifiers:\n- {line}\n")


@pytest.mark.parametrize("epochs", ["1e7", "1e9"])
def test_very_many_epochs_are_told_in_a_page(epochs: str) -> None:
    text = table(
        outline(Recipe.from_yaml(f"modifiers:\n- !EpochRangeModifier {{start_epoch: 0, end_epoch: {epochs}}}\n"))
    )
    assert len(text.splitlines()) < 60
    assert max(map(len, text.splitlines())) < 80


@pytest.mark.parametrize(("data", "line"), [(b"modifiers:\n# caf\xe9\n", 2), (b"\xff\xfem\0o\0", 1)])
def test_a_file_that_is_not_text(tmp_path: Path, data: bytes, line: int) -> None:
    (tmp_path / "r.yaml").write_bytes(data)
    with pytest.raises(PlanError, match=rf"r\.yaml, line {line}: it is not text in UTF-8"):
        Recipe.load(tmp_path / "r.yaml")


@pytest.mark.parametrize("name", ["r.md", "r.yaml", "r.yml", "r.json"])
def test_what_is_saved_is_read_back(tmp_path: Path, name: str) -> None:
    recipe = Recipe.from_yaml(HOLDING)
    recipe.save(tmp_path / name)
    assert Recipe.load(tmp_path / name) == recipe


def test_what_is_no_number_reads_back_as_the_same() -> None:
    recipe = Recipe.load("modifiers:\n- !HoloModifier {size: .nan}\n", strict=False, metadata={"a": float("nan")})
    assert Recipe.load(str(recipe), strict=False) == recipe


@pytest.mark.parametrize("epoch", [".inf", "1e300", "-7", ".nan", "[1]"])
def test_times_of_what_nobody_knows_count_where_they_are_some(epoch: str) -> None:
    text = f"modifiers:\n- !HoloModifier {{start_epoch: 0, end_epoch: {epoch}}}\n"
    recipe = Recipe.load(text + "- !EpochRangeModifier {start_epoch: 0, end_epoch: 3}\n", strict=False)
    assert recipe.max_epochs == 3
    assert Recipe.load(str(recipe), strict=False) == recipe


def test_levels_end_with_the_masks() -> None:
    gradual = "{start_epoch: 0, end_epoch: 2, update_frequency: 1, init_sparsity: 0.1, final_sparsity: 0.5, params: [a]"
    for stays, last in (("true", (0.5,)), ("false", ())):
        text = f"modifiers:\n- !GMPruningModifier {gradual}, leave_enabled: {stays}}}\n"
        rows = outline(Recipe.from_yaml(text + "- !EpochRangeModifier {start_epoch: 0, end_epoch: 3}\n"))
        assert [tuple(round(one, 9) for one in row.sparsity) for row in rows] == [(0.1,), (0.45,), last, last]


def test_what_nothing_runs_is_refused_with_its_line() -> None:
    text = "modifiers:\n- !QuantizationModifier {start_epoch: 1}\n- !WandaPruningModifier {sparsity: 0.5}\n"
    with pytest.raises(PlanError) as error:
        Recipe.from_yaml(text).driven()
    assert "yet: the recipe, line 3: !WandaPruningModifier (what comes into each layer, on samples" in str(error.value)
