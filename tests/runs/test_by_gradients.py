"""Modifiers that go by gradients on the small network: their masks and weights, resuming, and what stays untouched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from onnxsparse.acts.act import Act
from onnxsparse.errors import OptionError
from onnxsparse.recipes import Recipe
from onnxsparse.recipes.modifiers.modifier import Modifier, Scheduled
from onnxsparse.recipes.modifiers.training import KeepBest, Objective, Training
from onnxsparse.recipes.plan_by_epochs import by_epochs
from onnxsparse.train import checkpointing
from onnxsparse.train.masks_at_epoch import at_epoch
from tests.messages import refusing
from tests.runs.net import Bench, NumpyEngine, Spy
from tests.runs.test_resume import kept, same_outcome, stream

STEPS = 12
GRADUAL = "start_epoch: 0, end_epoch: 2, update_frequency: 0.5, init_sparsity: 0.2, final_sparsity: 0.75"
FISHER = f"{GRADUAL}, params: __ALL_PRUNABLE__, damp: 0.001"
CASES = {
    "movement": f"MovementPruningModifier {{{GRADUAL}, params: __ALL_PRUNABLE__}}",
    "movement in blocks": f"MovementPruningModifier {{{GRADUAL}, params: __ALL_PRUNABLE__, mask_type: block4}}",
    "obs": f"OBSPruningModifier {{{FISHER}, num_grads: 20, fisher_block_size: 8}}",
    "obs in blocks": f"OBSPruningModifier {{{FISHER}, num_grads: 5, fisher_block_size: 6, mask_type: block4, "
    "num_recomputations: 2}",
    "m-fac": f"MFACPruningModifier {{{FISHER}, num_grads: {{0.0: 3, 0.5: 5}}, fisher_block_size: 10}}",
    "m-fac whole": f"MFACPruningModifier {{{FISHER}, num_grads: 3, fisher_block_size: null, "
    "use_gradient_buffering: true}",
}


class ByEpochs(Bench):
    """A bench whose runs go by the modifiers of a recipe."""

    def __init__(self, text: str, *more: Any, **options: Any) -> None:
        training = Training(steps=STEPS, batch=8, optimizer="sgd:momentum=0.5", rate=0.01)
        super().__init__(training, *more, steps_per_epoch=4, **options)
        recipe = Recipe.from_yaml("modifiers:\n- !" + text)
        timed = [one for one in recipe.modifiers if isinstance(one, Scheduled)]
        self.found = by_epochs(self.model, timed)
        self.asked_for = (replace(training, warm_up=0.0, rate_schedule="constant"), Objective(), *timed, *more)

    def task(self, **more: Any) -> Any:
        return super().task(modifiers=self.asked_for, plan=self.found.plan, by_epochs=self.found, **more)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing, "PLACES", 1)
    monkeypatch.setattr(checkpointing, "APART", 0.0)
    monkeypatch.setattr("os.fsync", lambda file: None)


@pytest.mark.parametrize("data", ["samples", "stream"])
@pytest.mark.parametrize("case", CASES)
def test_resumed_after_any_step(case: str, data: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def made() -> Bench:
        return ByEpochs(CASES[case], data=None if data == "samples" else stream())

    outcome, copies = kept(made(), tmp_path / "run", monkeypatch)
    assert len(copies) >= STEPS
    for folder in copies[:-1] if data == "samples" else copies[::3]:
        resumed = made().run(folder=folder, resume=True).go()
        if data == "samples":
            same_outcome(outcome, resumed)
        assert all(array.tobytes() == resumed.arrays[tag].tobytes() for tag, array in outcome.arrays.items())
    total = sum(array.size for array in outcome.arrays.values())
    zeros = sum(int((array == 0).sum()) for array in outcome.arrays.values())
    assert 0 <= zeros - round(0.75 * total) <= 4 * case.startswith("movement")  # what comes back begins at zero


@pytest.mark.parametrize("case", ["movement", "obs", "m-fac whole"])
def test_every_attempt_begins_anew(case: str) -> None:
    """Far too large a rate: what was gathered in one attempt is gone in the next."""
    fast = ByEpochs(CASES[case] + "\n- !SetLearningRateModifier {learning_rate: 0.9}", KeepBest(checks=2, retries=1))
    assert fast.run().go().attempts == 2


class Overflowing(NumpyEngine):
    """Half precision cannot hold its gradients until the loss was scaled up less, twice."""

    left = 2

    @property
    def overflowed(self) -> bool:
        return self.left > 0

    def gradients(self) -> Any:
        held = super().gradients()
        return {tag: np.zeros_like(one) for tag, one in held.items()} if self.overflowed else held

    def update(self, pace: Any) -> bool:
        if not self.overflowed:
            return super().update(pace)
        self.left -= 1
        self.discard_gradients()
        return False


RIGL = "RigLPruningModifier {start_epoch: 0, end_epoch: 2, update_frequency: 0.5, final_sparsity: 0.7, params: []}"


@pytest.mark.parametrize("data", ["samples", "stream"])
@pytest.mark.parametrize("case", [CASES["movement"], CASES["obs"], CASES["m-fac"], RIGL])
def test_gradients_that_half_precision_cannot_hold_are_taken_again(case: str, data: str) -> None:
    plain, again = (
        ByEpochs(case, data=None if data == "samples" else stream(), make=kind).run().go().arrays
        for kind in (NumpyEngine, Overflowing)
    )
    assert all(array.tobytes() == again[tag].tobytes() for tag, array in plain.items())


class Beside(Modifier):
    """Gathers the scores of movement by their equation, and looks at the masks that each step has."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def start(self, run: Any) -> Act:
        scores: dict[str, np.ndarray] = {}
        before: dict[str, np.ndarray] = {}
        counts = self.counts

        class Gathering(Act):
            def before_step(self, trainee: Any, step: int) -> None:
                before.update({param.tag: trainee.numbers(param).copy() for param in trainee.params})

            def before_update(self, trainee: Any, step: int) -> None:
                for tag, gradient in run.engine.gradients().items():
                    move = np.float32(-0.01) * gradient.reshape(-1) * before[tag]
                    scores[tag] = scores.get(tag, np.float32(0)) + move

            def after_step(self, trainee: Any, step: int) -> None:
                for key, mask in run.engine.frozen.items():
                    score, gone = scores[key.partition("/")[0]], mask.reshape(-1) == 0
                    if step in (0, 2, 4, 6, 8):  # that have new masks
                        assert score[gone].max() <= score[~gone].min()
                        counts.append(int(gone.sum()))

        return Gathering()


def test_movement_by_its_equation() -> None:
    """The signed lowest go, and the gradient of a step counts before its masks are chosen."""
    made, beside = ByEpochs(CASES["movement"]), Beside()
    made.asked_for = (*made.asked_for, beside)
    made.run().go()
    assert len(set(beside.counts[::2])) == 5


def test_weights_that_stay_make_up_for_those_that_go() -> None:
    """With blocks as large as a weight: w - F^-1 (w gone / diag), by a dense inverse."""
    made = ByEpochs(f"OBSPruningModifier {{{FISHER}, num_grads: 6, fisher_block_size: 4096, global_sparsity: false}}")
    run = made.run()
    run._begin(None)  # the dense model, before any step
    trainee = run.trainee
    act = next(one for one in run.acts if hasattr(one, "masked"))
    params = act.masked()
    rows = {param.tag: [] for param in params}
    for found in trainee.sample_gradients(params, 6):
        for tag, gradient in found.items():
            rows[tag].append(gradient.astype(np.float64))
    before = {param.tag: trainee.numbers(param).astype(np.float64) for param in params}
    act.before_step(trainee, 0)
    for param in params:
        order = param.matrix(np.arange(param.size)).reshape(-1)
        g, w = np.stack(rows[param.tag])[:, order], before[param.tag][order]
        inverse = np.linalg.inv(0.001 * np.eye(param.size) + g.T @ g / 6)
        costs = w**2 / (2 * np.diagonal(inverse))
        gone = np.argsort(costs, kind="stable")[: int(0.2 * param.size + 0.5)]
        pulls = np.zeros(param.size)
        pulls[gone] = w[gone] / np.diagonal(inverse)[gone]
        moved = w - inverse @ pulls
        moved[gone] = 0
        np.testing.assert_allclose(trainee.numbers(param)[order], moved, rtol=1e-4, atol=1e-5)


def test_samples_leave_the_step_as_it_is() -> None:
    """The optimizer, the gradients and the order of the samples are those of a run that takes none."""
    batches: dict[bool, list[bytes]] = {}
    for sampled in (False, True):

        def look(run: Any, step: int) -> bytes:
            return run.trainee._batch.arrays["x"].tobytes()

        spy = Spy(look)
        modifier = f"OBSPruningModifier {{{FISHER}, num_grads: 3}}"
        ByEpochs(modifier if sampled else modifier.replace("OBS", "GM").partition(", damp")[0] + "}", spy).run().go()
        batches[sampled] = spy.seen
    assert batches[False] == batches[True]


def test_too_few_gradients_are_said_once() -> None:
    notes = ByEpochs(CASES["obs"].replace("num_grads: 20", "num_grads: 99"), data=stream()).run().go().notes
    assert [note for note in notes if "num_grads" in note] == [
        "the recipe, line 2: !OBSPruningModifier: steps had given 1 of the 99 gradients that num_grads asks for"
    ]


@pytest.mark.parametrize("name", ["Movement", "OBS", "MFAC"])
def test_a_file_has_no_gradients(name: str) -> None:
    bench = ByEpochs(f"{name}PruningModifier {{{GRADUAL}, params: __ALL_PRUNABLE__}}")
    timed = [one for one in bench.asked_for if isinstance(one, Scheduled)]
    with refusing(OptionError):
        at_epoch(bench.model, timed, 1.0)
