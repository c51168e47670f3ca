"""RigL in a run on the small network: places move, their number does not, and a resumed run is the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from onnxsparse import checkpoints
from onnxsparse.errors import OptionError
from onnxsparse.recipes import Recipe
from onnxsparse.recipes.modifiers.training import KeepBest, Objective, Training
from onnxsparse.recipes.plan_by_epochs import by_epochs
from onnxsparse.train.masks_at_epoch import at_epoch
from tests.cases import for_each
from tests.runs.net import Bench, Spy
from tests.runs.test_resume import kept, quick, same_outcome, same_state

__all__ = ["quick"]
RIGL = """
- !RigLPruningModifier
    start_epoch: 0
    end_epoch: 3
    update_frequency: 0.5
    final_sparsity: 0.7
    sparsity_strategy: uniform
    num_grads: 2
    params: __ALL_PRUNABLE__
"""
RECIPES = {"rigl": RIGL}
STEPS = 14


class Recipes(Bench):
    """Runs of a recipe that goes by epochs."""

    def __init__(self, text: str, optimizer: str = "sgd:momentum=0.5", look: Any = None) -> None:
        training = Training(steps=STEPS, batch=8, optimizer=optimizer, rate=0.01)
        super().__init__(training, steps_per_epoch=4)
        modifiers = Recipe.from_yaml(f"modifiers:\n{text}").modifiers
        self.found, self.spy = by_epochs(self.model, modifiers), Spy(look or (lambda run, step: None))
        frame = (replace(training, warm_up=0.0, rate_schedule="constant"), Objective())
        self.all = (*frame, *modifiers, KeepBest(checks=2), self.spy)

    def run(self, **options: Any) -> Any:
        return super().run(modifiers=self.all, plan=self.found.plan, by_epochs=self.found, **options)


def test_rigl_exchanges_fewer_and_fewer_places() -> None:
    made = Recipes(RIGL, look=lambda run, step: {tag: mask != 0 for tag, mask in run.engine.frozen.items()})
    outcome = made.run().go()
    masks = made.spy.seen[:STEPS]  # of the first attempt
    for tag in masks[0]:
        size = masks[0][tag].size
        assert {int(one[tag].sum()) for one in masks} == {size - int(np.floor(0.7 * size + 0.5))}
        moved = [int((one[tag] & ~other[tag]).sum()) for one, other in zip(masks[1:], masks)]
        assert moved[1] > 0, "at the second update"
        assert not any(moved[11:])
    assert all(np.count_nonzero(array) <= masks[-1][f"{tag}/mask"].sum() for tag, array in outcome.arrays.items())


@pytest.mark.parametrize("name", RECIPES)
@for_each("optimizer", ["sgd:momentum=0.5", "adam"])
def test_resumed_after_any_step(name: str, optimizer: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, copies = kept(Recipes(RECIPES[name], optimizer), tmp_path / optimizer[:4], monkeypatch)
    for folder in copies:
        same_outcome(outcome, Recipes(RECIPES[name], optimizer).run(folder=folder, resume=True).go())
        same_state(checkpoints.newest(copies[-1]), checkpoints.newest(folder))


def test_a_file_has_no_gradients_for_rigl() -> None:
    made = Recipes(RIGL)
    with pytest.raises(OptionError, match="RigLPruningModifier: places grow by gradients, and there are none here"):
        at_epoch(made.model, Recipe.from_yaml(f"modifiers:\n{RIGL}").modifiers, 1.0)
