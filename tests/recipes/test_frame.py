"""What flags say beside a recipe that goes by epochs, and what is so where nobody says it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxsparse.errors import OptionError, PlanError
from onnxsparse.rates import drops
from onnxsparse.recipes import Recipe
from onnxsparse.recipes.flags import recipe_of
from onnxsparse.recipes.modifiers.rates import LearningRateModifier
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


def test_smoothed_labels_are_labels() -> None:
    made = recipe_of({"loss": "cross-entropy:smoothing=0.1"}, Recipe.from_yaml(RATED))
    assert made.only(Objective).hardness == 0.0
    found = Recipe.from_yaml(made.to_yaml()).only(Objective)
    assert (found.task, found.smoothing, found.share) == ("cross-entropy", 0.1, 0.0)
    assert Objective(loss="cross-entropy").smoothing == 0.0


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ("cross-entropy:smoothing=1", "from 0 to below 1, not 1"),
        ("cross-entropy:smoothing=-0.1", "from 0 to below 1, not -0.1"),
        ("cross-entropy:ignore=7", "leave 'ignore=7' out"),
        ("cross-entropy:smooth=0.1", "did you mean smoothing"),
        ("mse:smoothing=0.1", "mse takes no options"),
    ],
)
def test_options_that_a_loss_does_not_take_are_refused(loss: str, said: str) -> None:
    with pytest.raises(OptionError, match=re.escape(said)):
        Objective(loss=loss)


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


LONG = """modifiers:
- !EpochRangeModifier {start_epoch: 0, end_epoch: 300}
- !GMPruningModifier {start_epoch: 30, end_epoch: 240, update_frequency: 1.5, init_sparsity: 0.05, final_sparsity: 0.9,
    params: __ALL_PRUNABLE__}
- !ConstantPruningModifier {start_epoch: -1, params: __ALL__}
- !QuantizationModifier {start_epoch: 250, disable_quantization_observer_epoch: 280, freeze_bn_stats_epoch: -1}
- !LearningRateFunctionModifier {start_epoch: 0, end_epoch: 300, lr_func: cyclic_linear, init_lr: 0.1, final_lr: 0,
    cycle_epochs: 50}
- !SparsificationLoggingModifier {start_epoch: 0}
"""
LONG_TIMES = {
    "EpochRangeModifier": {"start_epoch": 0, "end_epoch": 3},
    "GMPruningModifier": {"start_epoch": 0.3, "end_epoch": 2.4, "update_frequency": 0.015},
    "ConstantPruningModifier": {"start_epoch": -1, "end_epoch": -1, "update_frequency": -1},
    "QuantizationModifier": {
        "start_epoch": 2.5, "end_epoch": -1, "disable_quantization_observer_epoch": 2.8, "freeze_bn_stats_epoch": -1,
    },
    "LearningRateFunctionModifier": {"end_epoch": 3, "cycle_epochs": 0.5, "init_lr": 0.1},
    "SparsificationLoggingModifier": {"start_epoch": 0, "update_frequency": 1},
}  # fmt: skip


def test_epochs_scale_every_time_of_a_recipe() -> None:
    made = recipe_of({"epochs": 3}, Recipe.from_yaml(LONG))
    assert made.only(Training).epochs == 3
    found = {one.name: {option: getattr(one, option) for option in LONG_TIMES[one.name]} for one in made.modifiers
             if one.name in LONG_TIMES}  # fmt: skip
    assert found == LONG_TIMES
    assert any("the 300 epochs of the recipe are scaled to 3" in note for note in made.notes)
    again = recipe_of({}, Recipe.from_yaml(made.to_yaml()))
    assert again.modifiers == made.modifiers


@pytest.mark.parametrize(
    "schedule",
    [
        "lr_class: ExponentialLR, lr_kwargs: {gamma: 0.5}",
        "lr_class: StepLR, lr_kwargs: {step_size: 2, gamma: 0.5}",
        "lr_class: MultiStepLR, lr_kwargs: {milestones: [2.5, 5], gamma: 0.5}",
        "lr_class: MultiStepLR, lr_kwargs: {milestones: 4}",
        "lr_class: CosineAnnealingWarmRestarts, lr_kwargs: {cycle_epochs: 3}",
    ],
)
@pytest.mark.parametrize("epochs", [2.0, 16.0])
def test_rates_go_the_same_way_in_a_run_of_another_length(schedule: str, epochs: float) -> None:
    text = f"modifiers:\n- !LearningRateModifier {{start_epoch: 0, end_epoch: 8, {schedule}, init_lr: 0.1}}\n"
    recipe = Recipe.from_yaml(text)

    def rates(made: Recipe, per_epoch: int) -> list[float]:
        (one,) = (modifier for modifier in made.modifiers if isinstance(modifier, LearningRateModifier))
        drop = drops(one.lr_class, one.lr_kwargs, one.start_epoch)
        return [drop.rate(0.1, step, per_epoch) for step in range(320)]

    assert rates(recipe.within(epochs), round(320 / epochs)) == pytest.approx(rates(recipe, 40))


def test_phases_of_whole_epochs_stay_whole() -> None:
    text = (
        "modifiers:\n- !ACDCPruningModifier {start_epoch: 0, end_epoch: 8, update_frequency: 2, "
        "compression_sparsity: 0.9, params: __ALL_PRUNABLE__}\n"
    )
    made = recipe_of({"epochs": 4}, Recipe.from_yaml(text))
    assert any(getattr(one, "update_frequency", 0) == 1 for one in made.modifiers)
    with pytest.raises(PlanError, match=r"of 8 epochs cannot last 3: .*line 2.*phases last whole epochs"):
        recipe_of({"epochs": 3}, Recipe.from_yaml(text))


@given(st.floats(1e-3, 1e5), st.integers(1, 400), st.integers(0, 400), st.integers(0, 400))
def test_what_is_scaled_keeps_its_order(epochs: float, last: int, one: int, other: int) -> None:
    start, end = sorted((min(one, last), min(other, last)))
    text = (
        f"modifiers:\n- !EpochRangeModifier {{start_epoch: 0, end_epoch: {last}}}\n"
        f"- !ConstantPruningModifier {{start_epoch: {start}, end_epoch: {end}, params: __ALL__}}\n"
    )
    for made in Recipe.from_yaml(text).within(epochs).modifiers:
        assert made.start_epoch <= made.end_epoch <= epochs * (1 + 1e-12)  # type: ignore[attr-defined]
