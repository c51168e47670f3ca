"""Modifiers that go by epochs in a run on the small network: levels at every step, paces, attempts, and the end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from onnxsparse.errors import OptionError
from onnxsparse.recipes import Recipe
from onnxsparse.recipes.modifiers.modifier import Scheduled
from onnxsparse.recipes.modifiers.training import KeepBest, Objective, Training
from onnxsparse.recipes.plan_by_epochs import by_epochs
from onnxsparse.train.loop import Run
from tests.messages import refusing
from tests.runs.net import Bench, Spy

GRADUAL = """
- !GMPruningModifier
    start_epoch: 0
    end_epoch: 3
    update_frequency: 1
    init_sparsity: 0.1
    final_sparsity: 0.8
    inter_func: linear
    params: __ALL_PRUNABLE__
"""


def ran(
    text: str, *more: Any, steps: int = 16, per_epoch: int = 4, look: Any = None, **options: Any
) -> tuple[Any, list]:
    """The run of a recipe, and what `look` saw at every step."""
    training = Training(steps=steps, batch=8, **{"optimizer": "sgd:momentum=0.5", "rate": 0.01, **options})
    made = Bench(training, steps_per_epoch=per_epoch)
    timed = [one for one in Recipe.from_yaml(f"modifiers:\n{text}").modifiers if isinstance(one, Scheduled)]
    found, spy = by_epochs(made.model, timed), Spy(look or (lambda run, step: None))
    modifiers = (replace(training, warm_up=0.0, rate_schedule="constant"), Objective(), *timed, *more, spy)
    run = made.run(modifiers=modifiers, plan=found.plan, by_epochs=found)
    return run.go(), spy.seen


def levels(run: Run, step: int) -> list[float]:
    return [round(1 - float(mask.mean()), 2) for mask in run.engine.frozen.values()]


def zeros(outcome: Any) -> list[float]:
    return [round(1 - np.count_nonzero(array) / array.size, 2) for array in outcome.arrays.values()]


def test_levels_rise_by_the_clock() -> None:
    outcome, seen = ran(GRADUAL, look=levels)
    assert [seen[step][0] for step in (0, 3, 4, 7, 8, 12, 15)] == [0.1, 0.1, 0.34, 0.34, 0.57, 0.8, 0.8]
    assert zeros(outcome) == [0.8, 0.8]
    assert outcome.helped


def test_the_end_comes_with_the_run() -> None:
    outcome, seen = ran(GRADUAL, steps=12, look=levels)
    assert seen[-1][0] == 0.57
    assert zeros(outcome) == [0.8, 0.8]
    kept, _ = ran(GRADUAL, KeepBest(checks=4, retries=1), steps=12)
    assert zeros(kept) == [0.8, 0.8]


def test_paces_are_what_modifiers_said() -> None:
    text = """
- !LearningRateModifier {start_epoch: 1, end_epoch: 3, lr_class: ExponentialLR, lr_kwargs: {gamma: 0.5}}
- !SetWeightDecayModifier {start_epoch: 2, weight_decay: 0.25}
- !TrainableParamsModifier {params: [first], trainable: false, start_epoch: 1, end_epoch: 2}
"""
    first = "onnxsparse:0"

    def look(run: Run, step: int) -> Any:
        settings = run.trainee.settings
        return settings.rate, settings.decay, set(settings.held), run.engine.weights[first].copy()

    _, seen = ran(text + GRADUAL.replace("__ALL_PRUNABLE__", "[second]"), look=look)
    assert [one[0] for one in seen] == pytest.approx([0.01] * 8 + [0.005] * 8)
    assert [one[1] for one in seen] == [0.0] * 8 + [0.25] * 8
    assert [bool(one[2]) for one in seen] == [False] * 4 + [True] * 4 + [False] * 8
    moved = [not (before[3] == after[3]).all() for before, after in zip(seen, seen[1:])]
    assert moved == [True] * 4 + [False] * 4 + [True] * 7


def test_every_attempt_begins_anew() -> None:
    """Far too large a rate: each attempt has its own clocks, and a third of the rate that the recipe says."""
    text = GRADUAL + "- !SetLearningRateModifier {learning_rate: 0.9}\n"
    rates: list[float] = []
    outcome, _ = ran(
        text, KeepBest(checks=2, retries=2), look=lambda run, step: rates.append(run.trainee.settings.rate)
    )
    assert outcome.attempts > 1
    assert {round(rate, 6) for rate in rates} == {round(0.9 / 3**one, 6) for one in range(outcome.attempts)}
    assert zeros(outcome) == [0.8, 0.8]


def test_groups_that_a_run_does_not_have() -> None:
    with refusing(OptionError):
        ran("- !SetLearningRateModifier {learning_rate: 0.1, param_groups: [1, 2]}\n")


def test_a_run_that_ends_worse_than_pruning_did_not_help() -> None:
    outcome, _ = ran(GRADUAL + "- !SetLearningRateModifier {learning_rate: 0.3}\n")
    assert (outcome.helped, outcome.trained) == (False, True)
    assert outcome.loss >= outcome.loss_untrained
    assert sum("training did not help" in note for note in outcome.notes) == 1
    assert zeros(outcome) == [0.8, 0.8]


def test_a_run_that_ends_better_helped() -> None:
    outcome, _ = ran(GRADUAL + "- !SetLearningRateModifier {learning_rate: 0.1}\n")
    assert (outcome.helped, outcome.trained) == (True, True)
    assert outcome.loss < outcome.loss_untrained
    assert not any("did not help" in note for note in outcome.notes)
