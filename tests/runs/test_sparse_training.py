"""RigL, Top-KAST and Powerpropagation in a run on the small network; a resumed run is the same."""

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
from tests.runs.test_resume import kept, quick, same_outcome, same_state, stream

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
TOPKAST = """
- !TopKASTPruningModifier
    start_epoch: 0.5
    end_epoch: 3
    update_frequency: 0.5
    forward_sparsity: 0.7
    backward_sparsity: 0.3
    active_weight_decay: 0.1
    params: __ALL_PRUNABLE__
"""
POWERS = """
- !PowerpropagationModifier
    start_epoch: 0.5
    end_epoch: 3
    alpha: 2.0
    params: __ALL_PRUNABLE__
- !GMPruningModifier
    start_epoch: 0
    end_epoch: 2.5
    update_frequency: 1
    init_sparsity: 0.1
    final_sparsity: 0.8
    params: __ALL_PRUNABLE__
"""
RECIPES = {"rigl": RIGL, "topkast": TOPKAST, "powers": POWERS}
STEPS = 14


class Recipes(Bench):
    """Runs of a recipe that goes by epochs."""

    def __init__(self, text: str, optimizer: str = "sgd:momentum=0.5", look: Any = None, data: Any = None) -> None:
        training = Training(steps=STEPS, batch=8, optimizer=optimizer, rate=0.01)
        super().__init__(training, steps_per_epoch=4, data=data)
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


def test_rigl_on_a_stream_goes_by_its_own_steps(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Masked places have gradients, too; a resumed run has the sums that were on their way."""
    masks: list[dict[str, Any]] = []

    def look(run: Any, step: int) -> None:
        masks.append({tag: mask != 0 for tag, mask in run.engine.frozen.items()})

    outcome, copies = kept(Recipes(RIGL, data=stream(), look=look), tmp_path / "run", monkeypatch)
    assert all((masks[2][tag] & ~before).any() for tag, before in masks[1].items())
    for folder in copies:
        again = Recipes(RIGL, data=stream()).run(folder=folder, resume=True).go()
        assert all(array.tobytes() == again.arrays[tag].tobytes() for tag, array in outcome.arrays.items())


@pytest.mark.parametrize("name", RECIPES)
@for_each("optimizer", ["sgd:momentum=0.5", "adam"])
def test_resumed_after_any_step(name: str, optimizer: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, copies = kept(Recipes(RECIPES[name], optimizer), tmp_path / optimizer[:4], monkeypatch)
    for folder in copies:
        same_outcome(outcome, Recipes(RECIPES[name], optimizer).run(folder=folder, resume=True).go())
        same_state(checkpoints.newest(copies[-1]), checkpoints.newest(folder))


def test_a_file_has_no_gradients_for_rigl() -> None:
    made = Recipes(RIGL)
    with pytest.raises(
        OptionError, match="RigLPruningModifier: it goes by gradients, and a file that is not trained has none"
    ):
        at_epoch(made.model, Recipe.from_yaml(f"modifiers:\n{RIGL}").modifiers, 1.0)


def test_top_kast_computes_with_few_and_trains_more() -> None:
    def look(run: Any, step: int) -> Any:
        seen = run.engine
        return [(np.count_nonzero(seen.weights[tag]), int(seen.frozen[f"{tag}/mask"].sum())) for tag in run.task.tags]

    made = Recipes(TOPKAST, look=look)
    outcome, sizes = made.run().go(), sum(one.size for one in made.dense.values())
    used, trained = np.sum(made.spy.seen[:STEPS], axis=1).T
    assert list(used[:2]) == list(trained[:2]) == [sizes, sizes]
    assert set(used[2:]) == {sizes - int(np.floor(0.7 * sizes + 0.5))}
    assert set(trained[2:12]) == {sizes - int(np.floor(0.3 * sizes + 0.5))}
    assert list(trained[12:]) == list(used[12:])
    assert sum(np.count_nonzero(array) for array in outcome.arrays.values()) <= used[-1]


def test_top_kast_of_a_file_is_what_it_would_use() -> None:
    made = Recipes(TOPKAST)
    for epoch in (1.0, None):
        found = at_epoch(made.model, Recipe.from_yaml(f"modifiers:\n{TOPKAST}").modifiers, epoch)
        kept = sum(int(mask.sum()) for mask in found.masks.values())
        sizes = sum(one.size for one in made.dense.values())
        assert kept == sizes - int(np.floor(0.7 * sizes + 0.5))


def test_powers_of_one_change_nothing() -> None:
    plain = (
        Recipes(
            POWERS.replace("PowerpropagationModifier", "EpochRangeModifier").replace(
                "    alpha: 2.0\n    params: __ALL_PRUNABLE__\n", "", 1
            )
        )
        .run()
        .go()
    )
    ones = Recipes(POWERS.replace("2.0\n    params", "1.0\n    params", 1)).run().go()
    others = Recipes(POWERS).run().go()
    assert all((plain.arrays[tag] == ones.arrays[tag]).all() for tag in plain.arrays)
    assert any((others.arrays[tag] != ones.arrays[tag]).any() for tag in plain.arrays)
    for array in others.arrays.values():
        assert array.size - np.count_nonzero(array) == np.floor(0.8 * array.size + 0.5)
